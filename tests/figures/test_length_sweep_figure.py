"""The length sweep's figure: what is drawn where, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from looped.errors import InputError
from looped.figures import COLOURS, length_sweep, read_length_sweeps, save

Cli = Callable[..., tuple[int, str, str]]
FAILED, TOP, OPEN = {"accuracy": 0.5}, None, {"accuracy": None}


def entry(
    stop: str, inputs: str, l99: int | None, l999: int | None, end: dict[str, Any] | None = FAILED
) -> dict[str, Any]:
    return {"stop": stop, "inputs": inputs, "L99": l99, "L999": l999, "L99_ended_by": end}


def one(task: str, reach: list[dict[str, Any]], run: str = "r@0", recipe: str = "long") -> dict[str, Any]:
    about = {"task": task, "run": run, "recipe": recipe, "trained": 19, "paper": 35}
    return {**about, "lengths": [20, 35, 100, 200], "reach": reach}


BOTH = [
    entry("oracle", "uniform", 200, 100, TOP),
    entry("converged", "uniform", 100, 20),
    entry("oracle", "all families", 100, 35),
    entry("converged", "all families", None, None),
]


def panel_of(sweeps: list[dict[str, Any]]) -> Axes:
    (panel,) = length_sweep(sweeps).axes
    return panel


def ends(panel: Axes) -> list[tuple[float, str]]:
    """Right ends and colours of the bars, in the order they are drawn."""
    bars = [(bar.get_x() + bar.get_width(), bar.get_facecolor()) for bar in panel.patches]
    return [(round(x, 6), "pale " * (face[3] < 1) + str(_colour(face))) for x, face in bars]


def _colour(face: tuple[float, ...]) -> int:
    code = "#" + "".join(f"{round(255 * part):02X}" for part in face[:3])
    return COLOURS.index(code)


def test_bars_end_where_the_ladder_does() -> None:
    panel = panel_of([one("copy", BOTH)])
    assert ends(panel) == [(200, "pale 0"), (100, "0"), (100, "pale 1")]
    diamonds = [line.get_xdata()[0] for line in panel.get_lines() if line.get_marker() == "D"]
    assert diamonds == [35], "L999 of the worst family, where there is one"
    uprights = sorted({line.get_xdata()[0] for line in panel.get_lines() if line.get_marker() == "None"})
    assert uprights == [19, 35], "the training length and the paper's"
    assert [text.get_text() for text in panel.texts] == ["100, uniform 200", "×, uniform 100"]


def test_uniform_inputs_alone() -> None:
    panel = panel_of([one("copy", BOTH[:1])])
    assert ends(panel) == [(200, "0")]
    assert [text.get_text() for text in panel.texts] == ["200"]


@pytest.mark.parametrize(
    ("l99", "end", "text"), [(20, OPEN, "≥ 20"), (None, OPEN, "?"), (None, FAILED, "×"), (35, FAILED, "35")]
)
def test_what_stands_behind_a_bar(l99: int | None, end: dict[str, Any], text: str) -> None:
    panel = panel_of([one("copy", [entry("oracle", "uniform", l99, None, end)])])
    assert [label.get_text() for label in panel.texts] == [text]
    assert len(panel.patches) == (l99 is not None)


def test_rows_are_named_apart() -> None:
    sweeps = [
        one("copy", BOTH), one("binary_sum", BOTH, recipe="fast"), one("binary_sum", BOTH),
        one("parity", BOTH, "a@1"), one("parity", BOTH, "b@2"),
    ]  # fmt: skip
    names = [label.get_text() for label in panel_of(sweeps).get_yticklabels()]
    assert names == ["copy", "binary sum, fast", "binary sum, long", "parity, a@1", "parity, b@2"]


def test_equal_ladders_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save(length_sweep([one("copy", BOTH)], "a title"), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_from_a_file(cli: Cli, tmp_path: Path) -> None:
    path, out = tmp_path / "ladder.json", tmp_path / "ladder.png"
    path.write_text(json.dumps({"ladder": [one("copy", BOTH)]}))
    code, _, err = cli("figure", path, "--kind", "ladder", "--out", out)
    assert (code, err) == (0, f"wrote {out}\n")
    assert out.read_bytes().startswith(b"\x89PNG")
    code, said, _ = cli("figure", path, "--out", out, "--json")
    assert (code, json.loads(said)["kind"]) == (0, "ladder"), "a ladder is known without being named"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        json.dumps({"rows": []}),
        json.dumps({"ladder": []}),
        json.dumps({"ladder": [{**one("copy", BOTH), "lengths": []}]}),
        json.dumps({"ladder": [{**one("copy", BOTH), "lengths": [0]}]}),
        json.dumps({"ladder": [{**one("copy", BOTH), "trained": "19"}]}),
        json.dumps({"ladder": [one("copy", [{**BOTH[0], "L99": "many"}])]}),
    ],
)
def test_files_that_hold_no_ladder(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ladder.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"is no file of length sweeps|there is no length sweep to draw"):
        read_length_sweeps([path])
    with pytest.raises(InputError, match="is no file of length sweeps"):
        read_length_sweeps([tmp_path / "nowhere.json"])
