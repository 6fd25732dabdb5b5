"""Every name of the API page exists, also where the site cannot be built."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
NAMES = re.findall(r"^::: (\S+)$", PAGE, flags=re.M)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_api_page(name: str) -> None:
    assert pkgutil.resolve_name(name).__doc__
