"""What Ctrl-C and SIGTERM do to long work, and what closed and full streams do not.

Training finishes its step and saves; everything else stops at once, and saves what is done. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO, cast


class Terminated(KeyboardInterrupt):
    """SIGTERM, where Ctrl-C would be a `KeyboardInterrupt`."""


def status_of(error: KeyboardInterrupt) -> int:
    """The exit status as shells count it: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def terminated_as_exception() -> Iterator[None]:
    """While entered, SIGTERM raises `Terminated` if nothing else handles it, so that what is done can be saved."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


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

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}


class Lenient:
    """A stream that drops what cannot be written: a full disk under stderr must not end a training."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """The same for what was held back."""
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def mend_streams() -> None:
    """Put something in the place of streams that are closed; what is said about the work may be lost."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if sys.__stderr__ is not None and sys.stderr is sys.__stderr__:
        sys.stderr = cast(TextIO, Lenient(sys.stderr))
