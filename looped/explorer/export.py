"""The explorer as a folder of files: the visitor's browser computes, from any web server, without one of ours.

    DIR/index.html        the page, with a Content-Security-Policy that lets it ask this site alone
    DIR/static/…          its files, and onnxruntime-web (WebAssembly, one thread)
    DIR/catalogue.json    tasks, models, limits and stopping rules, as the server's /api/catalogue, and tables of sizes
    DIR/models/N-NAME…    for each model `embed.onnx`, tokens to embedded input, and `step.onnx`, one loop step

The loop and the stopping rules run in the page (`static/local.js`). A step in ONNX is checked against the model before
anything is written. Shapes: L positions, D width, V vocabulary, H heads, b the widest band.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import logging
import lzma
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

import looped.zoo as zoo
from looped.errors import InputError
from looped.evaluation import stopping
from looped.explorer import app, queries
from looped.explorer.queries import Model, ModelRegistry, named_model, read_query
from looped.explorer.security import LIMITS, PLOT_STYLE
from looped.model.attention import CausalAttention, sharpening, visible
from looped.model.block import Block
from looped.model.config import ModelConfig
from looped.model.halting import logits
from looped.model.looped import LoopedTransformer
from looped.model.positions import bias, turn
from looped.solve.solver import SPARE_STEPS
from looped.tasks import TASKS

Tensors = tuple[Tensor, ...]
RECIPE = "-long"  # the shipped models that are exported unless others are named
POLICY = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; "
    f"style-src 'self' '{PLOT_STYLE}'; object-src 'none'; base-uri 'none'; form-action 'none'"
)
RUNTIME = "vendor/ort-wasm-simd-threaded.wasm.xz"  # unpacked it is six times as large
NARROW = 8  # a head that sees at most so many positions is computed from shifted copies
CHECKED = (3, 20)  # lengths of questions
TOLERANCE = 1e-3  # of the largest number compared
OPSET = 20  # the first with GELU


def chosen_models(names: Sequence[str] = ()) -> ModelRegistry:
    """The models of these names, run folders or checkpoints; without any, the shipped `long` ones."""
    return ModelRegistry(map(named_model, names or [n for n in zoo.names() if n.endswith(RECIPE)]))


def write(folder: Path, registry: ModelRegistry) -> dict[str, int]:
    """Write the site of these models into a new or empty folder; the size of every file in bytes."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already: give a folder that is new or empty")
    files = site_files(registry)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {name: len(data) for name, data in files.items()}


def site_files(registry: ModelRegistry) -> dict[str, bytes]:
    """Every file of the site by its path."""
    files = {f"static/{name}": file.data for name, file in app.static_files().items() if name != app.PAGE}
    page = (app.FOLDER / app.PAGE).read_text("utf-8")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    files[app.PAGE] = page.replace("<head>", f"<head>\n  {meta}", 1).encode()
    files["static/api.js"] = b'export * from "./local.js";\n'
    wasm = lzma.decompress((app.FOLDER / RUNTIME).read_bytes())
    files["static/vendor/ort.wasm.bin"] = gzip.compress(wasm, mtime=0)  # browsers unpack gzip, not xz
    catalogue: dict[str, Any] = app.describe_all(registry)
    offered = {model.solver.task.name for model in registry.values()}
    if strange := offered - TASKS.keys():
        known = f"the page of a site checks answers of {', '.join(TASKS)} alone"
        raise InputError(f"{known}, not of {min(strange)}: serve that model without --export")
    catalogue["tasks"] = [told for told in catalogue["tasks"] if told["name"] in offered]
    for told in catalogue["tasks"]:  # what the page cannot find out by itself
        task = TASKS[told["name"]]
        told["names"] = list(task.vocab.names)
        told["rows"] = [task.row_size(n + 1) for n in range(LIMITS.length)]  # positions by length
    for number, (model, told) in enumerate(zip(registry.values(), catalogue["models"], strict=True)):
        path = f"models/{number}-{re.sub('[^A-Za-z0-9._-]', '-', model.key)}"
        told |= {"path": path, **_told(model)}
        files[f"{path}/embed.onnx"], files[f"{path}/step.onnx"] = to_onnx(model)
    catalogue |= {
        "rules": list(queries.RULES), "top": queries.TOP, "spare": SPARE_STEPS,
        "threshold": stopping.DEFAULT_THRESHOLD, "patience": stopping.DEFAULT_PATIENCE,
        "motion": stopping.DEFAULT_MOTION, "halted": stopping.DEFAULT_HALT,
    }  # fmt: skip
    files["catalogue.json"] = json.dumps(catalogue, allow_nan=False, separators=(",", ":")).encode()
    return files


