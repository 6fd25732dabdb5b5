"""A program as a graph: its functions run once on symbols, and the domains of its variables are found.

A state variable's domain starts with what `prepare` gives; every step may add values, until no step adds any more.
The number of steps of each loop is a polynomial in the sizes of the question; a clock counts the steps, and when it
reaches the sum of the first k loops' steps, flag k goes up (`docs/compiler.md`, "When it is done").
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from looped.compiler.attention import Equal, Operations, match
from looped.compiler.graph import FLAG, Domain, Facts, Graph, Node, Symbol, refuse
from looped.rasp.core import equals, full
from looped.rasp.library import has_seen
from looped.rasp.lint_rules import function_place
from looped.rasp.program import ROW, Loop, Program, parameters
from looped.rasp.sequence import Kind

MOST_VALUES = 1024  # of a state variable
MOST_ROUNDS = 256  # of looking whether a step adds values

Symbols = dict[str, Symbol]
Nodes = dict[str, Node]
Domains = dict[str, Domain]


@dataclass(frozen=True)
class Traced:
    """A program's graph: the state before the loops, and for every loop the state after its step."""

    graph: Graph
    operations: Operations
    row: Node
    leaves: Nodes
    first: Nodes
    after: tuple[Nodes, ...]
    read_out: Callable[[Nodes], Node]  # the output of a state
    names: tuple[str, ...]  # of the program's own variables; a square may go along with an index


def trace(program: Program, longest: int) -> Traced:
    """Run a program on symbols until the domains of its variables no longer grow."""
    steps = [_single_step(loop) for loop in program.loops]
    domains: Domains | None = None
    for _ in range(MOST_ROUNDS):
        traced = _run(program, steps, longest, domains)
        grown = {}
        for name in traced.names:
            states = (traced.first, traced.leaves, *traced.after)
            grown[name] = Domain.union(state[name].domain for state in states)
        if grown == domains:
            return traced
        moving = [name for name in grown if domains is None or grown[name] != domains[name]]
        domains = grown
        if any(len(domain.values or ()) > MOST_VALUES for domain in grown.values()):
            break
    new = [
        step
        for step, state in zip(steps, traced.after, strict=True)
        if any(state[name].domain != traced.leaves[name].domain for name in moving)
    ]
    detail = f"step after step, {' and '.join(map(repr, moving))} may take new values"
    refuse("unbounded-domain", detail, function_place([*new, program.prepare][0]))


def _single_step(loop: Loop) -> Callable[..., Any]:
    if len(loop.parts) != 1 or isinstance(loop.parts[0], Loop):
        inner = loop.steps()[0]
        refuse("loop-nesting", f"the loop of {inner.__name__} has several parts", function_place(inner))
    return loop.parts[0]


def _run(program: Program, steps: list[Callable[..., Any]], longest: int, domains: Domains | None) -> Traced:
    """The graph of a program whose variables have these domains; at first, those of `prepare`."""
    graph = Graph()
    operations = Operations(graph, longest)
    tokens = set(range(len(program.vocab))) - {program.vocab.pause}
    row = Symbol(graph, graph.leaf(ROW, Domain.of(tokens)), Kind.TOKEN)
    graph.facts = _facts(program, row)

    def call(function: Callable[..., Any], state: Symbols) -> Any:
        known = {**state, ROW: row}
        return function(**{name: known[name] for name in parameters(function)})

    def read_out(state: Nodes) -> Node:
        symbols = {name: Symbol(graph, state[name], first[name].kind) for name in first}
        output = call(program.readout, symbols)
        assert isinstance(output, Symbol)
        return output.node

    first: Symbols = call(program.prepare, {})
    leaves: Symbols = {}
    for name, symbol in first.items():
        domain = domains[name] if domains else symbol.node.domain
        leaves[name] = Symbol(graph, graph.leaf(f"state {name}", domain, invariant=False), symbol.kind)
    after = []
    for step in steps:
        changed = call(step, leaves)
        _check_kinds(step, leaves, changed)
        after.append(_nodes({**leaves, **changed}))
    names = tuple(first)
    traced = Traced(graph, operations, row.node, _nodes(leaves), _nodes(first), tuple(after), read_out, names)
    _add_squares(traced)
    return traced


