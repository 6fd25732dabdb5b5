"""A model as a folder that huggingface_hub's tools know: `config.json`, `model.safetensors`, `README.md`.

    {"model_type": "looped", "task": "copy", "method": "fop-loop-adaptive", …, "vocab": 5, "layers": 1, "heads": 4, …}

The configuration is flat: the fields of `HubFacts`, then those of `ModelConfig`. Weights have the names of the module's
`state_dict`. The card starts with metadata in YAML, which is how the hub finds and lists a model. Reading is strict: an
unknown field, a foreign weight, a number that is none, a link that leads out of the folder, each is refused in one
sentence; nothing in a folder is ever run or unpickled. Only the hub itself needs huggingface_hub (the extra `hub`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import save
from torch import Tensor, nn

from looped import __version__, checkpoints, serial
from looped.checkpoints import Shapes
from looped.errors import InputError
from looped.model.config import ModelConfig, check_bounds
from looped.model.weights import check_numbers, check_shapes

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
PREFIX = "hub:"  # before a name on the hub, where a path could be meant
LARGEST_CONFIG = 1 << 20  # bytes
PAPER = "2409.15647"  # on arXiv
PIPELINE = "text-generation"  # of the hub's kinds of model, the nearest
METRIC = "exact_match"
Row = Mapping[str, Any]  # a measured accuracy: length, stop, accuracy, samples, family


@dataclass(frozen=True)
class HubFacts:
    """What a folder says of a model besides its shape; a module that was only saved has no task."""

    model_type: Literal["looped"] = "looped"
    task: str = ""  # empty: not known, and `looped.load` cannot ask it questions
    method: str = ""
    recipe: str = ""
    seed: int = 0
    step: int = 0  # gradient steps taken
    max_length: int = 0  # trained on lengths from 1 to this
    loops: str = "T"  # loop steps of a problem, see `looped.methods.Loops`
    block: str = ""  # a block that is not ours, as a run names it
    version: str = __version__  # of looped
    commit: str | None = None  # of the code that trained it
    training: dict[str, Any] = field(default_factory=dict)  # every other setting of its training

    def __post_init__(self) -> None:
        check_bounds(self, dict.fromkeys(("seed", "step", "max_length"), (0, math.inf)))


class Pretrained(nn.Module):
    """Saving to and loading from such folders, with the names and options of huggingface_hub's PyTorchModelHubMixin.

    The plain package does without huggingface_hub, so this is no subclass of the mixin: what needs the hub borrows the
    mixin's function when it is called.
    """

    config: ModelConfig
    facts: HubFacts = HubFacts()  # written into the folder; from `looped.load`, those of the training

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        model_card_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a folder; `config` sets fields of `HubFacts`, `model_card_kwargs` are `model_card`'s options."""
        facts = serial.from_json(HubFacts, dataclasses.asdict(self.facts) | dict(config or {}), "config")
        folder = Path(save_directory)
        card = model_card(facts, self.config, **{"name": folder.name, **(model_card_kwargs or {})})
        write(folder, self.config, facts, self.state_dict(), card)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        block: Callable[[ModelConfig], nn.Module] | None = None,
        **options: Any,
    ) -> Self:
        """The model in a folder or, by `owner/name`, on the hub; a block that is not ours is given, never fetched.

        The options are those of `huggingface_hub.hf_hub_download`: revision, cache_dir, token, local_files_only, …
        """
        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            folder = download(str(pretrained_model_name_or_path), **options)
        config, facts = read(folder)
        if facts.block and block is None:
            raise InputError(f"{folder} needs the block {facts.block}: pass it as block=")

        def wanted() -> Shapes:
            with torch.device("meta" if block is None else "cpu"):  # takes no memory, whatever the width
                return {name: tuple(each.shape) for name, each in cls(config, block).state_dict().items()}

        check = partial(check_shapes, config, wanted=wanted)
        tensors = read_weights(folder, config, check, own_block=block is not None)
        net = cls(config, block)
        net.load_state_dict(tensors)
        net.facts = facts
        return net.eval()

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Save and upload as `owner/name`; the options are those of the mixin: private, token, branch, create_pr, …"""
        url: str = _hub().PyTorchModelHubMixin.push_to_hub(self, repo_id, **options)
        return url


def write(
    folder: Path, config: ModelConfig, facts: HubFacts, weights: Mapping[str, Tensor], card: str
) -> None:
    """Put the three files in place, each whole; a card that is there already is kept."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder for a model")
    if any(folder.glob("seed-*.safetensors")):
        raise InputError(f"{folder} is a run's folder: write the model to another")
    flat = {**serial.to_json(facts), **serial.to_json(config)}
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    checkpoints.write_json(folder / CONFIG, flat)
    checkpoints.write(folder / WEIGHTS, save(tensors, {"format": "pt"}))  # what the hub's tools expect
    if not (folder / CARD).exists():
        checkpoints.write(folder / CARD, card.encode())


