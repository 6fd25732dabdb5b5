"""Tables as a notebook shows them: HTML in which every text is escaped.

    html_table(("step", "says"), [(1, "0 <"), (2, Cell("0 1", fill=0.9))])

Colours are laid over the page's own, so that they can be read on light and on dark. No other module is needed.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

GOOD, BAD = "#0072B2", "#D55E00"  # told apart in colour blindness too
LONGEST = 40  # characters of a text that is not broken into lines
STRONGEST = 0.45  # of a fill: text of either theme can be read on it


@dataclass(frozen=True)
class Cell:
    """A text that is set as code, in a colour, or on a fill from 0 (none) to 1."""

    text: str
    colour: str = ""
    fill: float = 0.0
    bold: bool = False
    note: str = ""  # shown when it is pointed at

    def html(self) -> str:
        """As a table's cell."""
        style = "text-align:left;padding:1px 5px;"
        if self.colour:
            style += f"color:{self.colour};"
        if self.fill:
            style += f"background:rgba(0,114,178,{STRONGEST * self.fill:.2f});"
        if self.bold:
            style += "font-weight:bold;"
        note = f' title="{html.escape(self.note)}"' if self.note else ""
        wrap = ";word-break:break-all;white-space:normal" if len(self.text) > LONGEST else ""
        code = f'<code style="color:inherit;background:none{wrap}">{html.escape(self.text)}</code>'
        return f'<td style="{style}"{note}>{code}</td>'


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; a cell is a `Cell` or anything that prints."""
    top = "".join(f'<th style="text-align:left">{html.escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    above = f"<p>{html.escape(caption)}</p>" if caption else ""
    return f"{above}<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def html_facts(facts: Mapping[str, object]) -> str:
    """A table of names and what they stand for, in two columns."""
    return html_table((), facts.items())


def _cell(value: object) -> str:
    if isinstance(value, Cell):
        return value.html()
    return f'<td style="text-align:left">{html.escape(str(value))}</td>'
