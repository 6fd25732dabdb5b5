"""The project's own papers agree with each other: versions, pins, packaging, CI."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import looped

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_one_version_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, flags=re.M)[1] == looped.__version__
    version_file = PROJECT["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{looped.__version__}"' in (ROOT / version_file).read_text(encoding="utf-8")


def pins() -> dict[str, str]:
    """Package → version of `constraints.txt`."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in rows}


def closure(requirements: list[str]) -> set[str]:
    """Names of the required packages and of all that they require here."""
    names: set[str] = set()
    queue = [(Requirement(text), frozenset[str]()) for text in requirements]
    seen = set()
    while queue:
        requirement, extras = queue.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        wanted = [{"extra": extra} for extra in ("", *extras)]
        if key in seen or not (requirement.marker is None or any(map(requirement.marker.evaluate, wanted))):
            continue
        seen.add(key)
        names.add(key[0])
        with contextlib.suppress(PackageNotFoundError):
            queue += [(Requirement(text), key[1]) for text in requires(requirement.name) or []]
    return names


def test_every_package_is_pinned() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    needed = closure([*project["dependencies"], *extras["dev"], *extras["ray"], *extras["docs"]])
    assert {"torch", "numpy", "sympy", "pytest"} <= needed, "the closure reaches what torch needs"
    vendor = {name for name in needed if name.startswith(("nvidia-", "cuda-")) or name == "triton"}
    assert sorted(needed - set(pins()) - vendor) == []


def test_pins_are_plain_versions_within_what_is_declared() -> None:
    pinned = pins()
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pinned.values()), "no local versions"
    declared = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement


def test_the_package_is_complete() -> None:
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["looped"]
    assert (ROOT / "looped" / "py.typed").exists()
    assert (ROOT / PROJECT["project"]["readme"]).exists()
    assert all((ROOT / name).exists() for name in PROJECT["project"]["license-files"])
    module, _, function = PROJECT["project"]["scripts"]["looped"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_ci_runs_what_contributors_run() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("help", "test", "test-all", "lint", "demo", "engines", "docs", "clean"):
        assert re.search(rf"^{target}:.*## ", makefile, flags=re.M), f"make {target} is not in make help"
