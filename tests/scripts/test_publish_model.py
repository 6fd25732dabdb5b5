"""Publishing a run: which seed, which rows, shorter numbers only where nothing changes, a sentence for the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import looped
import looped.zoo as zoo
from looped import InputError, runs, serial
from looped.model.weights import Layout
from looped.training import recipes
from looped.training.config import TrainConfig
from scripts.publish_model import Publication, add, choose, command, main, reason

Cli = Callable[..., tuple[int, str, str]]
CONFIG = replace(recipes.make("copy", "fop-loop-adaptive", "quick", (0, 4)), max_length=4)


@pytest.fixture(autouse=True)
def empty_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "zoo"
    folder.mkdir()
    monkeypatch.setattr(zoo, "FOLDER", folder)
    zoo._read.cache_clear()
    yield folder
    zoo._read.cache_clear()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run's folder with fresh weights: how good they are does not matter here."""
    folder = tmp_path / "run"
    with runs.Run(folder, CONFIG) as run:
        for seed in (0, 4):
            run.save_seed(seed, Layout(CONFIG.model).initialise([seed])[0], 100)
        for step, first, second in ((50, 0.0, 9.0), (91, 0.5, 0.3), (100, 0.5, 0.2)):
            same = {"kind": "training", "step": step, "training": True, "seconds": step / 10}
            run.log([same | {"seed": seed, "loss": loss} for seed, loss in ((0, first), (4, second))])
    return folder


def result(path: Path, config: TrainConfig, seeds: tuple[int, ...] = (0, 4)) -> Path:
    rows = [
        {"task": config.task, "method": config.method, "recipe": config.recipe, "seed": seed, "length": length,
         "stop": stop, "accuracy": accuracy, "samples": 64, "mean_steps": float(length)}
        for seed in seeds
        for length, accuracy in ((2, 1.0), (4, 0.5))
        for stop in ("oracle", "converged")
    ]  # fmt: skip
    origin = {"commit": "abc", "device": "a GPU", "precision": "bf16", "wall_seconds": 2.0}
    data = {"provenance": {**origin, "runs": [{"config": serial.to_json(config)}]}, "rows": rows}
    path.write_text(json.dumps(data))
    return path


def test_a_run_with_its_results(trained: Path, tmp_path: Path) -> None:
    file = result(tmp_path / "r.json", CONFIG)
    card = add(Publication(trained, "copy-quick", (file,), trained_on="a GPU"))
    assert (card.seed, card.task, card.max_length, card.steps) == (4, "copy", 4, 100)
    assert (
        card.chosen
        == "the lowest mean training loss over the last tenth of its run (by seed: 0: 0.5, 4: 0.25)"
    )
    assert card.trained.seconds == 10.0
    assert card.trained.command == (
        "looped train copy --method fop-loop-adaptive --recipe quick --seeds 0,4 --set max_length=4"
    )
    assert (card.measured.device, card.measured.precision, card.measured.seconds) == ("a GPU", "bf16", 2.0)
    assert card.accuracies() == {2: 1.0, 4: 0.5}
    assert card.holds_to() == 2
    assert len(card.rows) == 4
    assert zoo.card("copy-quick") == card
    assert zoo.card("copy-quick").config == serial.to_json(CONFIG)


def test_what_is_shipped_answers_by_its_name(trained: Path, tmp_path: Path) -> None:
    add(Publication(trained, "copy-fast", (result(tmp_path / "r.json", CONFIG),)))
    whole = runs.load_seed(trained / "seed-4.safetensors")
    for name in ("copy", "copy-fast"):
        model = looped.load(name)
        assert model.name == "copy-fast"
        assert model.card is not None
        assert model.card.seed == 4
        assert torch.equal(model.weights.embed[0], Layout(CONFIG.model).views(whole.row[None])["embed"][0])
    add(Publication(trained, "copy-long", (result(tmp_path / "r.json", CONFIG),), seed="0"))
    assert looped.load("copy").name == "copy-long"
    assert zoo.card("copy-long").chosen.startswith("named by hand")
    lines = repr(looped.zoo()).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["name", "copy-fast", "copy-long*"]
    assert "copy-long*" in looped.zoo()._repr_html_()


def test_a_bare_checkpoint_with_its_history(trained: Path, tmp_path: Path) -> None:
    file, bare = result(tmp_path / "r.json", CONFIG), tmp_path / "c.safetensors"
    bare.write_bytes((trained / "seed-4.safetensors").read_bytes())
    card = add(Publication(bare, "copy-quick", (file,), history=trained))
    assert card.chosen.startswith("the lowest mean training loss")
    assert card.trained.seconds == 10.0
    assert "not known" in add(Publication(bare, "copy-quick", (file,))).chosen
    by_hand = add(Publication(trained / "seed-0.safetensors", "copy-quick", (file,), history=trained))
    assert by_hand.chosen.startswith("named by hand")
    with pytest.raises(InputError, match="holds seed 4, not 0"):
        add(Publication(bare, "copy-quick", (file,), seed="0"))
    with (
        runs.Run(tmp_path / "other", replace(CONFIG, steps=5)),
        pytest.raises(InputError, match="another run"),
    ):
        add(Publication(bare, "copy-quick", (file,), history=tmp_path / "other"))


def test_without_results_it_is_measured(trained: Path) -> None:
    card = add(Publication(trained, "copy-quick", lengths=(1, 2), samples=8, device="cpu"))
    assert [(row.length, row.samples, row.stop) for row in card.rows] == [(1, 8, "oracle"), (2, 8, "oracle")]


