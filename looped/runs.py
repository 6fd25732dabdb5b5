"""A run is a folder. This file knows its layout, nothing of how a run is trained.

    config.json                  what was asked for, and by which version
    metrics.jsonl                what happened, one object per line, appended as it happens
    state.safetensors            all seeds at the last checkpoint, with all it takes to go on
    state.previous.safetensors   the checkpoint before that, should the last one be damaged
    seed-0.safetensors …         one seed's evaluated weights by name, without the seed axis
    *.damaged, metrics.damaged.jsonl   what could not be read, set aside
    selection.json, population/  of a run of replicas: the choice among them, and they themselves
    lock                         held while a process trains here
    *.tmp                        what is being written; left by a kill, removed by the next training here

Every file is replaced whole (`looped.checkpoints`); `metrics.jsonl` is only appended to, synced before each
checkpoint, and cut back to the checkpoint when training goes on from there. Nothing here is ever run: files are
tensors and JSON, their sizes are bounded before they are read, and what is written goes through no link.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped import __version__, checkpoints, devices, files, serial
from looped.checkpoints import Check, Metadata, Shapes, Verify
from looped.errors import InputError
from looped.model import hub
from looped.model.hub import HubFacts
from looped.model.looped import LoopedTransformer, checkpoint_weights, load_checkpoint_weights
from looped.model.weights import Layout, check_numbers, check_shapes
from looped.result_files import fits, is_count
from looped.training.config import TrainConfig

CONFIG, METRICS = "config.json", "metrics.jsonl"
STATE, PREVIOUS = "state.safetensors", "state.previous.safetensors"
SELECTION, POPULATION = "selection.json", "population"  # of a run of replicas: see `training.population`
OWN = re.compile(
    r"(config|selection)\.json|metrics(\.damaged)?\.jsonl|(state(\.previous)?|seed-\d+)\.safetensors"
)
STATE_KIND, SEED_KIND = "looped-state-1", "looped-seed-1"
STORED = {"float32": torch.float32, "float16": torch.float16}  # types of numbers in a seed's file
DAMAGED = "metrics.damaged.jsonl"  # lines of the metrics that could not be read
LARGEST_CONFIG = 1 << 20  # bytes
LARGEST_SELECTION = 1 << 24  # bytes
LARGEST_METRICS = 1 << 31  # bytes
LARGEST_LINE = 1 << 20  # bytes of one line of the metrics
LOOKING_S = 0.3  # a process that only checks a lock holds it for far less
MOST_DIGITS = 19  # of a seed or a step


class Elsewhere(InputError):
    """Raised by a check for a good checkpoint that cannot be used here: it is left where it is."""


@dataclass(frozen=True)
class Trained:
    """One seed's checkpoint, read back."""

    config: TrainConfig
    seed: int
    step: int  # gradient steps taken
    row: Float[Tensor, "P"]  # flat weights: as `Layout` orders them, or a block's own one after the other
    commit: str | None  # of the code that trained it, if known
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # by name, of a run with the user's own block