def _told(model: Model) -> dict[str, object]:
    """How the page walks this model's loop; `needed` are the steps by variant and length."""
    solver, config = model.solver, model.solver.model.config
    task, lengths = solver.task, torch.arange(1, model.longest() + 1)
    needed = []
    for variant in range(task.variants):
        drawn = task.sample(
            lengths, torch.Generator().manual_seed(0),
            max_length=int(lengths[-1]), variants=torch.full_like(lengths, variant),
        )  # fmt: skip
        needed.append(solver.subject.steps(drawn.steps, drawn.question_length).tolist())
    return {
        "needed": needed, "pause": solver.method.pause, "precision": config.precision,
        "injection": config.injection, "halting": config.halting, "halt": config.halt,
        "looks": _kinds(config) if type(solver.net.block) is Block else None,
    }  # fmt: skip


# --- a model as ONNX -----------------------------------------------------------------------------------------


@dataclass
class SeenWeights:
    """The attention weights of a pass, in the order in which they were computed; torch.export copies a bare list."""

    each: list[Tensor] = field(default_factory=list)


class WatchedAttention(nn.Module):
    """The same attention of one row, spelled out in few operations, its weights kept in `seen`."""

    def __init__(self, own: CausalAttention, seen: SeenWeights) -> None:
        super().__init__()
        self.config, self.qkv, self.out, self.seen = own.config, own.qkv, own.out, seen

    def forward(self, h: Float[Tensor, "L D"]) -> Float[Tensor, "L D"]:
        """Mix the positions."""
        config, size = self.config, h.shape[0]
        split = self.qkv(h).view(size, 3, config.heads, config.head_size)
        mixed, first = [], 0
        for kind, count in _kinds(config).items():
            own = split[:, :, first : first + count]  # [L, 3, H, d]
            mixed.append(getattr(self, kind)(own, first).reshape(size, count * config.head_size))
            first += count
        out: Tensor = self.out(torch.cat(mixed, dim=-1))
        return out

    def narrow(self, qkv: Float[Tensor, "L 3 H d"], first: int) -> Float[Tensor, "L H d"]:
        """Heads that see a few positions, by copies moved down; keeps the weights of those before it [L, H, b - 1]."""
        size, kv, back = qkv.shape[0], qkv[:, 1:], range(1, _narrow(self.config))
        gaps = [F.pad(kv, (0, 0, 0, 0, 0, 0, n, 0))[:size] - kv for n in back]
        scores = torch.stack([(qkv[:, 0] * gap[:, 0]).sum(-1) for gap in gaps], dim=-1)
        far, bands = torch.arange(1, len(gaps) + 1), torch.tensor(self.config.bands)
        seen = (torch.arange(size)[:, None, None] >= far) & (far < bands[:, None])
        scores = torch.where(seen, scores / math.sqrt(self.config.head_size), float("-inf"))
        one = len(gaps) == 1  # the softmax of two scores that differ by s is a sigmoid of s
        shares = scores.sigmoid() if one else F.pad(scores, (1, 0)).softmax(-1)[..., 1:]
        self.seen.each.append(shares)
        return qkv[:, 2] + sum(shares[..., n, None] * gap[:, 1] for n, gap in enumerate(gaps))

    def wide(self, qkv: Float[Tensor, "L 3 H d"], first: int) -> Float[Tensor, "L H d"]:
        """Heads that see everything before them, or a wide band of it; keeps the weights [H, L, L]."""
        config, (size, _, heads, _) = self.config, qkv.shape
        q, k, v = qkv.permute(1, 2, 0, 3)  # each [H, L, d]
        q, k = turn(config, q) / math.sqrt(config.head_size), turn(config, k)
        bands = config.head_bands[first : first + heads]
        if config.sharpen:
            q = q * sharpening(bands, size, q)
        seen = visible(bands if any(bands) else (0,), size, q.device)
        mask = torch.where(seen, 0.0, float("-inf")).to(q.dtype)
        offsets = bias(config, size, size, q.device)
        scores = q @ k.transpose(-1, -2) + (mask if offsets is None else mask + offsets[:heads].to(q.dtype))
        shares: Tensor = scores.softmax(-1)
        self.seen.each.append(shares)
        mixed: Tensor = shares @ v
        return mixed.transpose(0, 1)

    def best(self, qkv: Float[Tensor, "L 3 H d"], first: int) -> Float[Tensor, "L H d"]:
        """Heads that take the value of the largest key so far, the last of equals; keeps its position [H, L]."""
        size, (_, k, v) = qkv.shape[0], qkv.permute(1, 2, 0, 3)
        behind = visible((0,), size, k.device).flip(-1)
        keys = turn(self.config, k)[..., 0].flip(-1)[:, None].expand(-1, size, -1)
        at = size - 1 - torch.where(behind, keys, float("-inf")).argmax(-1)
        self.seen.each.append(at.float())
        found: Tensor = v.gather(1, at[..., None].expand_as(v))
        return found.transpose(0, 1)