def test_shorter_numbers_where_nothing_changes(trained: Path, empty_zoo: Path) -> None:
    card = add(Publication(trained, "copy-half", lengths=(1, 2), samples=16, half=True, device="cpu"))
    assert card.stored == "float16"
    assert "16 problems per length" in card.stored_why
    whole, half = runs.load_seed(trained / "seed-4.safetensors"), runs.load_seed(zoo.path("copy-half"))
    assert torch.equal(half.row, whole.row.half().float())
    assert half.config == whole.config
    sizes = [(trained / "seed-4.safetensors").stat().st_size, zoo.path("copy-half").stat().st_size]
    assert sizes[1] < 0.6 * sizes[0]


def test_shorter_numbers_are_refused_where_they_matter(
    trained: Path, monkeypatch: pytest.MonkeyPatch, empty_zoo: Path
) -> None:
    from scripts import publish_model

    real = publish_model.measure
    answers = iter([1.0, 0.4])

    def two_accuracies(*words: object, **options: object) -> list[object]:
        return [replace(row, accuracy=next(answers)) for row in real(*words, **options)]  # type: ignore[arg-type]

    rows = add(Publication(trained, "copy-quick", lengths=(2,), samples=4, device="cpu")).rows
    assert rows
    monkeypatch.setattr(publish_model, "measure", two_accuracies)
    monkeypatch.setattr(publish_model, "_rows", lambda *words: (rows, publish_model.Origin()))
    with pytest.raises(InputError, match=r"float16 changes the accuracy at length 2: 1.0000 and 0.4000"):
        add(Publication(trained, "copy-half", lengths=(2,), samples=16, half=True, device="cpu"))
    assert not (empty_zoo / "copy-half.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "../copy"}, "a shipped model's name is of letters"),
        ({"seed": "best"}, "auto or a whole number"),
        ({"seed": "9"}, "there is no checkpoint"),
    ],
)
def test_bad_orders(trained: Path, tmp_path: Path, change: dict[str, str], sentence: str) -> None:
    order = Publication(trained, "copy-quick", (result(tmp_path / "r.json", CONFIG),))
    with pytest.raises(InputError, match=sentence):
        add(replace(order, **change))  # type: ignore[arg-type]
    assert zoo.names() == []


def test_results_of_something_else_are_refused(trained: Path, tmp_path: Path) -> None:
    other = result(tmp_path / "other.json", replace(CONFIG, steps=5))
    with pytest.raises(InputError, match="measured another run"):
        add(Publication(trained, "copy-quick", (other,)))
    unmeasured = result(tmp_path / "zero.json", CONFIG, seeds=(0,))
    with pytest.raises(InputError, match="no accuracy of seed 4"):
        add(Publication(trained, "copy-quick", (unmeasured,)))
    twice = result(tmp_path / "twice.json", CONFIG)
    with pytest.raises(InputError, match="measures a length twice"):
        add(Publication(trained, "copy-quick", (twice, twice)))


def test_too_much_for_the_zoo(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.publish_model.LARGEST", 1000)
    with pytest.raises(InputError, match="all models together would take"):
        add(Publication(trained, "copy-quick", (result(tmp_path / "r.json", CONFIG),)))


def test_reasons() -> None:
    assert reason({3: 0.1}, 3).startswith("the only seed of its run (mean training loss")
    assert reason({0: 0.1, 1: 0.2}, 1) == "named by hand (by seed: 0: 0.1, 1: 0.2)"


def test_a_chosen_replica_says_so(tmp_path: Path) -> None:
    config = replace(CONFIG, replicas=8, hold_out=2)
    with runs.Run(tmp_path / "run", config) as run:
        run.save_seed(4, Layout(config.model).initialise([4])[0], 1000)
    _, how, _ = choose(tmp_path / "run", "4")
    assert how.endswith(
        "; each seed is the best of 8 replicas by lengths 3 to 4, then trained on for 250 steps"
    )
    assert "--set replicas=8 --set hold_out=2" in command(config)


def test_the_command_names_what_differs_from_the_recipe() -> None:
    config = replace(CONFIG, lr=(0.001, 0.002), model=replace(CONFIG.model, bands=(2, 2)), max_length=10)
    assert command(config).endswith("--seeds 0,4 --set model.bands=2,2 --set lr=0.001,0.002")


def test_the_command_line(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = result(tmp_path / "r.json", CONFIG)
    assert main(["add", str(trained), "--name", "copy-quick", "--results", str(file)]) == 0
    assert capsys.readouterr().out.startswith("copy-quick: seed 4, the lowest mean training loss")
    assert main([]) == 0
    assert "copy-quick*" in capsys.readouterr().out
    assert main(["add", str(tmp_path / "none"), "--name", "x"]) == 2
    assert capsys.readouterr().err.startswith("looped: there is no checkpoint")


def test_a_damaged_card_is_a_sentence(trained: Path, tmp_path: Path, empty_zoo: Path) -> None:
    add(Publication(trained, "copy-quick", (result(tmp_path / "r.json", CONFIG),)))
    file = empty_zoo / "copy-quick.json"
    for text, sentence in (
        ("{", "is not JSON"),
        ("[]", "must be an object of fields"),
        (file.read_text().replace('"seed": 4', '"seed": "4"'), "seed must be a whole number"),
        (file.read_text().replace('"config": {', '"config": 1, "c": {'), "unknown field 'c'"),
    ):
        file.write_text(text)
        zoo._read.cache_clear()
        with pytest.raises(InputError, match=sentence):
            zoo.card("copy-quick")
