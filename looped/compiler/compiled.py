"""A program into a model: graph, layers, matrices; the model's file with its card; and its picture."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped import __version__, checkpoints, serial
from looped.checkpoints import Metadata, Shapes
from looped.compiler import emit
from looped.compiler.attention import INDEX, SQUARE
from looped.compiler.frontend import CLOCK, Control, Nodes, Traced, always_steps, control, trace
from looped.compiler.graph import Domain, Node, refuse
from looped.compiler.lower import Brought, LayerOp, Lowering, Sum
from looped.fast.stacked import Prepared, StackedTransformer
from looped.model.config import ModelConfig
from looped.model.weights import Layout, check_numbers, check_shapes
from looped.rasp.lint import check_program
from looped.rasp.lint_rules import LegalityError, function_place
from looped.rasp.program import ROW, Program

LONGEST = 4096  # positions of a row, unless asked for fewer: the largest whose square a float32 can hold
MOST_WIDTH = 2048
SURE = 16.0  # how far the scores of the right token and its neighbour lie apart
OUTPUT = "output"

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Assembled:
    """A model's configuration and weights, and where in the state what stands."""

    config: ModelConfig
    weights: Weights
    variables: dict[str, int]  # the program's, and `output`
    others: dict[str, int]  # flags, clock, token, index
    reach: emit.Reach  # what the entries of the state can hold

    @cached_property
    def bits(self) -> float:
        """How many bits the largest sum needs, as the weights tell."""
        return emit.bits(self.config, self.weights, self.reach)


def assemble(program: Program, longest: int = LONGEST, most_width: int = MOST_WIDTH) -> Assembled:
    """Turn a legal program into weights for rows of up to `longest` positions.

    When all is done, the output stays because it is held, or because the state that it is read from is: whichever
    takes fewer layers, and then fewer weights.
    """
    for violation in check_program(program):
        raise LegalityError(violation)
    ways = (False, True) if always_steps(program) else (False,)
    traced = trace(program, longest)
    clock = control(program, traced)
    made = [_assemble(program, traced, clock, held) for held in ways]
    best = min(made, key=lambda m: (m.config.layers, m.config.before, m.config.width * m.config.expansion))
    _check(program, best, most_width)
    return best


def _assemble(program: Program, traced: Traced, control: Control, held: bool) -> Assembled:
    lower = Lowering(traced.graph)
    leaves = _leaves(traced, control)
    first, after = _values(traced, control, leaves, held)
    ops = {name: lower(node).terms[0][1] for name, node in leaves.items()}
    start = {name: value for name, node in first.items() if (value := lower(node)) != Sum()}
    change = {name: lower(node) for name, node in after.items() if node is not leaves[name]}
    embedded = {ops[name] for name in (ROW, INDEX, SQUARE)}
    step = emit.plan([(ops[n], v) for n, v in change.items()], _given(change, ops), ())
    kept = _invariants(step, set(ops.values()))
    before = emit.plan([(ops[n], v) for n, v in start.items()], embedded, kept)
    places = {op: i for i, op in enumerate([*ops.values(), *kept])}
    end = max(emit.allocate(part, len(places), set(kept)) for part in (before, step))
    sections = []
    for part, fresh in ((before, True), (step, False)):
        known = {**places, **part.places}
        sections.append((emit.layer_plans(part, known.__getitem__, fresh), known))
    named = {name: places[op] for name, op in ops.items()}
    return _model(program, traced, sections, end, named)


def _leaves(traced: Traced, control: Control) -> Nodes:
    """Everything that has a fixed place, flags first and among them `done` first: the relay tells those."""
    operations = traced.operations
    outputs = [traced.read_out(state).domain for state in (traced.leaves, *traced.after)]
    domain = Domain.union([Domain.of([0]), *outputs])
    return {
        **{name: control.leaves[name] for name in reversed(control.flags)},
        ROW: traced.row,
        INDEX: operations.index,
        SQUARE: operations.index_squared,
        CLOCK: control.leaves[CLOCK],
        **{f"state {name}": node for name, node in traced.leaves.items()},
        OUTPUT: traced.graph.leaf(OUTPUT, domain, invariant=False),
    }


