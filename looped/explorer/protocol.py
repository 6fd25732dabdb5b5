"""What goes over the wire: requests read strictly, answers written compactly.

A request's body is a JSON object with exactly the fields of one of the dataclasses here. An answer is JSON; arrays
in it are base64 of little-endian numbers, which a page reads ten times faster than lists. A run is answered as one
JSON object per line (`start`, `step` …, `end`), sent as they come. Knows shapes of messages, not how they travel.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from looped import serial
from looped.errors import InputError
from looped.explorer.models import USUAL_STRETCH
from looped.explorer.queries import LoopStep, WatchedLoop
from looped.rasp.trace import Trace

T = TypeVar("T")
OUTPUT = "output"  # the name of what a program would put out, beside its variables


@dataclass(frozen=True)
class RunRequest:
    """Ask a model a question and watch it."""

    model: str
    question: str
    stretch: float = USUAL_STRETCH  # how far to run, in multiples of T(n)


@dataclass(frozen=True)
class ProgramRequest:
    """Run the program of a model's task on a question."""

    model: str
    question: str


@dataclass(frozen=True)
class AttentionRequest:
    """Where a head looks at a step; layers and heads count from 0, steps from 1."""

    model: str
    question: str
    step: int
    layer: int
    head: int


@dataclass(frozen=True)
class DrawRequest:
    """Draw a question for a model."""

    model: str
    length: int
    family: str = "uniform"
    seed: int = 0


def read(kind: type[T], body: bytes) -> T:
    """A request from a body; raises a sentence that names what is wrong with it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("the request is not UTF-8") from None
    return serial.from_json(kind, serial.parse(text, "the request"), "the request")


def packed(array: np.ndarray) -> str:
    """An array's numbers as base64, little-endian."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def line(message: dict[str, object]) -> bytes:
    """One message of a stream."""
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def start(watch: WatchedLoop) -> dict[str, object]:
    """The first message of a run."""
    asked = watch.asked
    return {
        "kind": "start",
        "question": asked.text,
        "length": asked.length,
        "needed": asked.needed,
        "steps": asked.steps,
        "names": list(watch.vocab.names),
        "row": watch.batch.tokens[0].tolist(),
        "target": watch.batch.targets[0].tolist(),
        "from": watch.start,
        "expected": watch.expected,
        "meaning": watch.task.meaning(watch.expected),
    }


def step(seen: LoopStep) -> dict[str, object]:
    """What is seen after a step; tokens and shares are uint16 [K, L], shares of 65535."""
    return {
        "kind": "step",
        "step": seen.step,
        "tokens": packed(seen.tokens),
        "shares": packed(seen.shares),
        "confidence": round(seen.confidence, 6),
        "entropy": round(seen.entropy, 6),
        "change": round(seen.change, 6),
        "rewritten": seen.rewritten,
        "correct": seen.correct,
        "answer": seen.answer,
        "meaning": seen.meaning,
    }


def end(watch: WatchedLoop) -> dict[str, object]:
    """The last message of a run."""
    return {"kind": "end", "rules": list(watch.rules()), "seconds": round(watch.computed, 4)}


def program(run: Trace) -> dict[str, object]:
    """A program's run, its output first; values are int16 [steps + 1, L], -1 for no token. Row 0 is the preparation."""
    steps = {OUTPUT: run.outputs} | {
        name: [entry.values for entry in run.entries if entry.name == name] for name in run.variables
    }
    return {
        "steps": run.steps,
        "names": list(run.program.vocab.names),
        "variables": [
            {"name": name, "tokens": name == OUTPUT or name in run.program.tokens, "values": packed(_stacked(rows))}
            for name, rows in steps.items()
        ],
    }  # fmt: skip


def _stacked(rows: Sequence[np.ndarray]) -> np.ndarray:
    """A value that is the same everywhere stands at every position."""
    return np.stack([np.broadcast_to(row, rows[0].shape) for row in rows]).astype(np.int16)
