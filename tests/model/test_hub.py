"""Published models: folders that the hub knows, written and read, bit for bit, and refused where they are malformed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import looped
import looped.zoo as zoo
from looped import registry, runs
from looped.errors import InputError
from looped.model import hub
from looped.model.config import ModelConfig
from looped.model.hub import HubFacts
from looped.model.looped import LoopedTransformer
from looped.model.weights import Layout
from looped.runs import Trained
from looped.training.recipes import make, with_fields

ROOT = Path(__file__).parents[2]
QUESTIONS = {
    "addition": ["1011+0110", "1+1"], "multiplication": ["11*110", "1*101"], "unique_set": ["1 4 2 2 4 3"],
    "cycle_navigation": ["RLSLL", "R"],
    "missing_duplicate": ["01100_10", "1"],
}  # fmt: skip
ANSWER = """
import json, sys, looped
found = {}
for name, questions in json.load(sys.stdin).items():
    model = looped.load(f"{sys.argv[1]}/{name}")
    found[name] = [[a.answer, a.steps, a.confidence] for a in model.solve(questions)]
print(json.dumps(found))
"""


@pytest.fixture
def published(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    runs.publish(runs.load_seed(zoo.path("copy-long")), folder, "copy-long")
    return folder


def test_a_flat_configuration_has_each_name_once() -> None:
    assert not {each.name for each in fields(HubFacts)} & {each.name for each in fields(ModelConfig)}


def test_every_shipped_model_answers_the_same_in_another_process(tmp_path: Path) -> None:
    asked, said = {}, {}
    for name in zoo.names():
        trained = runs.load_seed(zoo.path(name))
        runs.publish(trained, tmp_path / name, name)
        assert torch.equal(runs.load_published(tmp_path / name).row, trained.row)
        asked[name] = QUESTIONS.get(trained.config.task, ["1101", "0"])
        said[name] = [[a.answer, a.steps, a.confidence] for a in looped.load(name).solve(asked[name])]
    done = subprocess.run(
        [sys.executable, "-c", ANSWER, str(tmp_path)], input=json.dumps(asked), capture_output=True, text=True,
        check=True, cwd=ROOT, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert json.loads(done.stdout) == said


def test_every_command_reads_a_folder(published: Path, cli: Any, tmp_path: Path) -> None:
    measure = ("--lengths", "3", "--samples", "4", "--json")
    assert json.loads(cli("solve", "copy", "101", "--model", published, "--json").out)["model"] == str(
        published
    )
    assert json.loads(cli("evaluate", published, *measure).out)["rows"][0]["accuracy"] == 1.0
    assert cli("discover", published, *measure).code == 0
    assert cli("trace", "copy", "101", "--model", published).code == 0
    assert cli("compare", "copy", "--model", published, "--length", "3", "--samples", "8").code == 0
    sweep = ("--lengths", "3", "--samples", "4", "--families", "uniform", "--step-samples", "0")
    assert cli("bench", "ladder", published, *sweep, "--out", tmp_path / "sweep.json").code == 0
    from looped.explorer import queries

    assert next(iter(queries.all_models([published], shipped=[]))) == "model"
    assert cli("publish", published, tmp_path / "again").code == 0
    assert (tmp_path / "again" / hub.WEIGHTS).read_bytes() == (published / hub.WEIGHTS).read_bytes()


def test_publish_a_name_and_a_run(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = json.loads(cli("publish", "parity-long", "p", "--json").out)
    assert (told["model"], told["task"]) == ("parity-long", "parity")
    small = ("--steps", "2", "--max-length", "2", "--set", "model.width=8")
    assert cli("train", "copy", "--recipe", "quick", "--seeds", "3", *small, "--out", "run").code == 0
    assert cli("publish", "run", "q").code == 0
    assert torch.equal(runs.load_published(Path("q")).row, runs.load_seed(Path("run/seed-3.safetensors")).row)
    assert runs.load_published(Path("q")).config == runs.read_config(Path("run"))
    assert "model-index" in Path("q/README.md").read_text("utf-8")  # from the run's own evaluation
    assert cli("publish", "run", "q").err == "looped: q is not empty: choose another folder\n"
    with pytest.raises(InputError, match="run is a run's folder"):
        LoopedTransformer.from_pretrained("run")


def test_a_module_saves_and_loads_itself(tmp_path: Path) -> None:
    net = looped.load("copy").net
    with torch.no_grad():
        net.readout.bias += 0.25  # tuned further
    net.save_pretrained(tmp_path / "tuned")
    again = LoopedTransformer.from_pretrained(tmp_path / "tuned")
    assert not again.training
    tokens = torch.tensor([[0, 1, 0, 2, 3, 3]])
    assert torch.equal(again(tokens, 3).logits, net.eval()(tokens, 3).logits)
    assert torch.equal(looped.load(tmp_path / "tuned").net.readout.bias, net.readout.bias)
    assert load_file(tmp_path / "tuned" / hub.WEIGHTS).keys() == net.state_dict().keys()


def test_a_module_without_a_task_says_so(tmp_path: Path) -> None:
    net = LoopedTransformer(looped.ModelConfig(vocab=5, layers=1, heads=2, width=8, bands=(2,)))
    net.save_pretrained(tmp_path)
    assert LoopedTransformer.from_pretrained(tmp_path).config == net.config
    with pytest.raises(InputError, match="names no task"):
        looped.load(tmp_path)
    (tmp_path / hub.CARD).write_text("mine", "utf-8")
    net.save_pretrained(tmp_path, config={"task": "copy"})
    assert (tmp_path / hub.CARD).read_text("utf-8") == "mine"
    with pytest.raises(InputError, match="unknown field 'tsk'"):
        net.save_pretrained(tmp_path, config={"tsk": "copy"})


def test_a_universal_transformer(tmp_path: Path) -> None:
    config = with_fields(make("copy", "ut", "quick", (0,)), ["model.width=8", "model.heads=2"])
    trained = Trained(config, 0, 5, Layout(config.model).initialise([0])[0], None)
    runs.publish(trained, tmp_path, "ut")
    assert runs.load_published(tmp_path).config == config
    row = runs.load_published(tmp_path).row
    assert torch.equal(
        Layout(config.model).views(row[None])["embed"], Layout(config.model).views(trained.row[None])["embed"]
    )


def test_a_block_of_ones_own_is_given_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.KINDS, "block", replace(registry.KINDS["block"], known={}, files={}))
    (tmp_path / "mine.py").write_text("raise SystemExit('run')", "utf-8")
    config = replace(make("copy", "fop-loop-adaptive", "quick", (0,)), block="mine.py:Mine")
    net = LoopedTransformer(config.model, lambda shape: torch.nn.Linear(shape.width, shape.width))
    trained = Trained(config, 0, 5, torch.zeros(1), None, net.state_dict())
    runs.publish(trained, tmp_path, "mine")
    with pytest.raises(InputError, match=r"--block FILE\.py:Mine"):
        looped.load(tmp_path)
    with pytest.raises(InputError, match=r"needs the block mine\.py:Mine"):
        LoopedTransformer.from_pretrained(tmp_path)
    again = LoopedTransformer.from_pretrained(tmp_path, block=lambda c: torch.nn.Linear(c.width, c.width))
    assert torch.equal(again.block.weight, net.block.weight)


# --- the hub -----------------------------------------------------------------------------------------------------


def cached(folder: Path, cache: Path) -> Path:
    """A folder as the hub's cache holds it after a download: links in a snapshot, files among the blobs."""
    model = cache / "models--someone--copy"
    snapshot = model / "snapshots" / ("0" * 40)
    for part in (snapshot, model / "blobs", model / "refs"):
        part.mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40, "utf-8")
    for file in folder.iterdir():
        shutil.copy(file, model / "blobs" / file.stem)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.stem}")
    return snapshot


