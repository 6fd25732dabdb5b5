"""What a model says: an answer, many of them, one step of the loop. As text, as JSON, and as HTML for a notebook.

    >>> Answer("1011+0110", "10001", 4, "oracle", 0.9998, "10001")
    1011+0110 → 10001 (right; 4 steps by oracle; confidence 0.9998)

Knows no model and no task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from looped.tables import BAD, GOOD, Cell, html_table
from looped.vocab import EOS

MOST_SHOWN = 60  # steps and positions of a table


@dataclass(frozen=True, repr=False)
class Answer:
    """What a model answers to a question, and what is right."""

    question: str
    answer: str
    steps: int  # of the loop until it was read
    stop: str  # the rule that chose them
    confidence: float  # 1: no doubt; the exponential of minus the mean cross entropy with its own answer
    expected: str  # by the task's oracle
    meaning: str = ""  # what the answer stands for: `15, least significant first`
    model: str = ""  # who answered: a shipped model's name, or a checkpoint's file

    @property
    def correct(self) -> bool:
        """Whether the oracle agrees."""
        return self.answer == self.expected

    @property
    def verdict(self) -> str:
        """`right`, or what would have been."""
        return "right" if self.correct else f"the answer is {shown(self.expected)}"

    @property
    def explained(self) -> str:
        """The answer with what it stands for: `11110 = 15, least significant first`."""
        return f"{shown(self.answer)} = {self.meaning}" if self.meaning else shown(self.answer)

    def __repr__(self) -> str:
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        facts = f"{self.verdict}; {steps} by {self.stop}; confidence {self.confidence:.4f}"
        return f"{self.question} → {self.explained} ({facts}{self.model and f'; {self.model}'})"

    def _repr_html_(self) -> str:
        return Answers((self,))._repr_html_()


class Answers(tuple[Answer, ...]):
    """Answers to many questions, in the order they were asked."""

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return sum(answer.correct for answer in self) / len(self) if self else 0.0

    def __repr__(self) -> str:
        right = sum(answer.correct for answer in self)
        return "\n".join([*map(repr, self), f"{right} of {len(self)} right"])

    def _repr_html_(self) -> str:
        rows = []
        for answer in self:
            colour = GOOD if answer.correct else BAD
            said = Cell(answer.explained, colour), Cell(answer.verdict, colour)
            rows.append((Cell(answer.question), *said, answer.steps, answer.stop, f"{answer.confidence:.4f}"))
        return html_table(("question", "answer", "", "steps", "stopped by", "confidence"), rows)


@dataclass(frozen=True, repr=False)
class Step:
    """The loop after one step: what would be read now, and how sure the model is of each token."""

    number: int  # from 1
    answer: str  # what stands before the first `#`
    row: tuple[str, ...]  # decoded, from the first position that counts on
    confidence: tuple[float, ...]  # probability of each decoded token
    changed: tuple[bool, ...]  # which of them differ from the step before; all of them at step 1
    surprise: float  # mean cross entropy with the decoded row, what stopping rules look at
    halted: float | None = None  # probability of being done by now, of a model that says so itself

    def __repr__(self) -> str:
        least, moved = min(self.confidence), sum(self.changed)
        return f"step {self.number}: {' '.join(self.row)} (confidence {least:.4f} or more; {moved} changed)"

    def facts(self) -> dict[str, object]:
        """The step as JSON."""
        return {
            "step": self.number,
            "answer": self.answer,
            "row": " ".join(self.row),
            "confidence": [round(p, 6) for p in self.confidence],
            "changed": sum(self.changed),
            "surprise": self.surprise,
            **({} if self.halted is None else {"halted": round(self.halted, 6)}),
        }


class StepSequence(Iterator[Step]):
    """The loop on one question: each step is computed when it is first asked for, and kept.

    `next` goes on from the last step it gave; `for` begins with the first. A notebook shows all of them as a grid in
    which a position is the bluer the surer the model is of its token; a token in bold has just changed.
    """

    def __init__(self, source: Iterator[Step]) -> None:
        self._source, self._kept, self._given = source, list[Step](), 0

    def __next__(self) -> Step:
        if not self._reaches(self._given):
            raise StopIteration
        self._given += 1
        return self._kept[self._given - 1]

    def __iter__(self) -> Iterator[Step]:
        number = 0
        while self._reaches(number):
            yield self._kept[number]
            number += 1

    def _reaches(self, number: int) -> bool:
        """Whether there is a step of this number, from 0."""
        if number == len(self._kept):
            self._kept.extend(step for step in [next(self._source, None)] if step is not None)
        return number < len(self._kept)

    def _repr_html_(self) -> str:
        steps = list(self)
        half = MOST_SHOWN // 2
        shown = steps if len(steps) <= MOST_SHOWN else [*steps[:half], *steps[-half:]]
        width = min(MOST_SHOWN, max(len(step.row) for step in steps))
        rows = [(step.number, *_cells(step, width), Cell(step.answer)) for step in shown]
        note = "" if shown is steps else f"{len(steps) - len(shown)} steps of the middle are left out"
        return html_table(("step", *[""] * width, "answer"), rows, note)


def _cells(step: Step, width: int) -> list[Cell]:
    tokens = zip(step.row, step.confidence, step.changed, strict=True)
    cells = [Cell(token, "", _fill(token, sure), new, f"{sure:.2%}") for token, sure, new in tokens]
    return cells[:width]


def _fill(token: str, sure: float) -> float:
    """How blue a position is: what stands for nothing stays pale."""
    return (0.15 if token == EOS else 1.0) * sure**2


def shown(answer: str) -> str:
    """An answer as people read it, which may be empty."""
    return answer or "empty"
