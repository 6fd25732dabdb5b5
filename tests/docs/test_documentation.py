"""Every python, sh and console block of the documentation runs and prints what the page says; links lead somewhere."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from pages import RUN, blocks, check

from looped import registry
from looped.evaluation import stopping
from looped.methods import METHODS, Method
from looped.tasks import TASKS
from looped.training.recipes import RECIPES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a page registers is gone after it."""
    tables: list[dict[str, object]] = [METHODS, TASKS, RECIPES, stopping.RULES]  # type: ignore[list-item]
    tables += [table for kind in registry.KINDS.values() for table in (kind.known, kind.files)]  # type: ignore[misc]
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


@NAMED
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file in (ROOT / "docs").glob("my_*.py"):  # the files that pages include
        shutil.copy(file, tmp_path)
    ran = check(text, page.name, tmp_path)
    meant = [block for block in blocks(text) if block.language in RUN and block.reason is None]
    assert ran == len(meant)


@NAMED
def test_what_is_not_run_has_a_reason_worth_reading(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.reason is not None:
            assert len(block.reason.split()) >= 3, f"{page.name}, line {block.line}: say why"


@NAMED
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def anchors(page: Path) -> set[str]:
    """What a link can name after `#`, as GitHub and the site make it from headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {
        re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", heading.strip().lower()))
        for heading in re.findall(r"^#+ (.+)$", text, flags=re.M)
    }


@NAMED
def test_links_lead_to_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    lost = [(to, name) for to, name in links if name not in anchors(page.parent / to if to else page)]
    assert lost == []


def test_every_page_is_in_the_sites_menu() -> None:
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(menu) == sorted(page.name for page in PAGES if page.parent.name == "docs")


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("stopping.md", stopping.RULES),
        ("training.md", RECIPES),
        ("tasks.md", TASKS),
        ("your_own_method.md", [field.name for field in fields(Method) if field.name != "name"]),
    ],
)
def test_a_page_names_all_there_is(page: str, names: Iterable[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)] == []


# --- the tool itself ---------------------------------------------------------------------------------------

GOOD = """
```python
x = 2
print(x + 1)
```

```text
3
```

<!-- not run: a test of this very thing -->
```sh
exit 3
```

```sh
printf 'a\\nb\\n' | wc -l
looped --version   # in this process
```

```console
$ looped tasks --json | wc -l
6
```
"""


def test_a_good_page(tmp_path: Path) -> None:
    assert check(GOOD, "good", tmp_path) == 3


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "shows another output"),
        ("```python\nassert False, 'no'\n```\n", "no"),
        ("```sh\nlooped nothing\n```\n", "ends with 2"),
        ("```sh\nfalse\n```\n", "ends with 1"),
        ("```console\n$ looped --version\nlooped 9\n```\n", "prints something else"),
    ],
)
def test_a_bad_page_is_caught(page: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check(page, "bad", tmp_path)


def test_reasons_are_read() -> None:
    page = "<!-- not run: needs a GPU here -->\n```sh\nx\n```\nwords\n```text\ny\n```\n"
    first, second = blocks(page)
    assert (first.reason, first.language, first.line) == ("needs a GPU here", "sh", 2)
    assert (second.reason, second.follows) == (None, False)