def _values(traced: Traced, control: Control, leaves: Nodes, held: bool) -> tuple[Nodes, Nodes]:
    """The values of everything that changes, before the loop and after a step."""
    first = control.first | {f"state {name}": node for name, node in traced.first.items()}

    def changed(old: Node, new: Callable[[Nodes], Node]) -> Node:
        """What `new` makes of the state after the step that runs, or the old value when all is done."""
        for loop, state in reversed(list(enumerate(traced.after))):
            if len(control.flags) == 1:
                old = traced.graph.choose(control.leaves["done"], old, new(state))
            else:
                old = traced.graph.choose(control.running(traced, loop), new(state), old)
        return old

    after = {name: changed(old, itemgetter(name)) for name, old in traced.leaves.items()}
    output = changed(leaves[OUTPUT], traced.read_out) if held else traced.read_out(after)
    return first, control.after | {f"state {name}": node for name, node in after.items()} | {OUTPUT: output}


def _given(after: dict[str, Sum], ops: dict[str, LayerOp]) -> set[LayerOp]:
    """What stands in the state when a step begins: variables, and whatever is the same at every step."""
    given, seen = set(ops.values()), set()
    work = [op for value in after.values() for op in value.ops]
    while work:
        op = work.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.invariant:
            given.add(op)
        else:
            work += op.needs
    return given


def _invariants(step: emit.Section, leaves: set[LayerOp]) -> list[LayerOp]:
    used = [op for made in step.slots for op in made.needs]
    used += [op for commit in step.commits for op in commit.value.ops]
    return list(dict.fromkeys(op for op in used if op.invariant and op not in leaves))


def _model(
    program: Program,
    traced: Traced,
    sections: list[tuple[list[emit.LayerPlan], dict[LayerOp, int]]],
    end: int,
    named: dict[str, int],
) -> Assembled:
    """Choose the sizes and fill the matrices."""
    plans = [plan for layers, _ in sections for plan in layers]
    size = emit.head_size(plans)
    layouts = [emit.HeadLayout.of(layers, size) for layers, _ in sections]
    heads = max(*(len(layout.each) for layout in layouts), math.ceil(end / size), 1)
    width = heads * size
    layouts = [layout.padded(heads) for layout in layouts]
    hidden = max([len(plan.units) for plan in plans] or [1])
    expansion = max(1, math.ceil(hidden / width))
    weights: Weights = {}
    for stack, (layers, known), layout in zip(("before", "layers"), sections, layouts, strict=True):
        for i, plan in enumerate(layers):
            made = emit.matrices(plan, layout, width, size, expansion * width, known.__getitem__)
            weights |= {f"{stack}.{i}.{name}": value for name, value in made.items()}
    flags = len(program.loops) or 1
    config = ModelConfig(
        vocab=len(program.vocab),
        layers=len(sections[1][0]),
        heads=heads,
        width=width,
        expansion=expansion,
        injection=False,
        bands=layouts[1].bands,
        positions="learned",
        max_positions=traced.operations.longest,
        norm="none",
        activation="relu",
        precision="float64",
        running=layouts[1].running,
        before=len(sections[0][0]),
        before_bands=layouts[0].bands,
        before_running=layouts[0].running,
        relay=flags,
        halt=0,
    )
    _fill_ends(weights, config, named)
    variables = {name: named[f"state {name}"] for name in traced.names} | {OUTPUT: named[OUTPUT]}
    others = {name: place for name, place in named.items() if place not in variables.values()}
    return Assembled(config, weights, variables, others, _reach([known for _, known in sections], width))


def _check(program: Program, made: Assembled, most_width: int) -> None:
    """Refuse what is too wide, or too long to be exact."""
    place, config = function_place(program.prepare), made.config
    if config.width > most_width:
        refuse("width", f"{program.name} needs a width of {config.width}, more than {most_width}", place)
    if made.bits > emit.MOST_BITS:
        rows = f"rows of {config.max_positions} tokens need sums of {made.bits:.0f} bits"
        refuse("row-length", f"{rows}, more than {emit.MOST_BITS:.0f}: ask for shorter ones", place)


def _reach(sections: list[dict[LayerOp, int]], width: int) -> emit.Reach:
    """What the entries of the state can hold at most, over all numbers that ever stand there."""
    reach = emit.Reach(np.zeros(width), np.ones(width), np.zeros(width, dtype=bool))
    for known in sections:
        for op, place in known.items():
            span = max(abs(op.domain.low), abs(op.domain.high))
            reach.largest[place] = max(reach.largest[place], span)
            reach.mean[place] |= isinstance(op, Brought) and op.form.mean
    return reach


