"""Where a program to compile comes from: its name, or a file that has passed the legality check."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from looped.errors import InputError
from looped.rasp import programs
from looped.rasp.checker import check_file
from looped.rasp.program import Program
from looped.rasp.rules import LegalityError


def find(what: str, name: str | None = None) -> Program:
    """The program of a task's name, or the one in a file `what.py`; `name` picks one of several."""
    if not what.endswith(".py"):
        if name is not None:
            raise InputError(f"--name picks a program of a FILE.py; {what[:40]!r} is one already")
        return programs.get(what)
    report = check_file(what)
    for violation in report.violations:
        raise LegalityError(violation)
    found = _programs_in(Path(what))
    if not found:
        raise InputError(f"{what} has no Program(...), only functions; a loop is what is compiled")
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    picked = next((found[each] for each in found if name in (each, found[each].name)), None)
    if picked is None:
        wrong = "" if name is None else f", not {name[:40]!r}"
        raise InputError(f"{what} has the programs {', '.join(found)}; pick one with --name{wrong}")
    return picked


def _programs_in(path: Path) -> dict[str, Program]:
    """The programs of a file by what it calls them, as `looped check` does."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # the check has run it already
    found: dict[str, Program] = {}
    for called, value in vars(module).items():
        if isinstance(value, Program) and all(value is not other for other in found.values()):
            found[called] = value
    return found