class StepGraph(nn.Module):
    """One pass of the loop as the page needs it: the next state, scores, halting scores, attention weights."""

    def __init__(self, net: LoopedTransformer) -> None:
        super().__init__()
        self.net, self.seen = copy.deepcopy(net).eval(), SeenWeights()
        self.before, self.net.before = self.net.before, None  # a part of the embedding's graph
        self.plain = type(net.block) is Block  # a block of the user's own is written as it is
        for block, seen in ((self.net.block, self.seen), (self.before, SeenWeights())):
            for layer in block.layers if type(block) is Block else ():
                layer.attention = WatchedAttention(layer.attention, seen)  # type: ignore[arg-type]
        halt = [] if net.halting_head is None else ["halt"]
        kinds = _kinds(net.config) if self.plain else ()
        looks = [f"{kind}.{i}" for i in range(net.config.layers) for kind in kinds]
        self.outputs = ["next", "logits", *halt, *looks]

    def forward(self, state: Float[Tensor, "1 L D"], input: Float[Tensor, "1 L D"]) -> Tensors:
        """What follows a state; `input` is the embedded question."""
        self.seen.each.clear()
        u, head = self.net.inject(state, input), self.net.halting_head
        h = self.net.step(u[0] if self.plain else u)  # [L, D]: a matrix and its bias are one product
        scores = (self.net.readout(h), *([] if head is None else [head(h)[..., 0]]))
        return (h.view_as(u), *scores, *self.seen.each)


class EmbeddingGraph(nn.Module):
    """Tokens to the embedded input, with the layers before the loop where there are any."""

    def __init__(self, step: StepGraph) -> None:
        super().__init__()
        self.net, self.before = step.net, step.before

    def forward(self, tokens: Int[Tensor, "1 L"]) -> Float[Tensor, "1 L D"]:
        """The input as a state."""
        x = self.net.embed(tokens)
        return x if self.before is None else self.before(x[0])[None]


def _narrow(config: ModelConfig) -> int:
    """How many copies heads with bands take, the widest band, at least 2; 0 where a mask is simpler."""
    widest = max(config.bands, default=0)
    return max(2, widest) if 0 < widest <= NARROW and config.positions not in ("alibi", "rotary") else 0


