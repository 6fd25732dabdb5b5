"""A program: prepare, a step repeated T(n) times, read out; and how to run one.

    prepare(row)          the row of the question → named sequences, the state
    step(seq, row)        takes any of them by name, and `row`, the question itself, at every step
                          (the paper's input injection); returns the ones it changes
    readout(seq, row)     the state → the output row

T comes from the sizes of the question: of `1 0 1 + 1 1 0` with `+` as separator they are (3, 3), and a loop's
`times` is called with them. A program may have several loops, one after the other, and a loop's body may hold loops.

The functions come from a checked file (`Program.file` names it; `looped.rasp.lint.load` makes such a program), or
they are Python functions of the user's own process. Of the second, no source is checked: only the sequences refuse
what breaks a rule while it runs, and every iteration of a step must do the same operations as the first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import NoReturn

import numpy as np

from looped.errors import InputError
from looped.rasp.attention import Array
from looped.rasp.lint_rules import LegalityError, Violation, function_place
from looped.rasp.sequence import Kind, Seq, kind_of, recording, seq, unwrap
from looped.vocab import EOS, IGNORED, Vocab

BLANK = -1  # no token at all, printed `·`: what comes in from the left of a row
ROW = "row"  # the name under which every function may ask for the question's row
MOST_STEPS = 10_000_000  # of a run
MOST_POSITIONS = 1 << 20  # of a row

State = dict[str, Seq]
Step = Callable[..., State]
Function = Step | Callable[..., Seq]
Sizes = tuple[int, ...]  # of a question's parts


@dataclass(frozen=True)
class Loop:
    """A step, or several parts in order (steps or loops), repeated `times(*sizes)` times."""

    body: Step | tuple[Step | Loop, ...]
    times: Callable[..., int]

    def __post_init__(self) -> None:
        if not self.parts or not all(callable(part) or isinstance(part, Loop) for part in self.parts):
            raise InputError("a Loop's body is a function, or a tuple of functions and loops")
        if not callable(self.times):
            raise InputError("a Loop's times is a function of the question's sizes")

    @property
    def parts(self) -> tuple[Step | Loop, ...]:
        """The body as a tuple, whether it was one step or several parts."""
        return self.body if isinstance(self.body, tuple) else (self.body,)

    def count(self, sizes: Sequence[int]) -> int:
        """How many steps it does for a question of these sizes, loops inside counted out."""
        inside = sum(part.count(sizes) if isinstance(part, Loop) else 1 for part in self.parts)
        return _times(self, sizes) * inside

    def all_parts(self) -> Iterator[Step | Loop]:
        """This loop, and every loop and step function inside, in order."""
        yield self
        for part in self.parts:
            yield from part.all_parts() if isinstance(part, Loop) else (part,)

    def steps(self) -> list[Step]:
        """Every step function inside, in order."""
        return [part for part in self.all_parts() if not isinstance(part, Loop)]


@dataclass(frozen=True)
class Program:
    """An n-RASP-L program and what one must know to feed it."""

    name: str
    vocab: Vocab  # a row holds these ids
    prepare: Callable[[Seq], State]
    loops: tuple[Loop, ...]
    readout: Callable[..., Seq]
    answer_size: Callable[..., int]  # sizes of the question → most tokens an answer has
    example: str  # a question's tokens separated by spaces, at least two to a part
    separators: tuple[str, ...] = ()  # tokens between the parts of a question
    tokens: tuple[str, ...] = ()  # variables that hold token ids, printed by their names
    _signatures: dict[Function, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("loops", "separators", "tokens"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_fields()
        for name in (*self.separators, *self.example.split()):
            self.vocab.id(name)
        for function in self.functions:
            if not callable(function) or getattr(function, "__name__", "<lambda>") == "<lambda>":
                raise InputError(f"{self.name}: prepare, steps and readout must be functions with a name")
            _check_parameters(function)

    def _check_fields(self) -> None:
        """Raise unless every field has the type that it must have."""
        texts = ((self.name, self.example), self.separators, self.tokens)
        if not all(_is_tuple_of(str, each) for each in texts):
            text = "name and example are text, its separators and tokens tuples of text"
            raise InputError(f"a Program's {text}")
        if not isinstance(self.vocab, Vocab):
            raise InputError(f"a Program's vocab is a Vocab, not {type(self.vocab).__name__}")
        if not _is_tuple_of(Loop, self.loops):
            raise InputError("a Program's loops are a tuple of Loop(...)")
        if not all(callable(f) for f in (self.prepare, self.readout, self.answer_size)):
            raise InputError("a Program's prepare, readout and answer_size are functions")

    @property
    def file(self) -> str | None:
        """The checked file that it is interpreted from, or None if it is made of Python functions."""
        return function_place(self.prepare)[0] if hasattr(self.prepare, "place") else None

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """Prepare, every step, readout."""
        steps = [step for loop in self.loops for step in loop.steps()]
        return (self.prepare, *steps, self.readout)

    # --- sizes -------------------------------------------------------------------------------------------
    def sizes(self, row: Sequence[int]) -> Sizes:
        """The lengths of the question's parts: `1 0 + 1 1 > # #` has (2, 2)."""
        ids = [int(i) for i in row]
        if ids.count(self.vocab.eoq) != 1:
            self._refuse(f"a row must have one end-of-question token, not {_text(self, ids)}")
        question = ids[: ids.index(self.vocab.eoq)]
        separators = {self.vocab.id(name) for name in self.separators}
        marks = {self.vocab.eos, self.vocab.pause}
        if marks & set(question) or set(ids[len(question) + 1 :]) - {self.vocab.eos}:
            self._refuse(f"a row is a question, `>` and any number of `#`: {_text(self, ids)}")
        ends = [-1, *(at for at, i in enumerate(question) if i in separators), len(question)]
        sizes = tuple(end - start - 1 for start, end in pairwise(ends))
        if len(sizes) != len(self.separators) + 1 or 0 in sizes:
            self._refuse(f"a question looks like {self.example!r}, not {_text(self, question)!r}")
        return sizes

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(f"{self.name}: {what}")

    def steps(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How often each loop repeats for a question of these sizes."""
        return tuple(_times(loop, sizes) for loop in self.loops)

    def total(self, sizes: Sequence[int]) -> int:
        """How many steps are done altogether."""
        return sum(loop.count(sizes) for loop in self.loops)

    # --- rows --------------------------------------------------------------------------------------------
    def row(self, question: Sequence[str], size: int | None = None) -> Array:
        """The row of a question's token names: `1 0` becomes `1 0 > # #`, long enough for the answer."""
        ids = [*self.vocab.encode(question), self.vocab.eoq]
        if size is None:
            wanted = self.answer_size(*self.sizes(ids))
            size = len(ids) + _count(wanted, f"{self.name}: answer_size must give a number of tokens")
        if size > MOST_POSITIONS:
            refuse_function(self.prepare, f"a row of {size} positions, more than {MOST_POSITIONS}", "budget")
        if size < len(ids):
            self._refuse(f"a row of {size} is too short for a question of {len(ids) - 1}")
        return np.array(ids + [self.vocab.eos] * (size - len(ids)), dtype=np.int64)

    def answer(self, row: Array, output: Array) -> list[str]:
        """The answer's token names: what the output holds from the end-of-question token to the first `#`."""
        start = row.tolist().index(self.vocab.eoq)
        names = self.vocab.decode(output[start:].tolist())
        return names[: names.index(EOS)] if EOS in names else names

    def show(self, row: Array, output: Array) -> str:
        """The output row as the paper prints it: `* * * * 1 # # #`."""
        start = row.tolist().index(self.vocab.eoq)
        return " ".join([IGNORED] * start + self.vocab.decode(output[start:].tolist()))


def run(program: Program, rows: Array | Sequence[Sequence[int]], extra: int = 0) -> Array:
    """The output rows [B, n] (or one row [n]) of input rows of ids, each after its own number of steps.

    `extra` repeats every loop that many times more than stated, to see what an overrun does.
    """
    data = unwrap(seq(np.asarray(rows)))
    flat = data.reshape(-1, data.shape[-1])
    out = np.empty_like(flat)
    for sizes, members in _by_sizes(program, flat):
        for _, _, state in unroll(program, flat[members], sizes, extra):
            final = state
        out[members] = unwrap(read_out(program, final, flat[members]))
    return out.reshape(data.shape)


def evaluate(function: Callable[..., Seq], *rows: object) -> Array:
    """The output of a straight-line program, a function of sequences."""
    output = function(*[seq(row) for row in rows])
    if not isinstance(output, Seq):
        raise InputError(f"{function.__name__} must return a sequence, not {type(output).__name__}")
    return unwrap(output)


def unroll(program: Program, rows: Array, sizes: Sizes, extra: int = 0) -> Iterator[tuple[int, str, State]]:
    """Yield (0, "prepare", state) and then (step number, step's name, state) after every step."""
    steps = program.total(sizes)
    if steps > MOST_STEPS:
        detail = f"the program asks for {steps} steps, more than {MOST_STEPS}"
        refuse_function(program.prepare, detail, "budget")
    row, state = seq(rows), State()
    scheduled = (step for loop in program.loops for step in _schedule(loop, sizes, extra))
    for number, function in enumerate(chain([program.prepare], scheduled)):
        state = _returned(program, function, _call(program, function, state, row), state)
        yield number, function.__name__, state


def read_out(program: Program, state: State, rows: Array) -> Seq:
    """The output row of a state."""
    output = _call(program, program.readout, state, seq(rows))
    if not isinstance(output, Seq):
        raise InputError(f"{program.name}: readout must return a sequence, not {type(output).__name__}")
    if kind_of(output) is Kind.INDEX:
        refuse_function(program.readout, "the output row holds tokens, not indices", rule="index-to-token")
    return output


def _schedule(loop: Loop, sizes: Sizes, extra: int) -> Iterator[Step]:
    for _ in range(_times(loop, sizes) + extra):
        for part in loop.parts:
            yield from _schedule(part, sizes, extra) if isinstance(part, Loop) else (part,)


def _is_tuple_of(kind: type, value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, kind) for each in value)


