"""The ablation table: on made-up cells whose summary is known, and on cells trained for a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ablation
from benchmarks.__main__ import length_tables, main
from benchmarks.ablation import ALL, PARTS, Ablation
from looped.training.config import TrainConfig
from scripts import docs_tables

ROOT = Path(__file__).parents[2]
TINY = ("max_length=2", "steps=4", "interval=2", "batch=4", "model.width=16")


def row(
    seed: int, accuracy: float, family: str = "uniform", stop: str = "halt", length: int = 20
) -> dict[str, Any]:
    made = {"seed": seed, "length": length, "stop": stop, "accuracy": accuracy, "family": family}
    return {name: value for name, value in made.items() if (name, value) != ("family", "uniform")}


def test_a_row_of_the_table() -> None:
    rows = [row(0, 1.0), row(1, 0.5), row(0, 1.0, "ones"), row(1, 0.0, "ones"), row(0, 1.0, stop="oracle")]
    rows += [row(0, 1.0, length=50), row(1, 0.9999, length=50)]
    data = {"cells": [{"task": "binary_sum", "part": "no noise", "rows": rows}]}
    halt, oracle = (made().splitlines()[-1] for name, made in sorted(ablation.tables(data).items()))
    assert halt == "| no noise | binary sum | .750 (.500) / .500 | .999 (.999) / .999 | 1 of 2 |"
    assert oracle == "| no noise | binary sum | 1 (1) / 1 | – | 1 of 1 |"


def test_cells_come_by_task_in_the_order_of_their_parts() -> None:
    order = [(part, task) for task in ("copy", "parity") for part in PARTS]
    cells = [{"task": task, "part": part, "rows": [row(0, 1.0)]} for part, task in reversed(order)]
    lines = ablation.table({"cells": cells}, "halt").splitlines()[2:]
    assert [tuple(line.strip("| ").split(" | ")[:2]) for line in lines] == order


@pytest.mark.parametrize("part", [part for part in PARTS if part != ALL])
def test_a_part_that_is_left_out_changes_the_run(part: str) -> None:
    asked = Ablation(("parity",))
    whole, other = asked.config("parity", ALL), asked.config("parity", part)
    assert isinstance(other, TrainConfig)
    assert whole != other
    assert (other.task, other.max_length, other.seeds) == ("parity", 10, (0, 1, 2, 3, 4))


def test_cells_are_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, runs = tmp_path / "ablation.json", tmp_path / "runs"
    asked = Ablation(
        ("parity",), (ALL, "no halting head"), TINY, seeds=2, lengths=(2, 3), samples=4, device="cpu"
    )
    said: list[str] = []
    ablation.measure(asked, runs, out, said.append)
    cells = {cell["part"]: cell for cell in json.loads(out.read_text())["cells"]}
    assert {name: {row["stop"] for row in cell["rows"]} for name, cell in cells.items()} == {
        ALL: {"oracle", "halt"}, "no halting head": {"oracle"},
    }  # fmt: skip
    mine = cells[ALL]["rows"]
    assert {(row["seed"], row["length"]) for row in mine} == {
        (seed, length) for seed in (0, 1) for length in (2, 3)
    }
    assert {row.get("family", "uniform"): row["samples"] for row in mine} == {
        "uniform": 4, "zeros": 1, "ones": 1, "mixed": 1, "p=0.05": 1, "p=0.95": 1,
    }  # fmt: skip
    before = out.read_bytes()
    ablation.measure(asked, runs, out, said.append)
    assert len(said) == 2
    assert out.read_bytes() == before
    capsys.readouterr()
    assert main(["ablation", "--out", str(out)]) == 0
    assert "| all parts | parity |" in capsys.readouterr().out
    assert main(["ablation", "parity", "--out", str(out), "--seeds", "3", "--device", "cpu"]) == 2
    assert "another configuration" in capsys.readouterr().err


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("{}")
    for words, sentence in (
        (["--out", str(tmp_path / "other.json")], "holds no cells"),
        (["--out", str(tmp_path / "none.json")], "none.json"),
        (["parity", "--part", "no bread"], "there is no part 'no bread'"),
        (["parity", "--seeds", "0"], "at least one seed"),
        (["nothing"], "nothing"),
    ):
        assert main(["ablation", *words]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1


def test_the_page_has_the_tables_of_the_files(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "length.md").read_text(encoding="utf-8")
    tables = length_tables(ROOT / "results")
    for name, made in tables.items():
        assert f"<!-- table {name} -->\n{made()}\n<!-- end -->" in page
    emptied = docs_tables.fill(page, dict.fromkeys(tables, lambda: "gone"))
    assert emptied.count("\ngone\n") == len(tables) == 4
    text = tmp_path / "length.md"
    text.write_text(emptied, encoding="utf-8")
    assert main(["length", str(text), "--results", str(ROOT / "results")]) == 0
    assert text.read_text(encoding="utf-8") == page
