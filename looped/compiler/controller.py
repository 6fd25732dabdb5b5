"""When to go on to the next loop, and when the answer is there: counted inside the model.

The number of steps of each loop is a polynomial in the sizes of the question, and the sizes are differences of
the places of the marks: of `1 0 1 + 1 1 0 >` the sign stands at 3 and the mark at 7, so the sizes are 3 and
7 - 3 - 1. A product of sizes comes from squares, which are looked up: position j knows j². A clock counts the
steps; when it reaches the sum of the first k loops' steps, flag k goes up, and with the last one all is done.

Only the last position has seen the whole question. The model's relay tells every position its flags.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from looped.compiler.frontend import Traced
from looped.compiler.matching import Equal, match
from looped.compiler.nodes import FLAG, Domain, Node
from looped.compiler.refusal import refuse
from looped.compiler.symbols import Symbol
from looped.rasp.core import equals
from looped.rasp.program import Loop, Program
from looped.rasp.rules import function_place
from looped.rasp.sequence import Kind

CLOCK = "clock"
Polynomial = dict[
    tuple[int, ...], Fraction
]  # exponents' parts, () for 1, (0,) for the first size, (0, 1) a product


@dataclass(frozen=True)
class Control:
    """The clock and the flags: leaves of the graph, their first values, and their values after a step."""

    leaves: dict[str, Node]
    first: dict[str, Node]
    after: dict[str, Node]
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
    first = {
        name: graph.compare(">=", graph.affine([(-1, end)])) for name, end in zip(flags, ends, strict=True)
    }
    after = {
        name: graph.compare(">=", graph.affine([(1, now), (-1, end)]))
        for name, end in zip(flags, ends, strict=True)
    }
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
        marks.append(operations.best(mark_match, operations.earliest(), [operations.index])[0])
    starts: list[Node | None] = [None, *marks[:-1]]
    return [
        end if start is None else graph.affine([(1, end), (-1, start)], -1)
        for start, end in zip(starts, marks, strict=True)
    ]


def _evaluate(traced: Traced, sizes: list[Node], polynomial: Polynomial) -> Node:
    graph = traced.graph
    terms: list[tuple[float, Node]] = []
    for parts, coefficient in polynomial.items():
        weight = float(coefficient)
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
    return operations.best(Equal(operations.index, x), operations.earliest(), [operations.index_squared])[0]


def _polynomial(loop: Loop, parts: int) -> Polynomial:
    """The loop's number of steps as a polynomial, found from small sizes and tried on others."""
    step = next(loop.steps())
    monomials: list[tuple[int, ...]] = [(), *((i,) for i in range(parts))]
    monomials += list(itertools.combinations_with_replacement(range(parts), 2))
    ones = [1] * parts

    def at(*raised: int) -> tuple[int, ...]:
        return tuple(one + raised.count(i) for i, one in enumerate(ones))

    rows = [_row(monomials, at(*m)) for m in monomials]
    found = _solve(rows, [Fraction(loop.times(*at(*m))) for m in monomials])
    polynomial = {m: c for m, c in zip(monomials, found, strict=True) if c}
    for sizes in _trials(parts):
        value = sum(c * _product(m, sizes) for m, c in polynomial.items())
        if value != loop.times(*sizes):
            refuse(
                "step-count",
                f"the loop of {step.__name__} runs {loop.times(*sizes)} times for {sizes}",
                function_place(step),
            )
    if any(c.denominator not in (1, 2, 4) for c in polynomial.values()):
        refuse(
            "step-count",
            f"the loop of {step.__name__} has coefficients finer than a quarter",
            function_place(step),
        )
    return polynomial


def _trials(parts: int) -> list[tuple[int, ...]]:
    numbers = [1, 2, 3, 5, 9, 16, 33, 100, 257]
    shifted: Callable[[int], list[int]] = lambda k: numbers[k:] + numbers[:k]  # noqa: E731
    return [
        tuple(column)
        for k in range(3)
        for column in zip(*(shifted(k * i) for i in range(parts)), strict=True)
    ]


def _product(monomial: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    value = 1
    for part in monomial:
        value *= sizes[part]
    return value


def _row(monomials: list[tuple[int, ...]], sizes: tuple[int, ...]) -> list[Fraction]:
    return [Fraction(_product(m, sizes)) for m in monomials]


def _solve(rows: list[list[Fraction]], values: list[Fraction]) -> list[Fraction]:
    """Exact Gaussian elimination; the sample points determine the polynomial."""
    work = [[*row, value] for row, value in zip(rows, values, strict=True)]
    size = len(work)
    for i in range(size):
        pivot = next(j for j in range(i, size) if work[j][i])
        work[i], work[pivot] = work[pivot], work[i]
        work[i] = [x / work[i][i] for x in work[i]]
        for j in range(size):
            if j != i and work[j][i]:
                factor = work[j][i]
                work[j] = [x - factor * y for x, y in zip(work[j], work[i], strict=True)]
    return [row[-1] for row in work]