def test_by_name_from_the_hubs_cache(
    published: Path, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    snapshot = cached(published, tmp_path / "cache")
    found = LoopedTransformer.from_pretrained(
        "someone/copy", cache_dir=tmp_path / "cache", local_files_only=True
    )
    assert torch.equal(found.readout.weight, looped.load("copy").net.readout.weight)
    assert looped.load(snapshot).solve("101").correct
    asked = []

    def download(name: str, file: str, **options: Any) -> str:
        asked.append((name, file))
        return str(snapshot / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert cli("solve", "copy", "101", "--model", "hub:someone/copy").out.startswith("101: 101,")
    assert cli("evaluate", "hub:someone/copy", "--lengths", "3", "--samples", "2").code == 0
    assert set(asked) == {("someone/copy", hub.CONFIG), ("someone/copy", hub.WEIGHTS)}  # and no other file


def test_what_cannot_be_fetched_gets_a_sentence(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("hub:someone/nothing", "hub:no/such/name"):
        told = cli("solve", "copy", "101", "--model", name)
        assert (told.code, told.out) == (2, "")
        assert "could not be fetched from the hub" in told.err
        assert told.err.count("\n") == 1
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'looped[hub]'" in cli("solve", "copy", "101", "--model", "hub:a/b").err


def test_a_folder_needs_no_huggingface_hub(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    looped.load(published).net.save_pretrained(published.parent / "again")
    assert looped.load(published.parent / "again").solve("101").correct


def test_push_to_hub_uploads_such_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    mixin = pytest.importorskip("huggingface_hub.hub_mixin")
    seen: dict[str, Any] = {}

    class Api:
        def __init__(self, token: str | None = None) -> None: ...

        def create_repo(self, repo_id: str, **options: Any) -> Any:
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, *, repo_id: str, folder_path: Path, **options: Any) -> str:
            seen.update(
                name=repo_id, files=sorted(os.listdir(folder_path)), facts=hub.read(Path(folder_path))[1]
            )
            return "the address"

    monkeypatch.setattr(mixin, "HfApi", Api)
    assert looped.load("copy").net.push_to_hub("someone/copy", private=True) == "the address"
    assert (seen["name"], seen["facts"].task) == ("someone/copy", "copy")
    assert seen["files"] == ["README.md", "config.json", "model.safetensors"]


def test_the_hub_understands_the_card(tmp_path: Path, cli: Any) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    assert cli("publish", "copy-long", tmp_path / "m").code == 0
    card = huggingface_hub.ModelCard.load(tmp_path / "m" / hub.CARD)
    assert (card.data.library_name, card.data.pipeline_tag) == ("looped", "text-generation")
    assert f"arxiv:{hub.PAPER}" in card.data.tags
    rows = zoo.card("copy-long").rows
    assert [result.metric_value for result in card.data.eval_results] == [row.accuracy for row in rows]
    assert [result.dataset_args for result in card.data.eval_results] == [
        {"length": row.length} for row in rows
    ]


# --- malformed folders -------------------------------------------------------------------------------------------


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = json.loads((folder / hub.CONFIG).read_text("utf-8"))
        kept = {key: value for key, value in (data | changes).items() if value != "left out"}
        (folder / hub.CONFIG).write_text(json.dumps(kept), "utf-8")

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        tensors = load_file(folder / hub.WEIGHTS)
        change(tensors)
        save_file(tensors, folder / hub.WEIGHTS, {"format": "pt"})

    return changed


def link(name: str) -> Callable[[Path], None]:
    def linked(folder: Path) -> None:
        shutil.move(folder / name, folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return linked


def pickle(folder: Path) -> None:
    (folder / hub.WEIGHTS).rename(folder / "pytorch_model.bin")


MALFORMED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / hub.CONFIG).unlink(), "it has no config.json"),
    "no weights": (lambda f: (f / hub.WEIGHTS).unlink(), "holds no trained weights"),
    "a pickle": (pickle, "holds no trained weights"),
    "config is no JSON": (lambda f: (f / hub.CONFIG).write_text("{", "utf-8"), "is not JSON"),
    "config is a list": (lambda f: (f / hub.CONFIG).write_text("[]", "utf-8"), "must be an object of fields"),
    "unknown field": (config(widht=3), "unknown field 'widht'"),
    "unknown setting": (config(training={"lrr": 3}), "unknown field 'lrr'"),
    "another library's": (config(model_type="llama"), "model_type must be one of looped"),
    "no vocabulary": (config(vocab="left out"), "lacks the field 'vocab'"),
    "width of text": (config(width="32"), "width must be a whole number"),
    "NaN in config": (config(init_std=float("nan")), "NaN"),
    "another width": (config(width=64), "do not fit its configuration"),
    "a huge width": (config(width=1 << 20), "do not fit its configuration"),
    "many layers": (config(layers=10_000), "says it has 10000 layers"),
    "negative seed": (config(seed=-1), "seed must not be negative"),
    "unknown task": (config(task="sorting"), "unknown task 'sorting'"),
    "huge config": (lambda f: os.truncate(f / hub.CONFIG, 1 << 40), "too large for a model's configuration"),
    "truncated": (lambda f: os.truncate(f / hub.WEIGHTS, 1000), "truncated, damaged"),
    "empty weights": (lambda f: os.truncate(f / hub.WEIGHTS, 0), "truncated, damaged"),
    "sparse weights": (lambda f: os.truncate(f / hub.WEIGHTS, 1 << 42), "too large for a checkpoint"),
    "padded weights": (lambda f: os.truncate(f / hub.WEIGHTS, 1 << 30), "larger than what it says"),
    "NaN": (weights(lambda t: t["readout.bias"].fill_(float("nan"))), "must hold finite numbers"),
    "missing weight": (weights(lambda t: t.pop("readout.bias")), "'readout.bias' is of shape None"),
    "foreign weight": (weights(lambda t: t.update(more=torch.zeros(2))), "'more' is of shape (2,), not None"),
    "turned weight": (weights(lambda t: t.update({"readout.bias": torch.zeros(3)})), "'readout.bias' is of shape (3,)"),
    "half numbers": (weights(lambda t: t.update({k: v.half() for k, v in t.items()})), "of type float32"),
    "config is a link": (link(hub.CONFIG), "is a link to elsewhere"),
    "weights are a link": (link(hub.WEIGHTS), "is a link to elsewhere"),
    "weights are a pipe": (lambda f: ((f / hub.WEIGHTS).unlink(), os.mkfifo(f / hub.WEIGHTS)), "a named pipe"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_folder_gets_one_sentence(case: str, published: Path, cli: Any) -> None:
    harm, sentence = MALFORMED[case]
    harm(published)
    told = cli("solve", "copy", "101", "--model", published)
    assert (told.code, told.out) == (2, "")
    assert sentence in told.err
    assert told.err.count("\n") == 1
    with pytest.raises(InputError):
        looped.load(published)
