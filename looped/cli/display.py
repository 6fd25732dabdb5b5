"""The live table of a run on a terminal.

    copy · fop-loop-adaptive · quick
    ━━━━━━━━━━━╸━━━━━━━  612/1000  length 10  16.1 steps/s  0:24 left
     seed    loss   exact   exact at 10
        0  0.0213   0.953         0.812
        1  0.0197   0.969         0.844
    at step 600, exact by length   10: .853   15: .402   20: .091

Everything goes to stderr: a command's facts own stdout. Knows nothing of how training is done.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from looped.evaluation.measure import Row
from looped.training.config import TrainConfig
from looped.training.progress import Lines, Listener, Report, clock

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live


def listener() -> Listener:
    """The live table where stderr is a terminal, plain lines where it is not."""
    if not sys.stderr.isatty():
        return Lines()  # which needs no rich
    from rich.console import Console

    return LiveTable(Console(stderr=True))


class LiveTable(Listener):
    """One row per seed, redrawn in place; rare events scroll by above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._config: TrainConfig | None = None
        self._report: Report | None = None
        self._evaluated = ""

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Draw the empty table."""
        from rich.live import Live

        self._config = config
        self.note(f"training in {folder}" + (f", going on after step {step}" if step else ""))
        self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._draw)
        self._live.start()

    def report(self, report: Report) -> None:
        """Show it at the next refresh."""
        self._report = report

    def evaluation(self, step: int, rows: Sequence[Row]) -> None:
        """Show the means over seeds below the table."""
        by_length: dict[int, list[float]] = {}
        for row in rows:
            by_length.setdefault(row.length, []).append(row.accuracy)
        shown = "   ".join(f"{length}: {sum(got) / len(got):.3f}" for length, got in by_length.items())
        self._evaluated = f"at step {step}, exact by length   {shown}"

    def note(self, sentence: str) -> None:
        """A line above the table."""
        self.console.print(sentence, markup=False, highlight=False)

    def end(self) -> None:
        """Leave the last table on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        config, report = self._config, self._report
        assert config is not None
        name = Text(f"{config.task} · {config.method} · {config.recipe}")
        if report is None:
            return Group(name, Text("first steps …"))
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=config.steps, completed=report.step, width=30),
            f"{report.step}/{config.steps}",
            f"length {report.length}",
            f"{report.steps_per_second:.1f} steps/s",
            f"{clock(report.seconds_left)} left",
        )
        table = Table(box=None, padding=(0, 2))
        for column in ("seed", "loss", "exact", f"exact at {report.length}", "gradient", ""):
            table.add_column(column, justify="right")
        for seed in report.seeds:
            table.add_row(
                str(seed.seed), _number(seed.loss, 4), _number(seed.accuracy, 3),
                _number(seed.accuracy_longest, 3), _number(seed.norm, 3), "" if seed.training else "stopped",
            )  # fmt: skip
        return Group(name, head, table, Text(self._evaluated))


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