def _check_kinds(step: Callable[..., Any], before: Symbols, after: Symbols) -> None:
    """Refuse a step that changes the kind of a variable."""
    for name, symbol in after.items():
        if symbol.kind is not before[name].kind:
            seen = f"{before[name].kind.value} before {step.__name__} and {symbol.kind.value} after"
            refuse("kind-varies", f"the variable {name!r} is {seen}", function_place(step))


def _add_squares(traced: Traced) -> None:
    """Where the square of a state variable is asked for, a variable of its own that goes along with it."""
    for state in (traced.leaves, *traced.after):
        traced.read_out(state)  # which may ask too
    names = {node: name for name, node in traced.leaves.items()}
    squares, square = traced.operations.squares, traced.operations.square
    while missing := [leaf for leaf in squares if f"{names[leaf]} squared" not in traced.leaves]:
        for leaf in missing:
            name = names[leaf]
            traced.leaves[f"{name} squared"] = squares[leaf]
            for state in (traced.first, *traced.after):
                state[f"{name} squared"] = square(state[name])


def _nodes(symbols: Symbols) -> Nodes:
    return {name: symbol.node for name, symbol in symbols.items()}


def _facts(program: Program, row: Symbol) -> Facts:
    """How a row looks: symbols, with at most one kind of separator between, then `>`, then only `#`."""
    eoq, eos = program.vocab.eoq, program.vocab.eos
    separators = [program.vocab.id(name) for name in program.separators]
    symbols = set(row.node.domain.values or ()) - {eoq, eos, *separators}

    def past(mark: int) -> Node:
        seen: Any = has_seen(row, full(row, mark))  # type: ignore[arg-type]
        return seen.node  # type: ignore[no-any-return]

    if len(separators) != 1:
        seen = {(symbol, 0) for symbol in symbols | set(separators)} | {(eoq, 1), (eos, 1)}
        return Facts((row.node, past(eoq)), frozenset(seen))
    (sign,) = separators
    question = {(symbol, side, 0) for symbol in symbols for side in (0, 1)} | {(sign, 1, 0)}
    return Facts((row.node, past(sign), past(eoq)), frozenset({*question, (eoq, 1, 1), (eos, 1, 1)}))


# --- the clock: when to go on to the next loop, and when the answer is there ---------------------------------
CLOCK = "clock"
# exponents' parts, () for 1, (0,) for the first size, (0, 1) a product
Polynomial = dict[tuple[int, ...], float]


@dataclass(frozen=True)
class Control:
    """The clock and the flags: leaves of the graph, their first values, and their values after a step."""

    leaves: Nodes
    first: Nodes
    after: Nodes
    flags: tuple[str, ...]  # one a loop, the last of them: done

    def running(self, traced: Traced, loop: int) -> Node:
        """1 while this loop is the one that runs."""
        graph = traced.graph
        mine = self.leaves[self.flags[loop]]
        if loop == 0:
            return graph.affine([(-1, mine)], 1, FLAG)
        return graph.affine([(1, self.leaves[self.flags[loop - 1]]), (-1, mine)], 0, FLAG)


def control(program: Program, traced: Traced) -> Control:
    """The clock and flags of a program."""
    graph = traced.graph
    sizes = _sizes(program, traced)
    ends, total = [], graph.const(0)
    for loop in program.loops:
        total = graph.affine([(1, total), (1, _evaluate(traced, sizes, _polynomial(loop, len(sizes))))])
        ends.append(total)
    ends = ends or [total]
    flags = (*(f"loop {i + 1} done" for i in range(len(ends) - 1)), "done")
    longest = max(1.0, max(end.domain.high for end in ends))
    clock = graph.leaf(CLOCK, Domain(0, longest), invariant=False)
    leaves = {name: graph.leaf(name, FLAG, invariant=False) for name in flags}
    now = graph.affine([(1, clock), (-1, leaves["done"])], 1)
    named = list(zip(flags, ends, strict=True))
    first = {name: graph.compare(">=", graph.affine([(-1, end)])) for name, end in named}
    after = {name: graph.compare(">=", graph.affine([(1, now), (-1, end)])) for name, end in named}
    return Control({CLOCK: clock, **leaves}, {CLOCK: graph.const(0), **first}, {CLOCK: now, **after}, flags)


