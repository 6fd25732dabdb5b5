"""What a model says: an answer, many of them, one step of the loop. As text, as JSON, and as HTML for a notebook.

    >>> Answer("1011+0110", "10001", 4, "oracle", 0.9998, "10001")
    1011+0110 → 10001 (right; 4 steps by oracle; confidence 0.9998)

Knows no model and no task.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

GOOD, BAD, QUIET = "#0072B2", "#D55E00", "#888888"  # told apart in colour blindness too


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
        return f"{self.question} → {self.explained} ({facts})"

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
        head = "".join(
            f"<th>{name}</th>" for name in ("question", "answer", "", "steps", "stop", "confidence")
        )
        body = []
        for answer in self:
            colour = GOOD if answer.correct else BAD
            cells = [
                f"<code>{html.escape(answer.question)}</code>",
                f'<code style="color:{colour}">{html.escape(shown(answer.answer))}</code>',
                f'<span style="color:{colour}">{html.escape(answer.verdict)}</span>',
                str(answer.steps),
                html.escape(answer.stop),
                f"{answer.confidence:.4f}",
            ]
            body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        return f"<table><tr>{head}</tr>{''.join(body)}</table>"


@dataclass(frozen=True, repr=False)
class Step:
    """The loop after one step: what would be read now, and how sure the model is of each token."""

    number: int  # from 1
    answer: str  # what stands before the first `#`
    row: tuple[str, ...]  # decoded, from the first position that counts on
    confidence: tuple[float, ...]  # probability of each decoded token
    changed: tuple[bool, ...]  # which of them differ from the step before; all of them at step 1
    surprise: float  # mean cross entropy with the decoded row, what stopping rules look at

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
        }


def shown(answer: str) -> str:
    """An answer as people read it, which may be empty."""
    return answer or "empty"
