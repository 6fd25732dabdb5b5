"""What a person sees while jobs run: a live table on a terminal, lines in a pipe. Knows nothing of engines.

    run                           state     step        loss   measured
    copy-fop-loop-adaptive-fast   running   3200/8000   0.0214      0/1
    parity-fop-loop-adaptive-fast queued       0/8000        –      0/1

Everything goes to stderr: a command's facts own stdout.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from looped.experiments.drive import Watcher
from looped.experiments.jobs import Job, Status

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("run", "state", "step", "loss", "measured", "")
ORDER = ("done", "running", "queued", "failed", "cancelled")
EVERY_S = 10.0  # between two lines about all jobs


def watcher() -> Watcher:
    """The live table where stderr is a terminal, lines where it is not."""
    return LiveBoard() if sys.stderr.isatty() else LineBoard()


def cells(job: Job, status: Status) -> list[str]:
    """A job's row in a table."""
    return [
        job.name,
        status.state,
        f"{status.step}/{job.config.steps}",
        "–" if status.loss is None else f"{status.loss:.4f}",
        f"{status.measured}/{len(job.plans)}" if job.plans else "–",
        status.reason,
    ]


def totals(statuses: Sequence[Status]) -> str:
    """`4 done, 1 running, 7 queued`."""
    counts = Counter[str](status.state for status in statuses)
    return ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state]) or "no runs"


class LineBoard(Watcher):
    """A line for every job that changes its state, and now and then one about all."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._last = time.monotonic()

    def show(self, batch: Sequence[Job], statuses: Sequence[Status]) -> None:
        """Says what is new."""
        for job, status in zip(batch, statuses, strict=True):
            before = self._before.get(job.name, "done" if status.state == "done" else "queued")
            self._before[job.name] = status.state
            if status.state != before:
                where = f" at step {status.step} of {job.config.steps}" if status.state != "done" else ""
                why = f": {status.reason}" if status.reason else ""
                self._say(f"{job.name} {status.state}{where}{why}")
        if time.monotonic() - self._last > EVERY_S:
            self._last = time.monotonic()
            running = [
                f"{job.name} {status.step}/{job.config.steps}"
                for job, status in zip(batch, statuses, strict=True)
                if status.state == "running"
            ]
            self._say(f"{totals(statuses)}  ({'; '.join(running)})" if running else totals(statuses))

    def _say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)


class LiveBoard(Watcher):
    """A table redrawn in place; finished rows give way where the screen is too short."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4)

    def show(self, batch: Sequence[Job], statuses: Sequence[Status]) -> None:
        """Draws the table anew."""
        self._live.start()
        self._live.update(table(batch, statuses, self._console.height - 4))

    def end(self) -> None:
        """Leaves the last table on the screen."""
        self._live.stop()


def table(batch: Sequence[Job], statuses: Sequence[Status], room: int) -> Table:
    """What matters most of a sweep in so many rows: failed and running first, then the next ones."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2), caption=totals(statuses), caption_justify="left")
    for column in COLUMNS:
        drawn.add_column(column, justify="right" if column in ("step", "loss", "measured") else "left")
    pairs = list(zip(batch, statuses, strict=True))
    weight = {state: i for i, state in enumerate(("failed", "running", "queued", "cancelled", "done"))}
    urgent = sorted(range(len(pairs)), key=lambda i: (weight[pairs[i][1].state], i))[: max(room, 3)]
    for i in sorted(urgent):
        drawn.add_row(*(Text(cell) for cell in cells(*pairs[i])))
    return drawn
