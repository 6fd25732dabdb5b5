"""Text on the page stands out 4.5 : 1 from what is behind it, and edges 3 : 1 (WCAG 2.2, level AA), in both themes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from looped.explorer import app

STATIC = Path(app.FOLDER)
STYLE = (STATIC / "style.css").read_text(encoding="utf-8")
TEXT = [  # text, behind it
    ("ink", "card"),
    ("ink", "paper"),
    ("ink", "right-soft"),
    ("muted", "card"),
    ("muted", "paper"),
    ("right", "card"),
    ("card", "right"),
    ("right", "right-soft"),
    ("wrong", "card"),
    ("wrong", "wrong-soft"),
    ("trained", "card"),
]
EDGES = [("edge", "card"), ("edge", "paper"), ("focus", "card"), ("focus", "paper"), ("trained", "paper")]
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])


def colours(theme: str) -> dict[str, str]:
    """The colour variables of a theme; the dark one changes some of the light one's."""
    found = {}
    for selector in [":root {", ':root[data-theme="dark"] {'][: 1 if theme == "light" else 2]:
        block = STYLE.partition(selector)[2].partition("}")[0]
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_itself() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@THEMES
def test_text_can_be_read(theme: str) -> None:
    known = colours(theme)
    low = {pair: contrast(known[pair[0]], known[pair[1]]) for pair in TEXT}
    assert {pair: round(value, 2) for pair, value in low.items() if value < 4.5} == {}


@THEMES
def test_edges_can_be_seen(theme: str) -> None:
    known = colours(theme)
    low = {pair: contrast(known[pair[0]], known[pair[1]]) for pair in EDGES}
    assert {pair: round(value, 2) for pair, value in low.items() if value < 3} == {}


@THEMES
def test_lines_of_the_rules_can_be_seen(theme: str) -> None:
    lines = re.findall(
        r'"?([\w-]+)"?: \["(#\w{6})", "(#\w{6})",', (STATIC / "charts.js").read_text(encoding="utf-8")
    )
    assert len(lines) == 8
    card = colours(theme)["card"]
    low = {name: contrast(light if theme == "light" else dark, card) for name, light, dark in lines}
    assert {name: round(value, 2) for name, value in low.items() if value < 3} == {}