class Run:
    """A run's folder held for training: no other process trains in it until `close`."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config
        self._claim()
        self._lock = _lock(folder)
        try:
            for name, path in checkpoints.temporary_files(folder):
                if OWN.fullmatch(name):  # left half written by a killed process: no other one writes here now
                    path.unlink(missing_ok=True)
            self._settle()
            self._metrics = self._open_metrics()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the folder."""
        with contextlib.suppress(OSError):
            self._metrics.close()
        self._lock.close()

    def _claim(self) -> None:
        """Makes the folder, or refuses one that holds something else."""
        folder = self.folder
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, not a folder for a run")
        if folder.is_dir() and not (folder / CONFIG).exists():
            ours = {path.name for name, path in checkpoints.temporary_files(folder) if name == CONFIG}
            strange = sorted({path.name for path in folder.iterdir()} - {"lock", CONFIG + ".tmp"} - ours)
            if strange:
                raise InputError(
                    f"{folder} is no run's folder (it holds {strange[0]}); choose another with --out"
                )
        with checkpoints.disk(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def _settle(self) -> None:
        """Writes the configuration into a new folder, or compares it with the one that is there."""
        if not (self.folder / CONFIG).exists():
            data = {"looped": __version__, "config": serial.to_json(self.config)}
            checkpoints.write_json(self.folder / CONFIG, data, indent=2)
            return
        odd = serial.differences(read_config(self.folder), self.config)
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise InputError(
                f"{self.folder} holds a run of another configuration ({'; '.join(odd[:3])}{more}); "
                "nothing was changed: choose another --out"
            )

    def _check_lock(self) -> None:
        """Raise if another start has the folder, which is possible where the lock's file was deleted by hand.

        A lock belongs to the file, not to its name. A name that is gone is made again, for others to see.
        """
        own = os.fstat(self._lock.fileno())
        try:
            found = os.stat(self.folder / "lock")
        except FileNotFoundError:
            old, self._lock = self._lock, _lock(self.folder)
            old.close()
            return
        if not os.path.samestat(own, found):
            raise InputError(
                f"the lock of {self.folder} was deleted and another start has taken the run over; this one stops "
                "and has written nothing since"
            )

    # --- metrics -------------------------------------------------------------------------------------------
    def _open_metrics(self) -> IO[bytes]:
        _plain_file(self.folder / METRICS)
        return files.open_appending(self.folder / METRICS, "a file of metrics")

    def log(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Appends rows to the metrics; each has a `step`."""
        self._check_lock()
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        with checkpoints.disk(self.folder / METRICS):
            self._metrics.write(text.encode())
            self._metrics.flush()

    def rewind(self, step: int, evaluated: bool = True) -> list[str]:
        """Cuts the metrics back to what was known at a gradient step, and a half-written line with it.

        Where the step is still to be evaluated, that is what was known before it. Damaged lines among the good ones are
        set aside; returns a sentence if there were any.
        """
        good: list[bytes] = []
        bad: list[bytes] = []
        waiting: list[bytes] = []  # damaged lines that no good one has followed yet
        for row, line in _lines(self.folder / METRICS):
            if row is None:
                waiting.append(line)
            elif row["step"] > step or (
                row["step"] == step and row.get("kind") == "evaluation" and not evaluated
            ):
                break
            else:
                good.append(line)
                bad += waiting
                waiting = []
        if not bad:
            self._metrics.truncate(sum(map(len, good)))
            return []
        self._metrics.close()
        _plain_file(self.folder / DAMAGED)
        checkpoints.write(self.folder / DAMAGED, b"".join(line.rstrip(b"\n") + b"\n" for line in bad))
        checkpoints.write(self.folder / METRICS, b"".join(good))
        self._metrics = self._open_metrics()
        many = "a damaged line was" if len(bad) == 1 else f"{len(bad)} damaged lines were"
        return [f"{many} taken out of {self.folder / METRICS} and set aside in {DAMAGED}"]

    # --- checkpoints ---------------------------------------------------------------------------------------
    def save_state(self, tensors: Mapping[str, Tensor], metadata: Metadata) -> Path:
        """Makes this the last checkpoint, and the last one the one before."""
        self._check_lock()
        path, previous = self.folder / STATE, self.folder / PREVIOUS
        with checkpoints.disk(self.folder / METRICS):
            os.fsync(self._metrics.fileno())
        checkpoints.save(path, STATE_KIND, tensors, {**metadata, "config": self._config_text}, keep=previous)
        return path

    def load_state(
        self, check: Check, verify: Verify = lambda tensors: None
    ) -> tuple[tuple[Metadata, dict[str, Tensor]] | None, list[str]]:
        """The last good checkpoint, if there is any, and a sentence for each that had to be set aside."""

        def whole(metadata: Metadata, shapes: Shapes) -> None:
            if _config_in(metadata) != self.config:
                raise InputError("it belongs to a run of another configuration")
            check(metadata, shapes)

        aside: list[str] = []
        for path in (self.folder / STATE, self.folder / PREVIOUS):
            if not path.exists():
                continue
            try:
                return checkpoints.load(path, STATE_KIND, whole, verify), aside
            except Elsewhere:
                raise
            except InputError as error:
                aside.append(f"{error}; it was set aside as {_set_aside(path).name}")
        if aside:
            raise InputError(
                f"{self.folder} has no good checkpoint left: {'; '.join(aside)}; "
                "the same command again starts from the beginning"
            )
        return None, aside

    def save_seed(self, seed: int, weights: Tensor | Mapping[str, Tensor], step: int) -> Path:
        """Writes one seed's weights by name; a flat row is the stock block's, as `Layout` orders it."""
        if isinstance(weights, Tensor):
            weights = Layout(self.config.model).to_dict(weights)
        path = self.folder / f"seed-{int(seed)}.safetensors"
        metadata = {"config": self._config_text, "seed": str(seed), "step": str(step), "looped": __version__}
        if devices.commit():
            metadata["commit"] = str(devices.commit())
        checkpoints.save(path, SEED_KIND, weights, metadata)
        return path

    @property
    def _config_text(self) -> str:
        return json.dumps(serial.to_json(self.config), sort_keys=True)


def read_config(folder: Path) -> TrainConfig:
    """The configuration of the run in a folder."""
    path = folder / CONFIG
    if not path.exists() or path.is_dir():
        raise InputError(f"{folder} is no run's folder: it has no {CONFIG}")
    data = serial.read(path, "a run's configuration", LARGEST_CONFIG)
    if not isinstance(data, dict) or set(data) != {"looped", "config"}:
        raise InputError(f"{path} is no run's configuration: it must hold 'looped' and 'config'")
    return serial.from_json(TrainConfig, data["config"], str(path))


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every whole line of a run's metrics."""
    return [row for row, _ in _lines(folder / METRICS) if row is not None]


def seed_files(folder: Path) -> list[Path]:
    """The seeds' checkpoints in a run's folder, by seed, or the weights of a published model."""
    named = (path for path in folder.glob("seed-*.safetensors") if re.fullmatch(r"seed-\d+", path.stem))
    found = {int(path.stem[5:]): path for path in named}
    if not found and (folder / hub.WEIGHTS).exists():
        return [folder / hub.WEIGHTS]
    if not found:
        raise InputError(f"{folder} holds no trained weights (seed-0.safetensors and so on); train it first")
    return [found[seed] for seed in sorted(found)]


def weight_files(source: Path) -> list[Path]:
    """The files that a person means by a run's folder, one seed's file, a published model or `hub:owner/name`."""
    path = hub.located(source)
    if not path.exists():
        raise InputError(f"there is no run {path}")
    return seed_files(path) if path.is_dir() else [path]


def load_seed(path: Path) -> Trained:
    """One seed's checkpoint, verified; a file whose numbers are shorter than float32 says so as `stored`."""
    if path.name == hub.WEIGHTS and checkpoints.header(path).get("format") != SEED_KIND:
        return load_published(path.parent)

    dtype: torch.dtype | None = None  # of the stock block's numbers; another one's may be of any

    def check(metadata: Metadata, shapes: Shapes) -> None:
        nonlocal dtype
        config, stored = _config_in(metadata), metadata.get("stored", "float32")
        if not config.block:  # of another block only the block itself knows the shapes
            check_shapes(config.model, shapes)
        if number(metadata, "seed") is None or number(metadata, "step") is None:
            raise InputError("it does not say its seed and step")
        if stored not in STORED:
            raise InputError(f"its numbers must be of type {' or '.join(STORED)}")
        dtype = None if config.block else STORED[stored]

    def verify(tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            check_numbers({name: tensor}, dtype or tensor.dtype)

    metadata, tensors = checkpoints.load(path, SEED_KIND, check, verify)
    found = int(metadata["seed"]), int(metadata["step"])
    return _trained(_config_in(metadata), *found, metadata.get("commit"), tensors)


def _trained(
    config: TrainConfig, seed: int, step: int, commit: str | None, tensors: Mapping[str, Tensor]
) -> Trained:
    if not config.block:
        return Trained(config, seed, step, Layout(config.model).from_dict(tensors), commit)
    row = torch.cat([tensors[name].flatten().float() for name in sorted(tensors)])
    return Trained(config, seed, step, row, commit, tensors)


# --- published models (`looped.model.hub`) ----------------------------------------------------------------------
def facts_of(trained: Trained) -> HubFacts:
    """What a published model says of its training."""
    settings = serial.to_json(trained.config)
    del settings["model"]
    named = {each.name: settings.pop(each.name) for each in fields(HubFacts) if each.name in settings}
    return HubFacts(**named, seed=trained.seed, step=trained.step, commit=trained.commit, training=settings)


def publish(trained: Trained, folder: Path, name: str, rows: Sequence[hub.Row] = ()) -> None:
    """Write a seed as a model's folder, with measured accuracies in its card."""
    config, facts = trained.config.model, facts_of(trained)
    weights = trained.weights
    if not weights:
        weights = Layout(config).to_dict(trained.row)
        if config.kind == "decoder":
            net = LoopedTransformer(config)
            load_checkpoint_weights(net, weights)
            weights = net.state_dict()
    hub.write(folder, config, facts, weights, hub.model_card(facts, config, name, rows))


def load_published(folder: Path) -> Trained:
    """The model in a folder that says its task, as the seed that it was."""
    model, facts = hub.read(folder)
    if not facts.task:
        raise InputError(
            f"{folder} names no task, so it cannot be asked questions: save it with config={{'task': …}}, or load "
            "the module with LoopedTransformer.from_pretrained"
        )
    names = {each.name for each in fields(HubFacts)} & {each.name for each in fields(TrainConfig)}
    own = {name: getattr(facts, name) for name in names}
    data = {**facts.training, **own, "model": serial.to_json(model)}
    config = serial.from_json(TrainConfig, data, str(folder / hub.CONFIG))
    if config.block:  # only the block itself knows its shapes
        tensors = hub.read_weights(folder, model, lambda shapes: None, own_block=True)
    elif model.kind == "decoder":
        tensors = checkpoint_weights(LoopedTransformer.from_pretrained(folder))
    else:
        tensors = hub.read_weights(folder, model, lambda shapes: check_shapes(model, shapes))
    return _trained(config, facts.seed, facts.step, facts.commit, tensors)


def last_evaluation(folder: Path, seed: int) -> list[dict[str, Any]]:
    """What a run measured of a seed, the last value for each length, rule and input distribution."""
    found = {}
    for row in read_metrics(folder) if (folder / METRICS).is_file() else []:
        if row.get("kind") == "evaluation" and row.get("seed") == seed:
            found[row.get("length"), row.get("stop"), row.get("family")] = row
    return list(found.values())


def number(metadata: Metadata, name: str) -> int | None:
    """The whole number under a name, from 0 on; None if there is none."""
    text = metadata.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def _config_in(metadata: Metadata) -> TrainConfig:
    text = metadata.get("config", "")
    if len(text) > LARGEST_CONFIG:
        raise InputError("its configuration is too large")
    return serial.from_json(TrainConfig, serial.parse(text, "its configuration"), "its configuration")


def _lines(path: Path) -> Iterator[tuple[dict[str, Any] | None, bytes]]:
    """Each line as it is and as an object with a step, None where it is none; ends at a line without end."""
    if not path.exists():
        return
    with files.open_regular(path, "a file of metrics", LARGEST_METRICS) as file:
        while (line := file.readline(LARGEST_LINE)).endswith(b"\n"):
            try:
                row = serial.parse(line.decode("utf-8"), str(path))
            except ValueError:
                row = None
            yield (row if fits(row, {"step": is_count}) else None), line  # type: ignore[misc]


def _set_aside(path: Path) -> Path:
    """Renames a file that cannot be used, without overwriting one set aside before."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged{'' if number == 1 else f'-{number}'}")).exists():
        number += 1
    os.replace(path, aside)
    return aside


def _plain_file(path: Path) -> None:
    """Refuses to write to a folder, a pipe, or through a link to a file that belongs elsewhere."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} must be a plain file, not a folder, a link or a pipe")


def _lock(folder: Path) -> IO[bytes]:
    """An open lock on a folder, let go when it is closed or its process ends in any way."""
    _plain_file(folder / "lock")
    file = files.lock(folder / "lock", LOOKING_S)
    if file is None:
        raise InputError(
            f"another process is training in {folder} already; wait for it or choose another --out"
        )
    return file
