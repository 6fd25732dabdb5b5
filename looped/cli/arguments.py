"""The command-line adapter: a command's words into its dataclass of options, mistakes into one sentence.

    @dataclass(frozen=True)
    class Args:
        \"""What the command does.\"""

        task: Annotated[str, Positional("TASK")]
        \"""The task's name.\"""
        length: int = 10
        \"""How long.\"""

A field is an option `--length N`, a `Positional` one a word without a name; the text below it is its help.
Types: str, int, float, bool (an option without a value), Path, Literal, each of them `| None`, and tuples
of them, which take several words (`--stop a b`) or, with `repeat`, one at a time (`--set A --set B`). Needs
Python alone, so that every command runs on a machine that has torch and little else. Knows no command.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from looped.errors import InputError, quoted

T = TypeVar("T")
NUMBER = re.compile(r"-\d+(\.\d*)?([eE][+-]?\d+)?|-\.\d+|-inf")  # a value, not an option
KINDS = {int: "N", float: "NUMBER", Path: "PATH"}
NUMBERS = {(int, False): "a whole number", (int, True): "whole numbers", (float, False): "a number",
           (float, True): "numbers"}  # fmt: skip
MISSING = dataclasses.MISSING
NARROWEST = 50  # columns of a help, however few the terminal has
FEW = 5  # words that a complaint repeats


@dataclass(frozen=True)
class Option:
    """How a field is shown in the help, and whether it may be given several times."""

    metavar: str = ""  # of the value; unless given, the option's name or the type
    default: str | None = None  # what the help says of the default; unless given, the default itself
    repeat: bool = False  # a tuple gets one value each time the option is given
    bare: str = ""  # of a Literal: what the option means where none of the choices follows it


@dataclass(frozen=True)
class Positional(Option):
    """A word without a name; unless given, the metavar is the field's name."""


# A part of the user's own that a run was trained with; may be given several times, for several runs.
OwnPart = Annotated[tuple[str, ...], Option("FILE.py:Name", default="", repeat=True)]


