"""A program into a model: graph, layers, matrices; and the model's file with its card."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped import __version__, checkpoints, serial
from looped.checkpoints import Metadata, Shapes
from looped.compiler import emit
from looped.compiler.attention import INDEX, SQUARE
from looped.compiler.frontend import CLOCK, Control, Traced, always_steps, control, trace
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


def _leaves(traced: Traced, control: Control) -> dict[str, Node]:
    """Everything that has a fixed place, flags first and among them `done` first: the relay tells those."""
    operations = traced.operations
    domain = Domain.of([0])
    for state in (traced.leaves, *traced.after):
        domain = domain.join(traced.read_out(state).domain)
    return {
        **{name: control.leaves[name] for name in reversed(control.flags)},
        ROW: traced.row,
        INDEX: operations.index,
        SQUARE: operations.index_squared,
        CLOCK: control.leaves[CLOCK],
        **{f"state {name}": node for name, node in traced.leaves.items()},
        OUTPUT: traced.graph.leaf(OUTPUT, domain, invariant=False),
    }


def _values(
    traced: Traced, control: Control, leaves: dict[str, Node], held: bool
) -> tuple[dict[str, Node], dict[str, Node]]:
    """The values of everything that changes, before the loop and after a step."""
    first = control.first | {f"state {name}": node for name, node in traced.first.items()}
    after = {}
    for name, value in traced.leaves.items():
        for loop, state in reversed(list(enumerate(traced.after))):
            value = _chosen(traced, control, loop, state[name], value)
        after[name] = value
    output = leaves[OUTPUT]
    if held:
        for loop, state in reversed(list(enumerate(traced.after))):
            output = _chosen(traced, control, loop, traced.read_out(state), output)
    else:
        output = traced.read_out(after)
    return first, control.after | {f"state {name}": node for name, node in after.items()} | {OUTPUT: output}


def _chosen(traced: Traced, control: Control, loop: int, new: Node, old: Node) -> Node:
    graph = traced.graph
    if len(control.flags) == 1:
        return graph.choose(control.leaves["done"], old, new)
    return graph.choose(control.running(traced, loop), new, old)


def _given(after: dict[str, Sum], ops: dict[str, LayerOp]) -> set[LayerOp]:
    """What stands in the state when a step begins: variables, and whatever is the same at every step."""
    given, seen = set(ops.values()), set()
    work = [op for value in after.values() for _, op in value.terms]
    while work:
        op = work.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.invariant:
            given.add(op)
        else:
            work += [inner for part in op.inputs() for _, inner in part.terms]
    return given


def _invariants(step: emit.Section, leaves: set[LayerOp]) -> list[LayerOp]:
    parts = [part for op in step.slots for part in op.inputs()]
    parts += [commit.value for commit in step.commits]
    found = dict.fromkeys(op for part in parts for _, op in part.terms if op.invariant)
    return [op for op in found if op not in leaves]


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
    heads = max(*(layout.heads for layout in layouts), math.ceil(end / size), 1)
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
    reach = emit.Reach(np.zeros(width), np.zeros(width, dtype=bool))
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
        if bool((tensors[name].double().numpy() != value).any()):
            refuse(
                "row-length",
                f"a weight of {name} does not fit a file's float32",
                function_place(program.prepare),
            )
    return Compiled(made.config, layout.from_dict(tensors), _card(program, made, tensors))


def _card(program: Program, made: Assembled, tensors: dict[str, Tensor]) -> CompiledCard:
    counted = {name: tensor for name, tensor in tensors.items() if name != "position" and "norm" not in name}
    config = made.config
    return CompiledCard(
        program.name,
        config.max_positions,
        config.precision,
        round(made.bits, 1),
        config.before,
        config.layers,
        config.heads,
        config.width,
        sum(tensor.numel() for tensor in counted.values()),
        sum(int((tensor != 0).sum()) for tensor in counted.values()),
        tuple(made.variables.items()),
        tuple(made.others.items()),
    )


def load(path: Path) -> Compiled:
    """A compiled model's file, verified."""

    def check(metadata: Metadata, shapes: Shapes) -> None:
        check_shapes(_config_in(metadata), shapes)
        _card_in(metadata)

    metadata, tensors = checkpoints.load(path, KIND, check, check_numbers)
    config = _config_in(metadata)
    return Compiled(config, Layout(config).from_dict(tensors), _card_in(metadata))


def _card_in(metadata: Metadata) -> CompiledCard:
    return serial.from_json(CompiledCard, serial.parse(metadata.get("card", ""), "its card"), "its card")


def _config_in(metadata: Metadata) -> ModelConfig:
    text = metadata.get("config", "")
    return serial.from_json(ModelConfig, serial.parse(text, "its configuration"), "its configuration")
