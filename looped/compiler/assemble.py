"""A program into a model: graph, layers, matrices, one after the other. Knows the order, not how each is done."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from looped.compiler import bounds, controller, emit, schedule
from looped.compiler.controller import CLOCK, Control
from looped.compiler.frontend import Traced, trace
from looped.compiler.looking import INDEX, SQUARE
from looped.compiler.lowering import Lowering
from looped.compiler.nodes import Domain, Node
from looped.compiler.refusal import refuse
from looped.compiler.solids import Brought, Solid, Sum
from looped.model.config import ModelConfig
from looped.rasp.checker import check_program
from looped.rasp.program import ROW, Program
from looped.rasp.rules import LegalityError, function_place

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
    reach: bounds.Reach  # what the entries of the state can hold

    @cached_property
    def bits(self) -> float:
        """How many bits the largest sum needs, as the weights tell."""
        return bounds.bits(self.config, self.weights, self.reach)


def assemble(program: Program, longest: int = LONGEST, most_width: int = MOST_WIDTH) -> Assembled:
    """Turns a legal program into weights for rows of up to `longest` positions.

    When all is done, the output stays because it is held, or because the state that it is read from is: whichever
    takes fewer layers, and then fewer weights.
    """
    for violation in check_program(program):
        raise LegalityError(violation)
    ways = (False, True) if controller.always_steps(program) else (False,)
    traced = trace(program, longest)
    control = controller.control(program, traced)
    made = [_assemble(program, traced, control, held) for held in ways]
    best = min(made, key=lambda m: (m.config.layers, m.config.before, m.config.width * m.config.expansion))
    _check(program, best, most_width)
    return best


def _assemble(program: Program, traced: Traced, control: Control, held: bool) -> Assembled:
    lower = Lowering(traced.graph)
    leaves = _leaves(traced, control)
    first, after = _values(traced, control, leaves, held)
    solids = {name: lower(node).terms[0][1] for name, node in leaves.items()}
    start = {name: value for name, node in first.items() if (value := lower(node)) != Sum()}
    change = {name: lower(node) for name, node in after.items() if node is not leaves[name]}
    embedded = {solids[name] for name in (ROW, INDEX, SQUARE)}
    step = schedule.plan([(solids[n], v) for n, v in change.items()], _given(change, solids), ())
    kept = _invariants(step, set(solids.values()))
    before = schedule.plan([(solids[n], v) for n, v in start.items()], embedded, kept)
    places = {solid: i for i, solid in enumerate([*solids.values(), *kept])}
    end = max(schedule.allocate(part, len(places), set(kept)) for part in (before, step))
    sections = []
    for part, fresh in ((before, True), (step, False)):
        known = {**places, **part.places}
        sections.append((emit.layer_plans(part, known.__getitem__, fresh), known))
    named = {name: places[solid] for name, solid in solids.items()}
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


def _given(after: dict[str, Sum], solids: dict[str, Solid]) -> set[Solid]:
    """What stands in the state when a step begins: variables, and whatever is the same at every step."""
    given, seen = set(solids.values()), set()
    work = [solid for value in after.values() for _, solid in value.terms]
    while work:
        solid = work.pop()
        if solid in seen:
            continue
        seen.add(solid)
        if solid.invariant:
            given.add(solid)
        else:
            work += [inner for part in solid.inputs() for _, inner in part.terms]
    return given


def _invariants(step: schedule.Section, leaves: set[Solid]) -> list[Solid]:
    parts = [part for solid in step.slots for part in solid.inputs()]
    parts += [commit.value for commit in step.commits]
    found = dict.fromkeys(solid for part in parts for _, solid in part.terms if solid.invariant)
    return [solid for solid in found if solid not in leaves]


def _model(
    program: Program,
    traced: Traced,
    sections: list[tuple[list[emit.LayerPlan], dict[Solid, int]]],
    end: int,
    named: dict[str, int],
) -> Assembled:
    """Chooses the sizes and fills the matrices."""
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
    """Refuses what is too wide, or too long to be exact."""
    place, config = function_place(program.prepare), made.config
    if config.width > most_width:
        refuse("width", f"{program.name} needs a width of {config.width}, more than {most_width}", place)
    if made.bits > bounds.MOST_BITS:
        rows = f"rows of {config.max_positions} tokens need sums of {made.bits:.0f} bits"
        refuse("row-length", f"{rows}, more than {bounds.MOST_BITS:.0f}: ask for shorter ones", place)


def _reach(sections: list[dict[Solid, int]], width: int) -> bounds.Reach:
    """What the entries of the state can hold at most, over all numbers that ever stand there."""
    reach = bounds.Reach(np.zeros(width), np.zeros(width, dtype=bool))
    for known in sections:
        for solid, place in known.items():
            span = max(abs(solid.domain.low), abs(solid.domain.high))
            reach.largest[place] = max(reach.largest[place], span)
            reach.mean[place] |= isinstance(solid, Brought) and solid.form.mean
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
