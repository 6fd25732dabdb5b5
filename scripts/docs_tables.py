"""Generated tables of a text: `<!-- table NAME -->` and `<!-- end -->` enclose each, and what lies between is replaced.

No number in such a table is typed by hand. Knows no table itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from looped.errors import InputError


def fill(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The text with every generated table made anew."""

    def table(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            raise InputError(f"there is no table {name!r}; there are {', '.join(tables)}")
        return f"<!-- table {name} -->\n{tables[name]()}\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", table, text, flags=re.S)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; every column but the first stands to the right."""
    body = [[str(cell) for cell in row] for row in rows]
    if not body:
        return "*Not measured yet.*"
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spaced(name: str) -> str:
    """`binary_sum` as people read it."""
    return name.replace("_", " ")