def _kinds(config: ModelConfig) -> dict[str, int]:
    """How many heads of each kind a layer has, in their order."""
    narrow = len(config.bands) if _narrow(config) else 0
    counts = {"narrow": narrow, "wide": config.heads - narrow - config.running, "best": config.running}
    return {kind: count for kind, count in counts.items() if count}


def to_onnx(model: Model) -> tuple[bytes, bytes]:
    """Embedding and step as ONNX files, found equal to the model by onnxruntime."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ImportError:
        raise InputError("exporting needs onnx: pip install 'looped[export]'") from None
    step = StepGraph(model.solver.net)
    config, most = step.net.config, model.most_positions()
    size, shape = torch.export.Dim("L", min=2, max=most), (1, min(17, most))
    kind = getattr(torch, config.precision)
    state, x = (torch.randn(*shape, config.width, dtype=kind) for _ in range(2))  # one twice would be one
    with _quietly(model.label), torch.inference_mode():
        tokens = torch.zeros(shape, dtype=torch.long)
        embed = _written(EmbeddingGraph(step), (tokens,), ["tokens"], ["input"], size)
        loop = _written(step, (state, x), ["state", "input"], step.outputs, size)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        _check(model, step, *(onnxruntime.InferenceSession(data, options) for data in (embed, loop)))
    return embed, loop


def _written(module: nn.Module, given: Tensors, inputs: list[str], outputs: list[str], size: Any) -> bytes:
    made = torch.onnx.export(
        module.eval(), given, dynamo=True, dynamic_shapes=tuple({1: size} for _ in given), input_names=inputs,
        output_names=outputs, opset_version=OPSET, verbose=False,
    )  # fmt: skip
    assert made is not None
    proto = made.model_proto  # made anew at each look
    graph = proto.graph
    for parts in ((proto, graph), graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
        for part in parts:
            part.ClearField("metadata_props")  # the exporter's notes: call stacks with paths of this machine
    return bytes(proto.SerializeToString())


@contextlib.contextmanager
def _quietly(label: str) -> Iterator[None]:
    """Without the exporter's remarks; what it cannot write is told in a sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except InputError:
        raise
    except Exception as error:  # a user's own block may fail in any way, also when a row has another length
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(f"{label} cannot be written as ONNX: {reason}") from None
    finally:
        logging.disable(before)


def _check(model: Model, step: StepGraph, embed: Any, loop: Any) -> None:
    """Raise unless onnxruntime gives what the model gives, at every step of a short and of a longer question."""
    solver, task = model.solver, model.solver.task
    ours, weights = solver.model, solver.weights
    assert [each.name for each in loop.get_outputs()] == step.outputs
    for length in {min(n, model.longest()) for n in CHECKED}:
        drawn = task.sample(torch.tensor([length]), torch.Generator().manual_seed(0), max_length=length)
        asked = task.vocab.decode(drawn.question[0, : int(drawn.question_length[0])].tolist())
        query = read_query(model, task.format_question(asked), 1.0)
        tokens = query.batch().tokens
        h, x = None, ours.embed(weights, tokens[None])
        pairs = [(x, embed.run(None, {"tokens": tokens.numpy()})[0])]
        for _ in range(query.needed):
            state = h if h is not None else torch.zeros_like(x) if ours.config.injection else x
            h = ours.step(weights, ours.inject(h, x))
            wanted = [h, ours.readout(weights, h)] + ([logits(weights.head, h)] if weights.head else [])
            found = loop.run(None, {"state": state[0].numpy(), "input": x[0].numpy()})
            pairs += zip(wanted, found, strict=False)  # attention weights come after
        for a, b in pairs:
            apart = (a.flatten() - torch.from_numpy(b).flatten()).abs().max()
            if not apart <= TOLERANCE * (1 + a.abs().max()):  # NaN is no number to export
                raise InputError(f"{model.label} computes other numbers in ONNX: it cannot be exported")
