"""Files of runs: a list or a grid becomes rows, and whatever is wrong with one is a sentence that names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from looped import serial
from looped.errors import InputError
from looped.evaluation.stopping import NOT_SAID
from looped.experiments import plan
from looped.experiments.plan import parse_sweep, read_sweep
from looped.training import recipes

COPY = {"task": "copy"}
TABLE = {"model.positions": "learned", "model.max_positions": 64}


def test_a_list() -> None:
    rows = [
        COPY,
        {"task": "copy", "method": "ntp", "recipe": "quick", "seeds": [3], "name": "mine",
         "set": {"model.width": 128, "lr": [1e-3], "checkpointing": True, "lengths": "iid", "betas": [0.9, 0.99]}},
    ]  # fmt: skip
    sweep = parse_sweep(rows, "x")
    assert [run.folder for run in sweep.runs] == ["copy-fop-loop-adaptive-fast", "mine"]
    config = sweep.runs[1].config
    assert (config.model.width, config.lr, config.checkpointing, config.lengths, config.betas, config.seeds) == (
        128, (1e-3,), True, "iid", (0.9, 0.99), (3,)
    )  # fmt: skip
    assert sweep.plan is None


def test_a_grid_is_every_combination() -> None:
    grid = {
        "tasks": ["copy", "parity"], "methods": ["fop-loop-adaptive", "ntp"], "recipes": ["quick"], "seeds": [0, 1],
        "set": {"steps": 10}, "grid": {"lr": [1e-3, 2e-3], "batch": [2, 4, 8]},
        "measure": {"lengths": "1:3,9", "samples": 5, "stops": ["oracle", "confidence"]},
    }  # fmt: skip
    sweep = parse_sweep(grid, "x")
    seen = {(run.task, run.method, run.config.lr, run.config.batch) for run in sweep.runs}
    assert len(seen) == len(sweep.runs) == 2 * 2 * 2 * 3
    assert {(run.recipe, run.seeds, run.config.steps) for run in sweep.runs} == {("quick", (0, 1), 10)}
    assert sweep.plan is not None
    assert sweep.plan.lengths == (1, 2, 3, 9)
    stops = {run.method: sweep.plan.fit(run).stops for run in sweep.runs}
    assert stops == {"fop-loop-adaptive": ("oracle", "confidence"), "ntp": ("oracle",)}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (3, "must hold a list of runs or a grid, not 3"),
        (None, "must hold a list of runs or a grid"),
        ("copy", "must hold a list of runs or a grid"),
        ([], "runs must be a list that is not empty"),
        ({}, "names no tasks"),
        ({"task": "copy"}, "unknown field 'task'; known are tasks, methods"),
        ({"runs": [COPY], "tasks": ["copy"]}, "unknown field 'tasks'; known are runs, measure"),
        ({"runs": {}}, "runs must be a list"),
        (["copy"], "run 1 must be an object of fields, not 'copy'"),
        ([{}], "run 1 lacks the field 'task'"),
        ([COPY, {"task": "sorting"}], "run 2: unknown task 'sorting'"),
        ([{"task": 3}], "run 1: task must be a text, not 3"),
        ([{"task": "copy", "metod": "ntp"}], "run 1 has an unknown field 'metod'"),
        ([{"task": "copy", "method": "rnn"}], "run 1: unknown method 'rnn'"),
        ([{"task": "copy", "recipe": "slow"}], "run 1: unknown recipe 'slow'"),
        ([{"task": "copy", "seeds": 3}], "run 1: seeds must be a list, not 3"),
        ([{"task": "copy", "seeds": [0, 0]}], "run 1: seeds must be distinct"),
        ([{"task": "copy", "seeds": ["0"]}], "seeds[0] must be a whole number"),
        ([{"task": "copy", "set": ["steps=3"]}], "run 1: set must be an object of fields"),
        ([{"task": "copy", "set": {"stesp": 3}}], "run 1: there is no field 'stesp'"),
        ([{"task": "copy", "set": {"steps": "many"}}], "run 1: steps takes a whole number, not 'many'"),
        ([{"task": "copy", "set": {"steps": 0}}], "steps must be at least 1, not 0"),
        ([{"task": "copy", "set": {"steps": {"a": 1}}}], "run 1: steps cannot be {'a': 1}"),
        ([{"task": "copy", "set": {"lr": [[1]]}}], "lr cannot be [[1]]"),
        ([{"task": "copy", "set": {"steps=3;": 1}}], "is no field's name"),
        ([{"task": "copy", "set": {"task": "parity"}}], "'task' is a field of the run itself"),
        ([{"task": "copy", "name": "../../etc"}], "'../../etc' cannot name a run"),
        ([{"task": "copy", "name": "/tmp/x"}], "cannot name a run"),
        ([COPY, COPY], "runs 1 and 2 are the same, copy-fop-loop-adaptive-fast"),
        ([{"task": "copy", "name": "a"}, {"task": "parity", "name": "a"}], "runs 1 and 2 are the same, a"),
        ({"tasks": "copy"}, "tasks must be a list"),
        ({"tasks": [1]}, "tasks must be a list of names"),
        ({"tasks": ["copy"], "methods": []}, "methods must be a list that is not empty"),
        ({"tasks": ["copy"], "grid": [1]}, "grid must be an object of lists"),
        ({"tasks": ["copy"], "grid": {"lr": 3}}, "grid of lr must be a list"),
        ({"tasks": ["copy"], "grid": {"lr": [1e-3, 0.001]}}, "runs 1 and 2 are the same"),
        ({"tasks": ["copy"], "grid": {"batch": list(range(1, 200)), "steps": list(range(1, 200))}}, "39601 runs"),
        ([COPY] * 10_001, "asks for 10001 runs; the most is 10000"),
        ({"runs": [COPY], "measure": {}}, "measure lacks the field 'lengths'"),
        ({"runs": [COPY], "measure": {"lengths": "a"}}, "lengths are written"),
        ({"runs": [COPY], "measure": {"lengths": [0]}}, "a length must be between 1"),
        ({"runs": [COPY], "measure": {"lengths": []}}, "needs lengths"),
        ({"runs": [COPY], "measure": {"lengths": [1], "stops": ["never"]}}, "unknown stopping rule 'never'"),
        ({"runs": [COPY], "measure": {"lengths": [1], "families": ["primes"]}}, "no input distribution 'primes'"),
        ({"runs": [COPY], "measure": {"lengths": [1], "seed": -1}}, "the seed of a measurement"),
        ({"tasks": ["copy"], "methods": ["ntp"], "measure": {"lengths": [1], "kind": "steps"}}, "has a fixed depth"),
        (
            {"tasks": ["copy"], "methods": ["ut"], "measure": {"lengths": [1], "kind": "steps"}},
            "run 1: ut decodes token by token: there are no steps to measure it after",
        ),
        (
            {"tasks": ["copy"], "methods": ["pondernet"], "measure": {"lengths": [1], "kind": "steps"}},
            "run 1: pondernet decodes token by token",
        ),
        *(
            ({"runs": [COPY], "measure": {"lengths": [1], "stops": [rule], "kind": kind}}, NOT_SAID)
            for rule in ("halt", "halt=0.3", "halt-mode")
            for kind in ("accuracy", "halting")
        ),
        (
            {"runs": [{"task": "copy", "set": TABLE}], "measure": {"lengths": "1:31"}},
            "run 1: rows of 66 tokens are longer than this model's table of 64 positions",
        ),
        (
            {"runs": [{"task": "copy", "method": "fop-pause", "set": TABLE}], "measure": {"lengths": "1:21"}},
            "run 1: rows of 66 tokens are longer than this model's table of 64 positions",
        ),
        (
            [COPY, {"task": "copy", "set": {**TABLE, "max_length": 31}}],
            "run 2: rows of 66 tokens are longer than this model's table of 64 positions",
        ),
        (
            [{"task": "copy", "set": {**TABLE, "max_length": 31, "model.positions": "randomised"}}],
            "run 1: rows of 66 tokens are longer than this model's table of 64 positions",
        ),
        (
            [{"task": "copy", "method": "fop-loop-fixed", "set": {"model.halting": "act"}}],
            "run 1: fop-loop-fixed has a fixed depth and no steps for halt to choose from",
        ),
        ([{"task": "copy", "set": {"init": "compiled"}}], "run 1: init=compiled needs the shape of the compiled copy"),
    ],
)  # fmt: skip
def test_malformed(data: object, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError) as raised:
        read_sweep(path)
    assert complaint in str(raised.value)
    assert str(path) in str(raised.value) or "lengths are written" in complaint
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        {"runs": [{"task": "copy", "set": TABLE}], "measure": {"lengths": "1:30"}},
        {"runs": [{"task": "copy", "method": "ut"}], "measure": {"lengths": [1], "stops": ["oracle"]}},
        {"tasks": ["copy"], "recipes": ["long"], "measure": {"lengths": [1], "stops": ["halt", "halt-mode"]}},
        [
            {"task": "copy", "set": {**TABLE, "max_length": 31, "steps": 3000, "interval": 100}}
        ],  # to length 30
    ],
)
def test_what_can_be_done_is_not_refused(data: object) -> None:
    sweep = parse_sweep(data, "x")
    assert sweep.runs
    if sweep.plan is not None:
        assert {sweep.plan.fit(run).lengths for run in sweep.runs} == {sweep.plan.lengths}


def test_a_compiled_start_in_its_own_architecture_is_no_fault() -> None:
    shape = {f"model.{name}": value for name, value in serial.to_json(recipes.architecture("copy")).items()}
    run = {"task": "copy", "method": "fop-loop-adaptive-wo", "set": {**shape, "init": "compiled", "noise": 0}}
    assert parse_sweep([run], "x").runs[0].config.model == recipes.architecture("copy")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not JSON"),
        (b"[{'task': 'copy'}]", "is not JSON"),
        (b"\xff\xfe", "is not a text"),
        (b"[" * 100_000, "is not JSON"),
        (b'[{"task": "copy", "task": "parity"}]', "has the field 'task' twice"),
        (b'[{"task": "copy", "set": {"lr": NaN}}]', "holds NaN"),
        (b" " * (plan.LARGEST_FILE + 1), "is too large"),
    ],
)
def test_files_that_are_no_json(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read_sweep(path)


def test_python_is_executed_only_when_told(tmp_path: Path) -> None:
    path, trace = tmp_path / "sweep.py", tmp_path / "trace"
    path.write_text(
        f"open({str(trace)!r}, 'w').close()\n"
        "sweep = [{'task': 'copy', 'set': {'lr': 10**-n}} for n in (3, 4)]\n"
    )
    with pytest.raises(InputError, match="is a program, and reading it means to run it: say --python"):
        read_sweep(path)
    disguised = path.rename(tmp_path / "sweep.json")
    with pytest.raises(InputError, match="is not JSON"):
        read_sweep(disguised)
    assert not trace.exists()
    assert [run.config.lr for run in read_sweep(disguised, python=True).runs] == [(1e-3,), (1e-4,)]
    assert trace.exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("runs = []", "does not assign its runs to the name 'sweep'"),
        ("sweep = 1 / 0", "could not be run: ZeroDivisionError"),
        ("sweep = (", "could not be run: SyntaxError"),
        ("sweep = {'tasks': ('copy',)}", "tasks must be a list"),
    ],
)
def test_python_that_fails(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.py").write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_sweep(tmp_path / "sweep.py", python=True)