def read(folder: Path) -> tuple[ModelConfig, HubFacts]:
    """What a folder's configuration says."""
    file = _file(folder, CONFIG)
    data = serial.read(file, "a model's configuration", LARGEST_CONFIG)
    if not isinstance(data, dict):
        raise InputError(f"{file} is no model's configuration: it must be an object of fields")
    if data.keys() == {"looped", "config"}:
        raise InputError(f"{folder} is a run's folder: `looped publish` makes such a model of it")
    shape = {each.name for each in dataclasses.fields(ModelConfig)} & data.keys()
    facts = serial.from_json(HubFacts, {k: v for k, v in data.items() if k not in shape}, str(file))
    return serial.from_json(ModelConfig, {key: data[key] for key in shape}, str(file)), facts


def read_weights(
    folder: Path, config: ModelConfig, check: Callable[[Shapes], None], own_block: bool = False
) -> dict[str, Tensor]:
    """A folder's weights by name, finite and of the model's type; `check` sees their shapes before memory is taken."""
    kind = None if own_block else getattr(torch, config.precision)  # a block that is not ours may have any
    finite = partial(check_numbers, kind=kind)
    return checkpoints.load(_file(folder, WEIGHTS), None, lambda _, shapes: check(shapes), finite)[1]


def located(source: str | Path) -> Path:
    """The folder of `hub:owner/name`, fetched where it is not in the hub's cache; any other path as it is."""
    name = str(source)
    return download(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else Path(source)


def download(name: str, **options: Any) -> Path:
    """The folder in the hub's cache that holds a model's configuration and weights, and nothing else of it."""
    hub = _hub()
    try:
        config, _ = (Path(hub.hf_hub_download(name, each, **options)) for each in (CONFIG, WEIGHTS))
    except Exception as error:  # of the hub's many kinds
        said = str(error).strip().split("\n")[0][:200]
        raise InputError(
            f"{name} could not be fetched from the hub: {type(error).__name__}: {said}"
        ) from None
    return config.parent


def _hub() -> Any:
    """The package huggingface_hub, or a sentence."""
    try:
        import huggingface_hub
    except ImportError:
        raise InputError("the hub needs the package huggingface_hub: pip install 'looped[hub]'") from None
    return huggingface_hub


def _file(folder: Path, name: str) -> Path:
    """A file of a folder; a link only where the hub's cache has its own, `snapshots/VERSION/x` → `blobs/y`."""
    file = folder / name
    if not file.exists():
        raise InputError(f"{folder} is no model's folder: it has no {name}")
    target = file.resolve()
    if file.is_symlink() and target.parent != folder.resolve().parents[1] / "blobs":
        raise InputError(f"{file} is a link to elsewhere: a model's folder holds its own files")
    return file


# --- the card --------------------------------------------------------------------------------------------------


def model_card(facts: HubFacts, config: ModelConfig, name: str, rows: Sequence[Row] = ()) -> str:
    """The text of `README.md`: metadata, how to use the model, how it was trained, accuracy by length where known.

    A value in JSON is a value in YAML, so that none has to be quoted by hand.
    """
    tags = f"looped looped-transformer length-generalization arxiv:{PAPER} pytorch_model_hub_mixin".split()
    tags += [facts.task] if facts.task else []
    head: dict[str, object] = {"library_name": "looped", "pipeline_tag": PIPELINE, "tags": tags}
    if rows:
        head["model-index"] = [{"name": name, "results": [_result(facts.task, row) for row in rows]}]
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items()), f"---\n\n# {name}\n"]
    lines += [f"A looped Transformer: {config.layers} layers of width {config.width}, {config.heads} heads, applied "
              f"again and again. Method: [Fan et al., 2025](https://arxiv.org/abs/{PAPER}).\n"]  # fmt: skip
    if facts.task:
        lines += [f"Task `{facts.task}`, trained on lengths 1 to {facts.max_length} by `{facts.method}` with recipe "
                  f"`{facts.recipe}`, {facts.step:,} gradient steps, seed {facts.seed}.\n"]  # fmt: skip
    lines += ['```python\nimport looped\n\nmodel = looped.load("hub:OWNER/NAME")  # or a folder\n```\n']
    if rows:
        lines += ["| length | inputs | stopping rule | exact match | questions |", "|---:|---|---|---:|---:|"]
    for row in rows:
        inputs, exact = row.get("family", "uniform"), f"{row['accuracy']:.4f}"
        lines.append(f"| {row['length']} | {inputs} | {row['stop']} | {exact} | {row['samples']} |")
    return "\n".join(lines).rstrip() + "\n"


def _result(task: str, row: Row) -> dict[str, object]:
    """A measured accuracy as the hub's `model-index` lists it."""
    inputs = f"{task}, length {row['length']}, {row.get('family', 'uniform')} inputs"
    measured = f"exact match by {row['stop']}, {row['samples']} questions"
    return {
        "task": {"type": PIPELINE, "name": task},
        "dataset": {"type": f"looped-{task}", "name": inputs, "args": {"length": row["length"]}},
        "metrics": [{"type": METRIC, "value": row["accuracy"], "name": measured}],
    }
