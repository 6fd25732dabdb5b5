"""How much one person may ask of the explorer at once. Every bound of the server stands here."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on a question, on a request and on the whole server."""

    length: int = 256  # of a question, in the task's own measure n
    row: int = 1040  # positions of the row that is laid out for it
    steps: int = 800  # loop steps of a run
    text: int = 2048  # characters of a typed question
    body: int = 8192  # bytes of a request's body
    header: int = 16384  # bytes of a request's line and headers together
    body_seconds: float = 5.0  # within which a body must have come
    waiting: int = 256  # requests that may wait for their turn; further ones are told to come back
    connections: int = 1024  # open at once
    slice_seconds: float = 0.025  # of computing, after which what is there is sent
    busy_slice_seconds: float = 0.1  # the same while others wait: fewer turns, so fewer waits, for everybody
    cache_bytes: int = 256 << 20  # of states kept, so that attention need not be computed from the start
    cache_entry: int = 128 << 20  # of one run

    def public(self) -> dict[str, int | float]:
        """What the page should know."""
        return {name: value for name, value in asdict(self).items() if name in ("length", "steps", "text")}


LIMITS = Limits()
