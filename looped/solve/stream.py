"""Questions from a file or a pipe, a bounded number of lines ahead, and answers in their order. Knows no model.

A thread reads lines into a queue of bounded length while answers are computed. Whoever asks gets what has arrived,
at least one line and at most `AT_ONCE`: a person at a keyboard is answered line by line, a file in large parcels.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TextIO

from looped.errors import InputError

AT_ONCE = 2048  # lines that are answered together at most
LONGEST_LINE = 1 << 17  # characters: more than the longest question with spaces
Line = tuple[int, str]  # number from 1, text without blanks around it


def parcels(lines: TextIO, at_once: int = AT_ONCE) -> Iterator[list[Line]]:
    """The lines that are not empty, as they arrive, at most `at_once` together."""
    waiting: queue.Queue[Line | BaseException | None] = queue.Queue(maxsize=2 * at_once)
    threading.Thread(target=_read, args=(lines, waiting), daemon=True).start()
    over = False
    while not over:
        parcel: list[Line] = []
        while not over and len(parcel) < at_once:
            try:
                item = waiting.get() if not parcel else waiting.get_nowait()
            except queue.Empty:
                break
            if isinstance(item, tuple):
                parcel.append(item)
                continue
            over = True
            if item is not None:
                if parcel:
                    yield parcel
                raise item
        if parcel:
            yield parcel


def _read(lines: TextIO, waiting: queue.Queue[Line | BaseException | None]) -> None:
    try:
        number = 0
        while line := lines.readline(LONGEST_LINE):
            number += 1
            if number == 1:
                line = line.removeprefix("\ufeff")  # which some editors begin a file with
            if len(line) == LONGEST_LINE and not line.endswith("\n"):
                raise InputError(
                    f"line {number} is longer than {LONGEST_LINE} characters, more than any question"
                )
            if text := line.strip():
                waiting.put((number, text))
        waiting.put(None)
    except UnicodeDecodeError:
        waiting.put(InputError("what was given to read is not a text of questions, one a line"))
    except Exception as error:  # whoever waits has to hear of it
        waiting.put(error)
