"""A program as a graph: its functions run once on symbols, its variables' domains found by running on.

The functions are the program's own, with the language's operations in their global names replaced. A state
variable's domain starts with what `prepare` gives; every step may add values, until no step adds any more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from looped.compiler.graph import Graph
from looped.compiler.nodes import Domain, Node
from looped.compiler.operations import Operations
from looped.compiler.refusal import refuse
from looped.compiler.symbols import Symbol
from looped.compiler.tables import Facts
from looped.rasp.program import ROW, Loop, Program
from looped.rasp.rules import function_place
from looped.rasp.sequence import Kind

MOST_VALUES = 1024  # of a state variable
MOST_ROUNDS = 256  # of looking whether a step adds values

Symbols = dict[str, Symbol]
Domains = dict[str, Domain]


@dataclass(frozen=True)
class Traced:
    """A program's graph: the state before the loops, and for every loop the state after its step."""

    graph: Graph
    operations: Operations
    row: Node
    leaves: dict[str, Node]
    first: dict[str, Node]
    after: tuple[dict[str, Node], ...]
    read_out: Callable[[dict[str, Node]], Node]  # the output of a state
    names: tuple[
        str, ...
    ]  # of the program's own variables; a square may go along with one that holds indices


def trace(program: Program, longest: int) -> Traced:
    """Runs a program on symbols until the domains of its variables stand still."""
    steps = [_single_step(loop) for loop in program.loops]
    domains: Domains | None = None
    for _ in range(MOST_ROUNDS):
        traced = _run(program, steps, longest, domains)
        grown = {name: _joined(name, traced) for name in traced.names}
        if grown == domains:
            return traced
        moving = [name for name in grown if domains is None or grown[name] != domains[name]]
        domains = grown
        if any(len(domain.values or ()) > MOST_VALUES for domain in grown.values()):
            break
    step = next(
        (
            step
            for step, state in zip(steps, traced.after, strict=True)
            for name in moving
            if state[name].domain != traced.leaves[name].domain
        ),
        program.prepare,
    )
    refuse(
        "unbounded-domain",
        f"step after step, {' and '.join(map(repr, moving))} may take new values",
        function_place(step),
    )


def _joined(name: str, traced: Traced) -> Domain:
    domain = traced.first[name].domain.join(traced.leaves[name].domain)
    for state in traced.after:
        domain = domain.join(state[name].domain)
    return domain


def _single_step(loop: Loop) -> Callable[..., Any]:
    if len(loop.parts) != 1 or isinstance(loop.parts[0], Loop):
        inner = next(loop.steps())
        refuse("loop-nesting", f"the loop of {inner.__name__} has several parts", function_place(inner))
    return loop.parts[0]


def _run(
    program: Program,
    steps: list[Callable[..., Any]],
    longest: int,
    domains: Domains | None,
) -> Traced:
    graph = Graph()
    operations = Operations(graph, longest)
    table = operations.table()
    worlds: dict[int, dict[str, Any]] = {}
    tokens = set(range(len(program.vocab))) - {program.vocab.pause}
    row = Symbol(graph, graph.leaf(ROW, Domain.of(tokens)), Kind.TOKEN)
    graph.facts = _facts(program, operations, row)

    def call(function: Callable[..., Any], state: Symbols) -> Any:
        known = {**state, ROW: row}
        given = {name: known[name] for name in inspect.signature(function).parameters}
        return _rebuilt(function, table, worlds)(**given)

    first: Symbols = call(program.prepare, {})
    leaves: Symbols = {}
    for name, symbol in first.items():
        domain = domains[name] if domains else symbol.node.domain
        leaves[name] = Symbol(graph, graph.leaf(f"state {name}", domain, invariant=False), symbol.kind)
    after = []
    for step in steps:
        changed = call(step, leaves)
        for name, symbol in changed.items():
            if symbol.kind is not leaves[name].kind:
                kinds_seen = f"{leaves[name].kind.value} before {step.__name__} and {symbol.kind.value} after"
                refuse("kind-varies", f"the variable {name!r} is {kinds_seen}", function_place(step))
        after.append({**leaves, **changed})

    def read_out(state: dict[str, Node]) -> Node:
        symbols = {name: Symbol(graph, state[name], first[name].kind) for name in first}
        output = call(program.readout, symbols)
        assert isinstance(output, Symbol)
        return output.node

    traced = Traced(
        graph,
        operations,
        row.node,
        _nodes(leaves),
        _nodes(first),
        tuple(_nodes(state) for state in after),
        read_out,
        tuple(first),
    )
    _add_squares(traced)
    return traced


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


def _nodes(symbols: Symbols) -> dict[str, Node]:
    return {name: symbol.node for name, symbol in symbols.items()}


def _rebuilt(
    function: Callable[..., Any],
    table: dict[Callable[..., Any], Callable[..., Any]],
    worlds: dict[int, dict[str, Any]],
) -> Callable[..., Any]:
    """The same code with the language's operations in its global names replaced."""
    assert isinstance(function, FunctionType)
    key = id(function.__globals__)
    if key not in worlds:
        world = worlds[key] = dict(function.__globals__)
        named = {operation.__name__: stand_in for operation, stand_in in table.items()}
        for name, value in function.__globals__.items():
            if isinstance(value, ModuleType) and value.__name__.startswith("looped.rasp"):
                world[name] = SimpleNamespace(**{**vars(value), **named})
            elif isinstance(value, FunctionType) and value in table:
                world[name] = table[value]
            elif isinstance(value, FunctionType) and not value.__module__.startswith(_LANGUAGE):
                world[name] = _rebuilt(value, table, worlds)
    return FunctionType(
        function.__code__, worlds[key], function.__name__, function.__defaults__, function.__closure__
    )


_LANGUAGE = ("looped.rasp.core", "looped.rasp.library", "looped.rasp.program", "looped.rasp.sequence")


def _facts(program: Program, operations: Operations, row: Symbol) -> Facts:
    """How a row looks: symbols, with at most one kind of separator between, then `>`, then only `#`."""
    eoq, eos = program.vocab.eoq, program.vocab.eos
    separators = [program.vocab.id(name) for name in program.separators]
    symbols = set(row.node.domain.values or ()) - {eoq, eos, *separators}

    def past(mark: int) -> Node:
        return operations.has_seen(row, operations.full(row, mark)).node

    if len(separators) != 1:
        seen = {(symbol, 0) for symbol in symbols | set(separators)} | {(eoq, 1), (eos, 1)}
        return Facts((row.node, past(eoq)), frozenset(seen))
    (sign,) = separators
    question = {(symbol, side, 0) for symbol in symbols for side in (0, 1)} | {(sign, 1, 0)}
    return Facts((row.node, past(sign), past(eoq)), frozenset({*question, (eoq, 1, 1), (eos, 1, 1)}))