def always_steps(program: Program) -> bool:
    """Whether every question takes at least one step, as far as the sizes tell that are tried."""
    return all(program.total(sizes) > 0 for sizes in _trials(len(program.separators) + 1))


def _sizes(program: Program, traced: Traced) -> list[Node]:
    """The lengths of the question's parts, right at every position from the end of the question on."""
    graph, operations = traced.graph, traced.operations
    if len(set(program.separators)) != len(program.separators):
        refuse("step-count", "a question with one separator twice", function_place(program.prepare))
    ids = [*(program.vocab.id(name) for name in program.separators), program.vocab.eoq]
    row = Symbol(graph, traced.row, Kind.TOKEN)
    marks = []
    for mark in ids:
        mark_match = match(row, Symbol(graph, graph.const(mark), Kind.TOKEN, mark), equals)
        marks.append(operations.best(mark_match, operations.earliest(), operations.index))
    later = [graph.affine([(1, end), (-1, start)], -1) for start, end in itertools.pairwise(marks)]
    return [marks[0], *later]


def _evaluate(traced: Traced, sizes: list[Node], polynomial: Polynomial) -> Node:
    graph = traced.graph
    terms: list[tuple[float, Node]] = []
    for parts, weight in polynomial.items():
        if len(parts) == 0:
            terms.append((weight, graph.const(1)))
        elif len(parts) == 1:
            terms.append((weight, sizes[parts[0]]))
        elif parts[0] == parts[1]:
            terms.append((weight, _squared(traced, sizes[parts[0]])))
        else:  # xy = ((x + y)² - x² - y²) / 2
            x, y = sizes[parts[0]], sizes[parts[1]]
            both = graph.affine([(1, x), (1, y)])
            terms += [(weight / 2, _squared(traced, both)), (-weight / 2, _squared(traced, x))]
            terms.append((-weight / 2, _squared(traced, y)))
    return graph.affine(terms)


def _squared(traced: Traced, x: Node) -> Node:
    """The square of a size, looked up at the position of that number."""
    operations = traced.operations
    return operations.best(Equal(operations.index, x), operations.earliest(), operations.index_squared)


def _polynomial(loop: Loop, parts: int) -> Polynomial:
    """The loop's number of steps as a polynomial, found from small sizes and tried on others."""
    step = loop.steps()[0]
    monomials: list[tuple[int, ...]] = [(), *((i,) for i in range(parts))]
    monomials += list(itertools.combinations_with_replacement(range(parts), 2))
    points = [tuple(1 + m.count(i) for i in range(parts)) for m in monomials]
    rows = [[_product(m, sizes) for m in monomials] for sizes in points]
    found = np.linalg.solve(np.array(rows, dtype=float), [float(loop.times(*sizes)) for sizes in points])
    # In whole quarters, which weights hold exactly: any other polynomial misses one of the trials.
    polynomial = {m: c for m, c in zip(monomials, ((found * 4).round() / 4).tolist(), strict=True) if c}
    for sizes in _trials(parts):
        value = sum(c * _product(m, sizes) for m, c in polynomial.items())
        if value != loop.times(*sizes):
            detail = f"the loop of {step.__name__} runs {loop.times(*sizes)} times for {sizes}"
            refuse("step-count", detail, function_place(step))
    return polynomial


def _trials(parts: int) -> list[tuple[int, ...]]:
    numbers = [1, 2, 3, 5, 9, 16, 33, 100, 257]
    tried = itertools.product(range(3), range(len(numbers)))
    return [tuple(numbers[(j + k * i) % len(numbers)] for i in range(parts)) for k, j in tried]


def _product(monomial: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    return math.prod(sizes[part] for part in monomial)