@dataclass(frozen=True)
class Field:
    """One field of the dataclass, as the parser needs it."""

    name: str
    kind: type  # of one value
    choices: tuple[str, ...]  # of a Literal
    many: bool
    shown: Option
    default: Any  # MISSING where a person has to give it
    text: str

    @property
    def positional(self) -> bool:
        """Whether it has no name on the command line."""
        return isinstance(self.shown, Positional)

    @property
    def flag(self) -> str:
        """How it is typed: `--show-steps`, or `TASK` for a positional one."""
        if self.positional:
            return (self.shown.metavar or self.name.upper()).rstrip("…")
        return "--" + self.name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What its value looks like."""
        plain = self.name.upper() if self.kind is str else KINDS.get(self.kind, "")
        one = "|".join(self.choices) or plain
        return self.shown.metavar or (f"{one}…" if self.many else one)

    @property
    def wanted(self) -> str:
        """What a complaint says it takes."""
        return NUMBERS[self.kind, self.many] if self.kind in (int, float) else self.metavar

    def read(self, words: Sequence[str]) -> Any:
        """The value that some words stand for."""
        for word in words:
            if self.choices and word not in self.choices:
                *others, last = self.choices
                either = f"{', '.join(others)} or {last}" if others else last
                raise InputError(f"{self.flag} takes {either}, not {word[:40]!r}")
        try:
            values = [self.kind(word) for word in words]
        except ValueError:
            given = " ".join(map(quoted, words[:FEW]))
            raise InputError(f"{self.flag} takes {self.wanted}, not {given}") from None
        return tuple(values) if self.many else values[-1]


def parse(kind: type[T], words: Sequence[str], prog: str) -> T:
    """An instance of the dataclass `kind` from the words after `looped NAME`; raises `InputError`.

    `--help` prints the help to stdout and leaves with `SystemExit(0)`.
    """
    fields = _fields(kind)
    named = {field.flag: field for field in fields if not field.positional}
    found: dict[str, Any] = {}
    plain: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            plain += rest
            break
        if not _is_option(word):
            plain.append(word)
            continue
        if word in ("-h", "--help"):
            print(_help(kind, fields, prog))
            raise SystemExit(0)
        flag, equals, value = word.partition("=")
        field = named.get(flag.replace("_", "-"))
        if field is None:
            raise InputError(_unknown(flag, named, prog))
        if field.kind is bool:
            if equals:
                raise InputError(f"{flag} takes no value, not {value[:40]!r}")
            found[field.name] = True
            continue
        given = [value] if equals else _values(field, rest)
        if not given and not field.many:
            raise InputError(f"{flag} takes {field.wanted}, and there is none; `{prog} --help` shows how")
        before = found.get(field.name, ()) if field.shown.repeat else ()
        read = field.read(given)
        found[field.name] = (*before, *read) if field.many else read
    for field in fields:
        if field.positional and (plain or field.many):
            count = len(plain) if field.many else 1
            found[field.name] = field.read(plain[:count])
            del plain[:count]
    required = [field for field in fields if field.default is MISSING]
    if any(field.name not in found for field in required):
        needed = " and ".join(field.flag for field in required)
        raise InputError(f"{prog} needs {needed}; `{prog} --help` shows how")
    if plain:
        word = quoted(plain[0])
        raise InputError(f"{prog} takes no further argument {word}; `{prog} --help` shows what it takes")
    return kind(**found)


def _values(field: Field, rest: list[str]) -> list[str]:
    """Take the words that belong to an option off the rest: one, or all up to the next option."""
    if field.shown.bare and not (rest and rest[0] in field.choices):
        return [field.shown.bare]
    most = len(rest) if field.many and not field.shown.repeat else 1
    taken = list(itertools.takewhile(lambda word: word != "--" and not _is_option(word), rest[:most]))
    del rest[: len(taken)]
    return taken


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not NUMBER.fullmatch(word)


def _unknown(flag: str, named: dict[str, Field], prog: str) -> str:
    """`looped trace has no option --lenght; did you mean --length?`."""
    nearest = difflib.get_close_matches(flag.strip("-"), [name.strip("-") for name in named], n=1)
    hint = f"did you mean --{nearest[0]}?" if nearest else f"`{prog} --help` lists its options"
    return f"{prog} has no option {quoted(flag)[1:-1]}; {hint}"


# --- what a dataclass says of itself -----------------------------------------------------------------------
def _fields(kind: type) -> list[Field]:
    hints, texts = get_type_hints(kind, include_extras=True), _texts(kind)
    return [_field(each, hints[each.name], texts.get(each.name, "")) for each in dataclasses.fields(kind)]


def _field(field: dataclasses.Field[Any], hint: Any, text: str) -> Field:
    shown = Option()
    if hasattr(hint, "__metadata__"):
        shown = next((each for each in hint.__metadata__ if isinstance(each, Option)), shown)
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        hint = next(each for each in get_args(hint) if each is not NoneType)
    many = get_origin(hint) is tuple
    if many:
        hint = get_args(hint)[0]
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    return Field(field.name, str if choices else hint, choices, many, shown, field.default, text)


def _texts(kind: type) -> dict[str, str]:
    """The text below each field of a dataclass and of those it inherits from."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for pair in itertools.pairwise(body.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


# --- help --------------------------------------------------------------------------------------------------
def _help(kind: type, fields: Sequence[Field], prog: str) -> str:
    positional = {field.flag + ("…" if field.many else ""): field for field in fields if field.positional}
    words = [word if field.default is MISSING else f"[{word}]" for word, field in positional.items()]
    options = [field for field in fields if not field.positional]
    words += [f"{field.flag} {field.metavar}" for field in options if field.default is MISSING]
    width = max(NARROWEST, min(shutil.get_terminal_size((100, 24)).columns, 100))
    lines = [f"usage: {' '.join([prog, *words, '[OPTIONS]'])}", ""]
    lines += textwrap.wrap(" ".join((kind.__doc__ or "").split()), width)
    if positional:
        lines += [
            "",
            "arguments:",
            *_rows([(word, _told(field)) for word, field in positional.items()], width),
        ]
    told = [(f"{field.flag} {field.metavar}".strip(), _told(field)) for field in options]
    return "\n".join([*lines, "", "options:", *_rows([("-h, --help", "Show this."), *told], width)])


def _told(field: Field) -> str:
    """The help of a field, and its default where that says something."""
    default = field.shown.default
    if default is None and field.default not in (MISSING, None, "", (), False):
        values = field.default if field.many else (field.default,)
        default = f"(default: {' '.join(map(str, values))})"
    return f"{field.text} {default or ''}".strip()


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Two columns; a long first cell stands above its text."""
    left = min(max(len(name) for name, _ in rows), 26) + 4
    lines = []
    for name, text in rows:
        wrapped = textwrap.wrap(text, width - left, break_on_hyphens=False) or [""]
        first = f"  {name}"
        if len(first) + 2 > left:
            lines.append(first)
            first = ""
        lines += [f"{first:<{left}}{wrapped[0]}".rstrip(), *(" " * left + line for line in wrapped[1:])]
    return lines
