"""Results of the paper's figures into the tables of a text: no number in them was typed.

    python -m scripts.paper_tables docs/paper_tables.md

The text marks the places of tables (`scripts.docs_tables`); a run that has no result yet has no row. Trains and
measures nothing.

| table            | what                                                                              |
|------------------|-----------------------------------------------------------------------------------|
| accuracy         | the method at the longest length trained and at the paper's, by seed               |
| TASK             | every method at every length: mean over seeds                                      |
| recipes          | the method trained as `paper` says and as `fast` does, from the longest trained on  |
| stopping         | where confidence stops all problems of the paper's length together, by seed        |
| rules            | the stopping rules at the paper's length, and FOP-Loop-Fixed: mean over seeds       |
| paper            | the recipe `paper` from the authors' initial weights, with and without injection   |
| paper-stopping   | where confidence stops these models                                                 |
| paper-rules      | the stopping rules on these models                                                  |

The last three are made from `--paper`, the others from `--results`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from looped import checkpoints, tasks
from looped.errors import InputError
from looped.experiments import paper, queue
from looped.experiments.paper import FigureChoice
from looped.experiments.queue import Rows
from looped.result_files import over_seeds
from looped.tasks.base import Task
from scripts import docs_tables
from scripts.docs_tables import markdown, spaced

Key = tuple[str, str]  # task and method
Found = dict[Key, Rows]


def main(words: Sequence[str] | None = None) -> int:
    """Fill the tables of a text in its place."""
    parser = argparse.ArgumentParser(prog="python -m scripts.paper_tables", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("text", type=Path, metavar="FILE.md")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--paper", type=Path, default=Path("results"))
    args = parser.parse_args(words)
    try:
        if not args.text.is_file():
            raise InputError(f"there is no text {args.text}")
        text = args.text.read_text(encoding="utf-8")
        checkpoints.write(args.text, fill(text, args.results, args.paper).encode())
    except InputError as error:
        print(f"looped: {error}", file=sys.stderr)
        return 2
    return 0


def fill(text: str, folder: Path, of_paper: Path) -> str:
    """The text with every generated table made anew from the results in a folder, and those of `paper` in another."""
    lengths, stopping, rules = (
        _found(names, folder) for names in (("main", "ablation"), ("stopping",), ("rules",))
    )
    tables: dict[str, Callable[[], str]] = {
        "accuracy": partial(_accuracy, lengths),
        "stopping": partial(_stopping, stopping),
        "rules": partial(_rules, rules),
        "recipes": partial(
            _recipes, lengths, _found(("main",), folder, FigureChoice("paper", methods=(paper.OURS,)))
        ),
        **{name: partial(_by_length, tasks.get(name), lengths) for name in tasks.TASKS},
        "paper": lambda: _paper(_trained_as_paper("fig7", of_paper, (paper.OURS, "fop-loop-adaptive-wo"))),
        "paper-stopping": lambda: _stopping(_trained_as_paper("stopping", of_paper)),
        "paper-rules": lambda: _rules(_trained_as_paper("rules-far", of_paper)),
    }
    return docs_tables.fill(text, tables)


def _found(figures: Sequence[str], folder: Path, choice: FigureChoice | None = None) -> Found:
    """The rows of each run of some figures that has a result."""
    found: Found = {}
    for measured in paper.rows([paper.get(name) for name in figures], choice):
        plan = measured.plan.fit(measured.run)
        rows = queue.read_result(
            queue.result_file(folder, measured.run.folder, plan), measured.run.config, plan
        )
        if rows is not None:
            found[measured.run.task, measured.run.method] = rows
    return found


def _trained_as_paper(figure: str, folder: Path, methods: tuple[str, ...] = (paper.OURS,)) -> Found:
    """The rows of a figure's runs with the recipe `paper`: of five seeds, or of three where there are no more."""
    of_three = _found((figure,), folder, FigureChoice("paper", seeds=(0, 1, 2), methods=methods))
    return {**of_three, **_found((figure,), folder, FigureChoice("paper", methods=methods))}


def _paper(found: Found) -> str:
    """Every method of every task from its longest training length on."""
    lines = []
    for task in _tasks(found):
        for method, rows in sorted(
            (method, rows) for (name, method), rows in found.items() if name == task.name
        ):
            longest, near = task.paper.max_length, task.paper.test_length
            past = [length for length in paper.far(task) if near < length <= 2 * near]
            further = "; ".join(
                f"{length}: {_share(over_seeds(_values(rows, length)).mean)}" for length in past
            )
            injection = "yes" if method == paper.OURS else "no"
            at = (_spread(_values(rows, longest)), near, f"**{_spread(_values(rows, near))}**")
            lines.append(
                (spaced(task.name), injection, *at, " ".join(map(_share, _values(rows, near))), further)
            )
    columns = (
        "task", "injection", "longest trained: exact", "the paper's length", "exact there", "by seed", "further"
    )  # fmt: skip
    return markdown(columns, lines)