def _fill_ends(weights: Weights, config: ModelConfig, named: dict[str, int]) -> None:
    """Embedding, positions and readout: of all tokens v, 2vy - v² is largest at v = y."""
    tokens, positions = np.arange(config.vocab), np.arange(config.max_positions)
    weights["embed"] = np.zeros((config.vocab, config.width))
    weights["embed"][:, named[ROW]] = tokens
    weights["position"] = np.zeros((config.max_positions, config.width))
    weights["position"][:, named[INDEX]] = positions
    weights["position"][:, named[SQUARE]] = positions**2
    weights["readout.weight"] = np.zeros((config.width, config.vocab))
    weights["readout.weight"][named[OUTPUT]] = 2 * SURE * tokens
    weights["readout.bias"] = -SURE * tokens.astype(float) ** 2


# --- the model and its file ----------------------------------------------------------------------------------
KIND = "looped-compiled-1"


@dataclass(frozen=True)
class CompiledCard:
    """Facts about a compiled model, saved with it."""

    program: str  # name of the n-RASP-L program
    max_length: int  # positions of the longest row on which it is exact
    precision: str  # what it computes in
    bits: float  # of the 53 of a float64 that its largest sum needs on such a row, as its weights tell
    before: int  # layers that prepare, applied once
    layers: int  # layers of a step, the read-out folded in
    heads: int
    width: int
    parameters: int  # all numbers but the table of positions
    nonzero: int  # of those
    variables: tuple[tuple[str, int], ...]  # the program's variables, and where in the state each stands
    others: tuple[tuple[str, int], ...]  # the same of flags, clock, token and index


@dataclass(frozen=True)
class Compiled:
    """A program in weights."""

    config: ModelConfig
    row: Float[Tensor, "P"]
    card: CompiledCard

    @property
    def model(self) -> StackedTransformer:
        """The looped decoder that runs it."""
        return StackedTransformer(self.config)

    def prepare(self, device: torch.device | str = "cpu") -> Prepared:
        """The weights ready for the loop."""
        with torch.no_grad():
            return self.model.prepare(self.row[None].to(device))

    def decode(self, h: Float[Tensor, "S B L D"]) -> dict[str, Int[Tensor, "S B L"]]:
        """The program's variables in a state."""
        return {name: h[..., place].round().long() for name, place in self.card.variables}

    def save(self, path: Path) -> None:
        """Write weights, configuration and card as one checkpoint."""
        metadata = {
            "config": json.dumps(serial.to_json(self.config), sort_keys=True),
            "card": json.dumps(asdict(self.card), sort_keys=True),
            "looped": __version__,
        }
        checkpoints.save(path, KIND, Layout(self.config).to_dict(self.row), metadata)


def compile_program(program: Program, longest: int = LONGEST, most_width: int = MOST_WIDTH) -> Compiled:
    """Turn a legal n-RASP-L program into weights for rows of up to `longest` positions."""
    made = assemble(program, longest, most_width)
    layout = Layout(made.config)
    tensors = {name: torch.full(slot.shape, slot.mean) for name, slot in layout.slots.items()}
    for name, value in made.weights.items():
        tensors[name] = torch.from_numpy(value).float()
        if not np.array_equal(tensors[name].double().numpy(), value):
            detail = f"a weight of {name} does not fit a file's float32"
            refuse("row-length", detail, function_place(program.prepare))
    return Compiled(made.config, layout.from_dict(tensors), _card(program, made, tensors))


def _card(program: Program, made: Assembled, tensors: dict[str, Tensor]) -> CompiledCard:
    counted = {name: tensor for name, tensor in tensors.items() if name != "position" and "norm" not in name}
    config = made.config
    same = ("precision", "before", "layers", "heads", "width")
    return CompiledCard(
        program=program.name,
        max_length=config.max_positions,
        bits=round(made.bits, 1),
        parameters=sum(tensor.numel() for tensor in counted.values()),
        nonzero=sum(int(tensor.count_nonzero()) for tensor in counted.values()),
        variables=tuple(made.variables.items()),
        others=tuple(made.others.items()),
        **{name: getattr(config, name) for name in same},
    )


