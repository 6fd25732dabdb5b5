"""A command's words into its `Args`, and whatever is wrong with them into one sentence. Knows no command.

tyro reads a dataclass and draws its complaints as boxes of several lines:

    ╭─ Value error ───────────────────────────────────────────────────────╮
    │ Error parsing --length: invalid literal for int() with base 10: 'x' │
    │ ─────────────────────────────────────────────────────────────────── │
    │ Argument helptext:                                                  │
    │     --length INT                                                    │

A person at a shell and a script that logs stderr both do better with `--length takes INT, not 'x'`. Only the
text of the box is used, not tyro's internals; a box nobody foresaw is still cut down to its first paragraph.
"""

from __future__ import annotations

import dataclasses
import difflib
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import TypeVar, get_args, get_type_hints

import tyro

from looped.errors import InputError

T = TypeVar("T")


def parse(kind: type[T], words: Sequence[str], prog: str) -> T:
    """An instance of the dataclass `kind` from the words after `looped NAME`; raises `InputError`.

    `--help` prints the help to stdout and leaves with `SystemExit(0)`.
    """
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            args, unknown = tyro.cli(
                kind,
                args=list(words),
                prog=prog,
                return_unknown_args=True,
                config=(tyro.conf.CascadeSubcommandArgs, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(_sentence(complaint.getvalue(), kind, prog)) from None
    if unknown:
        raise InputError(_unknown(unknown, kind, prog))
    return args


def _unknown(words: list[str], kind: type, prog: str) -> str:
    """`looped trace has no option --lenght; did you mean --length?`."""
    options = [word for word in words if word.startswith("-")]
    if not options:
        return f"{prog} takes no further argument {words[0]!r}; `{prog} --help` shows what it takes"
    known = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(kind)]
    name = options[0].partition("=")[0]
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"`{prog} --help` lists its options"
    return f"{prog} has no option {name}; {hint}"


def _sentence(box: str, kind: type, prog: str) -> str:
    """What a box of tyro's says, in one sentence."""
    paragraphs = _paragraphs(box)
    first = paragraphs[0] if paragraphs else "its arguments could not be read"
    if first.startswith("Missing from"):
        return f"{prog} needs {_required(kind)}; `{prog} --help` shows how"
    wrong = re.fullmatch(r"Error parsing (\S+?): (.*)", first)
    if wrong is None:
        return f"{prog}: {first[0].lower()}{first[1:].rstrip('.')}; `{prog} --help` shows how"
    name, detail = wrong.groups()
    if name == kind.__name__:  # raised by the dataclass itself, which speaks in sentences
        return detail
    usage = re.search(rf"{re.escape(name)} (\[.*\]|\{{.*\}}|\S+)", " ".join(paragraphs[1:]))
    typed = re.findall(r"'[^']*'|\"[^\"]*\"", detail)
    if usage is None or not typed:
        return f"{prog}: {name}: {detail}"
    return f"{name} takes {usage[1]}, not {' '.join(typed)}"


def _paragraphs(box: str) -> list[str]:
    """The text between the rules of a box, each paragraph on one line, without the frame and its title."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box).replace("{None}|", "")  # an option may be left out anyway
    lines = [line.strip("│| \t") for line in plain.splitlines()]
    if "╭" not in plain:  # where stdout cannot draw a frame, the title is a line of its own
        lines = lines[1:]
    joined = "\n".join("\n" if re.fullmatch(r"[╭╰+─-].*[╮╯+─-]", line) else line for line in lines)
    return [" ".join(part.split()) for part in re.split(r"\n{2,}", joined) if part.strip()]


def _required(kind: type) -> str:
    """The fields without a default, as a person names them: `TASK and QUESTION`, `--out`."""
    hints = get_type_hints(kind, include_extras=True)
    names = []
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            positional = tyro.conf.Positional in get_args(hints[field.name])
            names.append(field.name.upper() if positional else "--" + field.name.replace("_", "-"))
    return " and ".join(names)
