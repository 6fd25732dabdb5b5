"""The command `looped`: find a command's file, parse its options, run it, report errors in one sentence.

A command is one row of `COMMANDS` and a function `run_NAME` of the module there, imported only when it is asked for, so
that `looped --help` answers at once. This file knows no option of any command.

Exit status: 0 done, 1 done with a negative finding (`looped check` found a fault), 2 bad input or an
unusable file, 130 interrupted, 143 terminated, 141 the reader of the output is gone.
"""

from __future__ import annotations

import difflib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import get_type_hints

from looped import __version__
from looped.errors import QUOTED, InputError, quoted
from looped.training.interrupt import mend_streams, status_of, terminated_as_exception

# name → (module, summary), in the order a new user meets them
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("looped.cli.demo", "trains two small models in a minute and draws how far they hold"),
    "tasks": ("looped.cli.tasks", "the tasks with lengths, T(n) and an example row each"),
    "sample": ("looped.cli.tasks", "random questions and answers in the paper's notation"),
    "trace": ("looped.cli.programs", "runs a task's n-RASP-L program and prints variable × step"),
    "check": ("looped.cli.programs", "checks n-RASP-L programs in a file, naming line and rule"),
    "compile": ("looped.cli.compile", "an n-RASP-L program into the weights of a looped Transformer"),
    "compare": (
        "looped.cli.compile",
        "does a model simulate the program? reads its variables from the states",
    ),
    "solve": ("looped.cli.solve", "a model answers a question, or one per line from stdin"),
    "explore": ("looped.cli.show", "a page on which to ask a model and watch it loop"),
    "train": ("looped.cli.train", "trains a model; the same command again resumes"),
    "evaluate": ("looped.cli.evaluate", "accuracy of runs by length and stopping rule"),
    "discover": ("looped.cli.evaluate", "from which loop step on trained models are right, by length"),
    "verify": ("looped.cli.verify", "a model's row of the length leaderboard, which can be repeated"),
    "certify": ("looped.cli.verify", "shows that a local model is right at every length, or where it breaks"),
    "publish": ("looped.cli.compile", "a trained model as a folder of the Hugging Face hub"),
    "figure": ("looped.cli.show", "draws from files of results alone"),
    "reproduce": ("looped.cli.sweep", "runs what is missing of a figure of the paper, then draws it"),
    "sweep": ("looped.cli.sweep", "many runs from one file; the same command again does what is missing"),
    "status": ("looped.cli.sweep", "how the runs in a folder stand"),
    "cancel": ("looped.cli.sweep", "asks the runs in a folder to save and stop"),
    "cost": ("looped.cli.train", "what a run will take: operations, memory and time"),
    "bench": ("benchmarks", "measures this program against its peers in one run"),
}

LONGEST_NAME = 1024  # characters of a path that a sentence repeats
LONGEST_SENTENCE = 4000  # characters

# commands of two words, with options of their own
SUBCOMMANDS = {"bench ladder": "looped.cli.length_sweep", "bench chomsky": "benchmarks.chomsky"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `looped WORDS…` and return the exit status; every expected failure is one sentence on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    # Threads that wait for each other by spinning starve on a busy machine (measured: 34 s instead of 12 s); threads
    # that sleep at once make a training step a third longer on a quiet one. A fifth of a millisecond serves both.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    mend_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without × is no reason to crash
    try:
        with terminated_as_exception():
            status = _dispatch(words)
        sys.stdout.flush()
        return status
    except InputError as error:
        return _fail(_shortened(str(error), words))
    except BrokenPipeError:
        _drop_stdout()
        return 141
    except OSError as error:
        _drop_stdout()
        where = f": {error.filename}" if error.filename is not None else ""
        return _fail(_shortened(f"{error.strerror or error}{where}", words))
    except KeyboardInterrupt as error:
        return _fail("interrupted", status_of(error))
    except Exception as error:
        if (sentence := _sentence(error)) is None:
            raise
        return _fail(_shortened(sentence, words))


def _sentence(error: Exception) -> str | None:
    """What an error that is none of ours comes from, where that is known: memory, a variable, a file of the user's."""
    if _is_want_of_memory(error):
        return "there is not enough memory for this: ask for a smaller model, batch or length"
    if isinstance(error, ValueError) and "MPLBACKEND" in os.environ and "backend" in str(error):
        named = quoted(os.environ["MPLBACKEND"])
        return f"matplotlib knows no backend {named}, which the variable MPLBACKEND names; unset it"
    from looped.registry import fault

    return fault(error)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"looped {__version__}")
        return 0
    count = 2 if " ".join(words[:2]) in SUBCOMMANDS else 1
    name, rest = " ".join(words[:count]), words[count:]
    if name not in COMMANDS and name not in SUBCOMMANDS:
        nearest = difflib.get_close_matches(name[:QUOTED], COMMANDS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"the commands are {', '.join(COMMANDS)}"
        kind = "option" if name.startswith("-") else "command"
        raise InputError(f"unknown {kind} {quoted(name)}; {hint}")
    from looped.cli.arguments import parse

    module = _module(SUBCOMMANDS.get(name) or COMMANDS[name][0])
    run = getattr(module, f"run_{name.replace(' ', '_')}", None) or module.run  # a file may hold several
    try:
        args = parse(get_type_hints(run)["args"], rest, prog=f"looped {name}")
    except SystemExit:  # the command's --help, already printed
        return 0
    return int(run(args))


def _module(name: str) -> ModuleType:
    """A command's module; the benches lie beside the package in a checkout and are not installed with it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "benchmarks":
            raise
        raise InputError(
            "`looped bench` needs a checkout of the repository, where benchmarks/ lies: "
            "run `python -m looped bench NAME` there"
        ) from None


def _help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return f"""usage: looped COMMAND [OPTIONS]

Looped Transformers that hold past their training length.

{rows}

`looped COMMAND --help` shows a command's options; `looped --version` the version."""


def _fail(sentence: str, status: int = 2) -> int:
    signs = " ".join(sentence.split())  # names may hold anything
    shown = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in signs)
    print(f"looped: {shown}", file=sys.stderr)
    return status


def _shortened(sentence: str, words: Sequence[str]) -> str:
    """A sentence that repeats no argument at length; a file's name is left whole."""
    parts = {part for each in words for part in (each, *each.split("=", 1))}
    for word in sorted(parts, key=len, reverse=True):
        if len(word) > (LONGEST_NAME if os.sep in word else QUOTED):
            for form in (word, repr(word)[1:-1]):
                sentence = sentence.replace(form, word[: QUOTED - 1] + "…")
    return sentence if len(sentence) <= LONGEST_SENTENCE else sentence[:LONGEST_SENTENCE] + "…"


def _is_want_of_memory(error: Exception) -> bool:
    """Whether numpy, torch or a GPU has no more; by words and names, since torch may never have been imported."""
    told = type(error).__name__ == "OutOfMemoryError" or "not enough memory" in str(error)
    return isinstance(error, MemoryError) or told or "can't allocate memory" in str(error)


def _drop_stdout() -> None:
    """Where stdout takes no more, throws away what is left for it, so that the interpreter exits quietly."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
