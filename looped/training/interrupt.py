"""Ctrl-C and SIGTERM ask training to finish its step, save and stop."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupt:
    """While entered, notes the first SIGINT or SIGTERM; a second one ends the program at once.

    with Interrupt() as asked:
        train(…, stop=asked)
    return asked.status          # 0, or 130 and 143 as shells count them
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._old: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Whether a stop was requested."""
        return self.signal is not None

    @property
    def status(self) -> int:
        """The exit status that tells."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}