def _times(loop: Loop, sizes: Sequence[int]) -> int:
    return _count(loop.times(*sizes), "a loop's times must be a number of steps")


def _count(value: object, rule: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(f"{rule}, not {value!r:.40}")
    return value


def _call(program: Program, function: Function, state: State, row: Seq) -> object:
    """Call with the arguments it names; its operations must be those of every call before."""
    known = {**state, ROW: row}
    names = parameters(function)
    for name in names:
        if name not in known:
            have = ", ".join(known)
            refuse_function(function, f"it asks for {name!r}, but all there is to know is {have}")
    with recording() as operations:
        result = function(**{name: known[name] for name in names})
    signature = program._signatures.setdefault(function, operations)
    if signature != operations:
        refuse_function(function, "its operations differed between two iterations or two lengths")
    return result


@lru_cache(maxsize=4096)
def parameters(function: Function) -> tuple[str, ...]:
    """The names of a function's parameters."""
    return tuple(inspect.signature(function).parameters)


def _returned(program: Program, function: Function, result: object, before: State) -> State:
    """The state with the returned variables put in."""
    what = f"{program.name}: {function.__name__}"
    if not isinstance(result, dict) or not all(isinstance(value, Seq) for value in result.values()):
        raise InputError(f"{what} must return a dict of sequences by name")
    if ROW in result or (before and not set(result) <= set(before)):
        strange = ", ".join(sorted(set(result) - set(before)))
        raise InputError(f"{what} may return only variables of the state, not {strange}")
    for name in set(result) & set(before):
        if (kind_of(result[name]) is Kind.INDEX) != (kind_of(before[name]) is Kind.INDEX):
            refuse_function(function, f"{name!r} turns from index to token or back", rule="index-to-token")
    # A variable is no constant of the program's text, even where it begins as one.
    return {**before, **{name: Seq(unwrap(value), kind_of(value)) for name, value in result.items()}}


def _by_sizes(program: Program, rows: Array) -> Iterator[tuple[Sizes, Array]]:
    """Group rows whose questions have equal sizes, so that each group runs as one batch."""
    names = len(program.vocab)
    if rows.min() < 0 or rows.max() >= names:
        raise InputError(f"{program.name}: a row holds ids from 0 to {names - 1}")
    marks = [program.vocab.id(name) for name in program.vocab.names[len(program.vocab.symbols) :]]
    structure = np.where(np.isin(rows, [*marks, *map(program.vocab.id, program.separators)]), rows, -1)
    _, first, group = np.unique(structure, axis=0, return_index=True, return_inverse=True)
    for i, example in enumerate(first):
        yield program.sizes(rows[example].tolist()), np.nonzero(group.reshape(-1) == i)[0]


def _check_parameters(function: Function) -> None:
    if getattr(function, "__closure__", None) is not None:
        refuse_function(function, "it captures names of an enclosing function", rule="hidden-state")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is not parameter.empty:
            refuse_function(function, f"its parameter {parameter.name!r} must be plain and without a default")


def refuse_function(function: Function, detail: str, rule: str = "step-varies") -> NoReturn:
    """Raise a `LegalityError` at a function's first line."""
    place = function_place(function)
    located = hasattr(function, "place")
    raise LegalityError(Violation(rule, *place, f"{function.__name__}: {detail}"), located)


def _text(program: Program, ids: Sequence[int]) -> str:
    text = " ".join(program.vocab.decode(ids))
    return text if len(text) <= 60 else f"{text[:60]}…"