def load(path: Path) -> Compiled:
    """A compiled model's file, verified."""

    def parts(metadata: Metadata) -> tuple[ModelConfig, CompiledCard]:
        config, card = "its configuration", "its card"
        return (
            serial.from_json(ModelConfig, serial.parse(metadata.get("config", ""), config), config),
            serial.from_json(CompiledCard, serial.parse(metadata.get("card", ""), card), card),
        )

    def check(metadata: Metadata, shapes: Shapes) -> None:
        check_shapes(parts(metadata)[0], shapes)

    metadata, tensors = checkpoints.load(path, KIND, check, check_numbers)
    config, card = parts(metadata)
    return Compiled(config, Layout(config).from_dict(tensors), card)


# --- its picture ---------------------------------------------------------------------------------------------
TITLES = {
    "qkv": "queries, keys, values", "out": "attention's output", "up": "units", "down": "units' output",
}  # fmt: skip
WIDEST = 12  # positions of a question that can be drawn


def draw(program: Program, made: Compiled, path: Path) -> None:
    """Write an SVG with the matrices of the loop's layers and the state of the program's example, step by step."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # matplotlib takes a second to load
    from matplotlib.figure import Figure

    # entries of the state that have a name, by place
    names = {place: name.removeprefix("state ") for name, place in (*made.card.others, *made.card.variables)}
    weights, layers = Layout(made.config).to_dict(made.row), made.config.layers
    row = program.row(program.example.split()[:WIDEST])
    tokens, prepared = torch.from_numpy(row)[None, None], made.prepare()
    steps = program.total(program.sizes(row.tolist()))
    with torch.inference_mode():
        first = made.model.embed(prepared, tokens)
        states = [first, *made.model.unroll(prepared, tokens, steps)]
    figure = Figure(figsize=(11, 2.6 * layers + 0.34 * len(names)), layout="constrained")
    FigureCanvasSVG(figure)
    grid = figure.add_gridspec(layers + 1, 4, height_ratios=[2.6] * layers + [0.34 * len(names)])
    for layer in range(layers):
        for column, (part, title) in enumerate(TITLES.items()):
            axes = figure.add_subplot(grid[layer, column])
            axes.set_title(f"layer {layer + 1}: {title}", fontsize=8)
            _draw_matrix(axes, weights[f"layers.{layer}.{part}.weight"].numpy(), names, rows=column in (0, 2))
    below = grid[layers, :].subgridspec(1, len(states), wspace=0.06)
    for step, state in enumerate(states):
        axes = figure.add_subplot(below[0, step])
        axes.set_title(f"after step {step}" if step else "before the loop", fontsize=8)
        axes.set_xticks(range(len(row)), program.vocab.decode(row.tolist()))
        places = sorted(names)
        _draw_state(axes, state[0, 0].numpy().T[places])
        if step == 0:
            axes.set_yticks(range(len(places)), [names[place] for place in places])
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    checkpoints.write(path, drawn.getvalue())


def _draw_matrix(axes: Any, matrix: Any, names: dict[int, str], rows: bool) -> None:
    """A matrix whose rows, or else its columns, are entries of the state; idle units and heads are left out."""
    from matplotlib.colors import SymLogNorm

    used = np.flatnonzero(np.abs(matrix).sum(0 if rows else 1))
    largest = max(float(np.abs(matrix).max()), 1.0)
    norm = SymLogNorm(0.5, vmin=-largest, vmax=largest)
    shown = matrix[:, used] if rows else matrix[used]
    axes.imshow(shown, cmap="RdBu", norm=norm, aspect="auto", interpolation="none")
    axes.tick_params(labelsize=6, length=0)
    (axes.set_xticks if rows else axes.set_yticks)([])
    if rows:
        axes.set_yticks(list(names), list(names.values()))
    else:
        axes.set_xticks(list(names), list(names.values()), rotation=90)


def _draw_state(axes: Any, state: Any) -> None:
    """Entries of a state, a number in every cell."""
    shown = np.sign(state) * np.log1p(np.abs(state))
    axes.imshow(shown, cmap="Blues", aspect="auto", vmin=-1, vmax=4, interpolation="none")
    for i, row in enumerate(state):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:g}", ha="center", va="center", fontsize=6)
    axes.tick_params(labelsize=6, length=0)
    axes.set_yticks([])
