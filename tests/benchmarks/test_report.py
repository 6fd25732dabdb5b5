"""Tables and figure come from measured lines alone, and the text's tables are those of the results file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plot, report, suite
from benchmarks.__main__ import main
from looped.errors import InputError

ROOT = Path(__file__).parents[2]
TEXT, RESULTS = ROOT / "docs" / "performance.md", ROOT / "results" / "performance.jsonl"


def line(bench: str, device: str = "NVIDIA X", **values: Any) -> dict[str, Any]:
    made = {"device": device, "commit": "0123456789", "date": "2026-01-02", "torch": "2", "seconds": 1.5}
    return {
        "bench": bench,
        "options": {},
        "provenance": {**made, "command": f"looped bench {bench}"},
        **values,
    }


def training(task: str, speedup: float = 50.0, device: str = "NVIDIA X") -> dict[str, Any]:
    ours = {
        "seeds": 5, "ms_per_seed": 2.0, "ms_per_step": 10.0, "tflops": 100.0, "share_of_ceiling": 0.125,
        "peak_bytes": 3e9, "compile_seconds": 1.0, "capture_seconds": 0.5, "floor_ms_per_seed": 0.25,
        "precision": "bf16", "anatomy": {"ms": {"products": 6.0, "rest": 1.5}, "busy_ms": 7.5, "launches": 9},
    }  # fmt: skip
    peer = {"ms_per_step": 2.0 * speedup, "peak_bytes": 1e9}
    row = line("train", device, task=task, ours=ours, peer=peer, speedup=speedup, loss_difference=0.002)
    return {**row, "options": {"task": task}}


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_training_is_a_row_a_task() -> None:
    table = cells(report.TABLES["training"]([training("copy"), training("binary_sum", 31.4)]))
    assert table[2] == [
        "copy", "2.00", "100.0", "**50**", "100", "12%", "3.00", "1.00", "1.0", "0.5", "2e-03",
    ]  # fmt: skip
    assert table[3][:4] == ["binary sum", "2.00", "62.8", "**31**"]


def test_the_anatomy_is_per_seed_and_tells_what_is_idle() -> None:
    table = cells(report.TABLES["anatomy"]([training("copy")]))
    assert table[0] == ["task", "floor", "measured", "products", "rest", "idle", "launches"]
    assert table[2] == ["copy", "0.25", "2.00", "1.20", "0.30", "0.50", "9"]


def test_the_cpus_lines_stay_out_of_the_gpus_tables() -> None:
    lines = [training("copy", 3.5, "cpu (x86_64, 2 threads)")]
    assert report.TABLES["training"](lines) == "*Not measured yet.*"
    assert "**3.5**" in report.TABLES["cpu"](lines)


def test_the_last_of_two_measurements_counts(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(training("copy", value)) + "\n" for value in (10.0, 20.0)))
    (found,) = report.load(file)
    assert found["speedup"] == 20.0


def test_only_marked_places_change() -> None:
    text = "before\n<!-- table scale -->\nold\n<!-- end -->\nafter\n"
    lines = [line("scale", rows=[{"seeds": 2, "ms_per_step": 4.0, "ms_per_seed": 2.0, "peak_bytes": 1e9}])]
    filled = report.fill(text, lines)
    assert filled.startswith("before\n<!-- table scale -->\n| seeds |")
    assert filled.endswith("| 2 | 4.00 | 2.00 | 1.00 |\n<!-- end -->\nafter\n")
    assert report.fill(filled, lines) == filled
    with pytest.raises(InputError, match="there is no table 'nothing'"):
        report.fill("<!-- table nothing -->\n<!-- end -->", [])


def test_the_tables_of_the_text_are_those_of_the_results() -> None:
    text = TEXT.read_text(encoding="utf-8")
    lines = report.load(RESULTS) if RESULTS.exists() else []
    assert report.fill(text, lines) == text, "run `python -m benchmarks report` on the results and the text"
    for name in report.TABLES:
        assert f"<!-- table {name} -->" in text


@pytest.mark.slow
def test_what_the_suite_writes_can_be_reported_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [job for job in suite.jobs(suite.devices.pick("cpu"), small=True) if job[0] != "train"]
    monkeypatch.setattr(suite, "jobs", lambda device, little: iter(small))
    file, text = tmp_path / "lines.jsonl", tmp_path / "text.md"
    suite.run(file, device="cpu", small=True)
    text.write_text("".join(f"<!-- table {name} -->\n<!-- end -->\n" for name in report.TABLES))
    assert main(["report", str(file), str(text)]) == 0
    assert text.read_text().count("*Not measured yet.*") == 4, (
        "training, anatomy, scale and the CPU's training"
    )
    assert main(["plot", str(file), str(tmp_path / "figure.svg")]) == 0
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_the_figure_shows_every_task_and_its_factor() -> None:
    figure = plot.draw([training("copy", 52.0), training("unique_set", 48.0)])
    axes = figure.axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["copy", "unique set"]
    assert [note.get_text() for note in axes.texts] == ["52×", "48×"]
    assert sorted(round(bar.get_height()) for bar in axes.patches) == [2, 2, 96, 104]
