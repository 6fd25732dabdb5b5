"""Replicas: trained without the held-out lengths, chosen before anything longer is measured, resumed at any phase."""

from __future__ import annotations

import json
import shutil
from itertools import count
from pathlib import Path

import pytest
import torch
from test_trainer import OFTEN, after, same
from torch import nn

from looped import registry, runs
from looped.errors import InputError
from looped.evaluation import loading
from looped.evaluation.loading import load_models
from looped.model import Block
from looped.training import cost, population, trainer
from looped.training.config import replica_runs, replica_seed
from looped.training.trainer import train

SMALL = {"replicas": 3, "hold_out": 1, "steps": 40}


def selection(folder: Path) -> dict[str, object]:
    return {key: value for key, value in population.read(folder).items() if key != "recorded"}


def test_a_population_from_start_to_end(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = tiny(**SMALL), tmp_path / "run"
    asked: list[tuple[bool, int]] = []
    measure = trainer.measure

    def spy(subject, lengths, *args, **options):
        asked.extend(((folder / "selection.json").exists(), n) for n in lengths)
        return measure(subject, lengths, *args, **options)

    monkeypatch.setattr(trainer, "measure", spy)
    summary = train(config, folder, cadence=OFTEN)
    assert (summary.ending, summary.step, summary.steps) == ("finished", 40, 40)
    assert {n for recorded, n in asked if not recorded} == {
        3
    }  # what the replicas trained on, and nothing longer
    assert {n for recorded, n in asked if recorded} == {4, 6, 8}
    found = population.read(folder)
    assert (found["trained_to"], found["held_out"]) == (3, [4])
    assert [len(each["replicas"]) for each in found["populations"]] == [3, 3]
    for each in found["populations"]:
        assert each["chosen"] == population.signs.choose([row["signs"] for row in each["replicas"]])
        assert [row["seed"] for row in each["replicas"]] == [replica_seed(each["seed"], r) for r in range(3)]
    assert not (folder / "population").exists()
    loaded = loading.load(folder, torch.device("cpu"))  # an ordinary run
    assert loaded.subject.seeds == (0, 1)
    assert loading.selected(config) == (
        "each seed is the best of 3 replicas by lengths 4 to 4, then trained on for 10 steps"
    )
    assert (
        next(row["step"] for row in runs.read_metrics(folder) if row["kind"] == "training")
        > config.selected_at
    )
    before = (folder / "selection.json").read_bytes()
    assert train(config, folder, cadence=OFTEN).ending == "finished"
    assert (folder / "selection.json").read_bytes() == before


@pytest.mark.parametrize(
    "changes", [{}, {"ema": 0.9, "stack": 4, "late_family": "ones", "model": {"halting": "eoq"}}]
)
def test_stopped_after_every_few_steps_it_ends_the_same(
    tiny, tmp_path: Path, changes: dict[str, object]
) -> None:
    config = tiny(**SMALL, **changes)
    train(config, tmp_path / "whole", cadence=OFTEN)
    for sitting in count():
        ended = train(config, tmp_path / "run", cadence=OFTEN, stop=after(7 + sitting % 5)).ending
        if ended == "finished":
            break
        assert ended == "interrupted"
        assert sitting < 50
    assert sitting > 3
    same(tmp_path / "run", tmp_path / "whole")
    assert selection(tmp_path / "run") == selection(tmp_path / "whole")


@pytest.mark.parametrize("where", ["select", "chosen_weights", "tidy"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_around_the_choice_it_ends_the_same(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, moment: str
) -> None:
    config, real = tiny(**SMALL), getattr(population, where)
    train(config, tmp_path / "whole", cadence=OFTEN)

    def killed(*args):
        if moment == "after":
            real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(population, where, killed)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", cadence=OFTEN)
    assert train(config, tmp_path / "run", cadence=OFTEN).ending == "finished"
    same(tmp_path / "run", tmp_path / "whole")
    assert selection(tmp_path / "run") == selection(tmp_path / "whole")


def test_a_request_to_stop_while_replicas_are_judged(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = tiny(**SMALL), tmp_path / "run"
    monkeypatch.setattr(trainer, "LOOK_S", -1.0)
    choosing: list[bool] = []
    monkeypatch.setattr(trainer._Training, "_note", lambda self, sentence: choosing.append(True))
    assert train(config, folder, cadence=OFTEN, stop=lambda: bool(choosing)).ending == "interrupted"
    assert not (folder / "selection.json").exists()
    assert train(config, folder, cadence=OFTEN).ending == "finished"


def test_a_kept_replica_is_the_chosen_one_as_it_was(tiny, tmp_path: Path) -> None:
    config, folder = tiny(**SMALL, refine=0.0), tmp_path / "run"
    assert train(config, folder, keep_replicas=True).step == 40
    part = folder / "population" / "part-0"
    assert not list(part.glob("state*"))
    for each in population.read(folder)["populations"]:
        chosen = runs.load_seed(part / f"seed-{replica_seed(each['seed'], each['chosen'])}.safetensors")
        mine = runs.load_seed(folder / f"seed-{each['seed']}.safetensors")
        assert torch.equal(mine.row, chosen.row)
        assert (mine.step, mine.config, chosen.config.max_length) == (40, config, 3)


def test_in_parts_the_same_replicas_are_trained(tiny, tmp_path: Path) -> None:
    """Up to rounding, which differs with the number of models in a product."""
    for name, stack in (("whole", 0), ("parts", 4)):
        train(tiny(**SMALL, stack=stack), tmp_path / name, keep_replicas=True)
    rows = []
    for name, folders in (("whole", 1), ("parts", 2)):
        files = sorted((tmp_path / name).glob("population/part-*/seed-*"), key=lambda path: path.name)
        assert len({file.parent for file in files}) == folders
        rows.append(torch.stack([runs.load_seed(file).row for file in files]))
    torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-5)


def test_replicas_are_not_measured_before_the_choice(tiny, tmp_path: Path) -> None:
    config, folder = tiny(**SMALL), tmp_path / "run"
    train(config, folder, cadence=OFTEN, keep_replicas=True)
    part = folder / "population" / "part-0"
    seed = next(part.glob("seed-*"))
    assert len(load_models([part], torch.device("cpu"), "fp32", 0)[0].subject.seeds) == 6
    (folder / "selection.json").unlink()
    for path in (part, seed):
        with pytest.raises(InputError, match="none has been chosen yet"):
            loading.load(path, torch.device("cpu"))
        with pytest.raises(InputError, match="none has been chosen yet"):
            load_models([path], torch.device("cpu"), "fp32", 0)
    shutil.copy(seed, tmp_path / "seed-0.safetensors")  # elsewhere it is a model like any other
    assert loading.load(tmp_path / "seed-0.safetensors", torch.device("cpu"))


class Frozen(Block):
    """Holds a weight that is not trained and differs between seeds."""

    def __init__(self, config) -> None:
        super().__init__(config)
        self.register_buffer("fixed", torch.randn(config.width))


def test_replicas_of_a_block_of_ones_own(tiny, tmp_path: Path) -> None:
    class Sharp(Block):
        def __init__(self, config) -> None:
            super().__init__(config)
            self.gain = nn.Parameter(torch.ones(config.width))

        def forward(self, h):
            return super().forward(h) * self.gain

    name = registry.register(Sharp, kind="block")
    summary = train(tiny(**SMALL, block=name, refine=0.0), tmp_path / "run", keep_replicas=True)
    assert summary.ending == "finished"
    each = population.read(tmp_path / "run")["populations"][0]
    chosen = tmp_path / f"run/population/part-0/seed-{replica_seed(0, each['chosen'])}.safetensors"
    own = runs.load_seed(tmp_path / "run" / "seed-0.safetensors").weights
    assert all(torch.equal(value, own[key]) for key, value in runs.load_seed(chosen).weights.items())
    name = registry.register(Frozen, kind="block")
    with pytest.raises(InputError, match="fixed is not trained and differs"):
        train(tiny(**SMALL, block=name), tmp_path / "frozen")


def test_replicas_have_seeds_of_their_own(tiny) -> None:
    config = tiny(replicas=8, hold_out=2, lr=(1e-3, 2e-3), stack=5, steps=100)
    parts = replica_runs(config)
    assert [len(part.seeds) for part in parts] == [5, 5, 5, 1]
    seeds = [seed for part in parts for seed in part.seeds]
    assert len(set(seeds)) == 16
    assert min(seeds) > 1000
    lrs = {seed: lr for part in parts for seed, lr in zip(part.seeds, part.seed_lrs, strict=True)}
    assert {lrs[replica_seed(1, r)] for r in range(8)} == {2e-3}
    assert {(part.max_length, part.steps, part.replicas) for part in parts} == {(2, 75, 1)}
    again = [seed for part in replica_runs(tiny(replicas=4, hold_out=2)) for seed in part.seeds]
    assert set(again) < set(seeds)  # more replicas keep those there were


def test_the_cost_is_that_of_all_phases(tiny) -> None:
    on = cost.device("cpu")
    config = tiny(replicas=4, hold_out=2, steps=400)
    parts = sum(cost.estimate(part, on).seconds for part in replica_runs(config))
    whole = cost.estimate(config, on).seconds
    assert parts < whole < cost.estimate(tiny(seeds=tuple(range(8)), steps=400), on).seconds


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"replicas": 0}, "replicas must be at least 1"),
        ({"replicas": 2}, "hold_out must be from 1 to 3, not 0"),
        ({"replicas": 2, "hold_out": 4}, "hold_out must be from 1 to 3, not 4"),
        ({"replicas": 2, "hold_out": 1, "refine": 1.0}, "refine must be from 0 to below 1"),
        ({"replicas": 2, "hold_out": 1, "refine": 0.9, "steps": 2}, "leaves none for the replicas"),
        ({"replicas": 1000, "hold_out": 1}, "at most 1,024 replicas"),
        ({"replicas": 2, "hold_out": 1, "method": "fop-loop-fixed"}, "replicas are for adaptive methods"),
    ],
)
def test_bad_numbers_are_refused(tiny, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tiny(**changes)


def test_hold_out_without_replicas_is_refused(tiny, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hold_out=1 is for choosing among replicas"):
        train(tiny(hold_out=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_record_and_a_lost_replica_are_named(tiny, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = tiny(**SMALL)
    train(config, folder, cadence=OFTEN)
    whole = (folder / "selection.json").read_bytes()
    for text in ("[]", '{"populations": [{"seed": 0, "chosen": 3, "replicas": []}]}', "{"):
        (folder / "selection.json").write_text(text)
        with pytest.raises(InputError, match=r"selection\.json"):
            population.read(folder)
    for state in folder.glob("state*"):
        state.unlink()
    (folder / "selection.json").write_text(json.dumps({"populations": []}))
    with pytest.raises(InputError, match="the choice of another run"):
        train(config, folder, cadence=OFTEN)
    (folder / "selection.json").write_bytes(whole)
    with pytest.raises(InputError, match="is gone, and with it a replica"):
        train(config, folder, cadence=OFTEN)
