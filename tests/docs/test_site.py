"""The site builds offline and without a warning, where zensical is installed (`make docs` installs it)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zensical", reason="needs the extra docs")
pytest.importorskip("mkdocstrings", reason="needs the extra docs")
ROOT = Path(__file__).parents[2]


def test_the_site_builds(tmp_path: Path) -> None:
    for name in ("docs", "looped"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__")
        )
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "warning" not in said.lower(), said
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in (tmp_path / "site").glob("*.html")}
    reference = (tmp_path / "site" / "api.html").read_text(encoding="utf-8")
    assert "Bad input from a person" not in reference or "InputError" in reference
    assert "A model ready to answer one task" in reference, "docstrings are rendered"
    for page in (tmp_path / "site").glob("*.html"):
        fetched = re.findall(
            r"""(?:src|href)=["']?(https?://[^"'> ]+\.(?:js|css|woff2?))""", page.read_text(encoding="utf-8")
        )
        assert fetched == [], f"{page.name} fetches from elsewhere"