def _accuracy(found: Found) -> str:
    columns = ("task", "longest trained", "exact there", "the paper's length", "exact there", "by seed")
    lines = []
    for task in _tasks(found):
        rows = found[task.name, paper.OURS]
        longest, near = task.paper.max_length, task.paper.test_length
        seeds = " ".join(map(_share, _values(rows, near)))
        there = (_spread(_values(rows, longest)), near, f"**{_spread(_values(rows, near))}**")
        lines.append((spaced(task.name), longest, *there, seeds))
    return markdown(columns, lines)


def _by_length(task: Task, found: Found) -> str:
    lengths = paper.far(task)
    lines = []
    for (name, method), rows in found.items():
        if name == task.name:
            seeds = len({row["seed"] for row in rows})
            means = (_share(over_seeds(_values(rows, length)).mean) for length in lengths)
            lines.append((f"{method} ({seeds} seeds)", *means))
    return markdown(("method", *map(str, lengths)), lines)


def _recipes(fast: Found, letter: Found) -> str:
    lines = []
    for task in _tasks(letter):
        key = task.name, paper.OURS
        if key not in fast:
            continue
        for length in (length for length in paper.far(task) if length >= task.paper.max_length):
            seeds = [_values(rows, length) for rows in (letter[key], fast[key])]
            cells = [cell for of in seeds for cell in (_spread(of), " ".join(map(_share, of)))]
            lines.append((spaced(task.name), length, *cells))
    return markdown(("task", "length", "`paper`", "by seed", "`fast`", "by seed"), lines)


def _stopping(found: Found) -> str:
    columns = (
        "task",
        "length",
        "T",
        "step chosen, by seed",
        "exact there",
        "exact at T",
        "exact at T + 2",
        "at 2 T",
    )
    lines = []
    for task in _tasks(found):
        rows, near = found[task.name, paper.OURS], task.paper.test_length
        last = max(row["step"] for row in rows)

        def after(step: int, rows: Rows = rows) -> str:
            return " ".join(_share(row["accuracy"]) for row in rows if row["step"] == step)

        chosen = [row for row in rows if row["step"] == row["chosen"]]
        steps, there = (
            " ".join(str(row["step"]) for row in chosen),
            " ".join(_share(row["accuracy"]) for row in chosen),
        )
        lines.append(
            (
                spaced(task.name),
                near,
                last // 2,
                steps,
                there,
                after(last // 2),
                after(last // 2 + 2),
                after(last),
            )
        )
    return markdown(columns, lines)


def _rules(found: Found) -> str:
    fixed = "fop-loop-fixed"
    beside = any(method == fixed for _, method in found)
    lines = []
    for task in _tasks(found):
        near = task.paper.test_length
        cells = [_spread(_values(found[task.name, paper.OURS], near, stop)) for stop in paper.RULES]
        if beside:
            other = found.get((task.name, fixed))
            cells.append("–" if other is None else _spread(_values(other, near)))
        lines.append((spaced(task.name), near, *cells))
    return markdown(("task", "length", *paper.RULES, *([fixed] if beside else [])), lines)


def _tasks(found: Found) -> list[Task]:
    """The tasks of which the method itself has a result."""
    return [tasks.get(name) for name in tasks.TASKS if (name, paper.OURS) in found]


def _values(rows: Rows, length: int, stop: str = "oracle") -> list[float]:
    """Accuracies by seed at a length under a rule."""
    return [row["accuracy"] for row in rows if row["length"] == length and row["stop"] == stop]


def _spread(values: Sequence[float]) -> str:
    """Mean and standard error: `.866 ± .049`."""
    spread = over_seeds(values)
    error = "" if not spread.error else f" ± {_share(spread.error)}"
    return f"{_share(spread.mean)}{error}"


def _share(value: float) -> str:
    """`.998`; 1 and 0 are said only of what is exactly that."""
    if value in (0.0, 1.0):
        return str(int(value))
    if value > 0.9995:
        return ">.999"
    return "<.001" if value < 0.0005 else f"{value:.3f}".lstrip("0")


if __name__ == "__main__":
    sys.exit(main())
