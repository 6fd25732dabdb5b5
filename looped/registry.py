"""One door for tasks, blocks, methods, stopping rules and recipes: ours and other people's, by name.

    resolve("task", "my_tasks.py:Reverse")   what a person types: runs the file; a run records my_tasks.py:Reverse
    find("task", "my_tasks.py:Reverse")      what a run has recorded: runs nothing, says what to pass if it is missing
    register(Reverse())                      makes an object known in this process
    [project.entry-points."looped.tasks"]    reverse = "my_package:Reverse"     in a package's pyproject.toml

Only a file that a person names is run. A run's folder holds names, never code. The modules that define a kind declare
it here (`declare`); this file knows none of them.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from looped import files
from looped.errors import InputError

LARGEST_FILE = 1 << 22  # bytes of a user's file of Python
USER_MODULE = "looped_user_"  # begins the name of the module that such a file becomes
RECIPE_PARAMETERS = 3  # task, method, seeds: how a recipe is told from a function that makes a block


class NotKnown(InputError):
    """Raised for a name that nothing is known by here."""


@dataclass(frozen=True)
class PartKind:
    """One kind of part, and those that are known."""

    word: str  # as sentences call it: task
    words: str  # several of them
    group: str  # of entry points: looped.tasks
    option: str  # that takes one: --task
    what: str  # what one is: a subclass of looped.tasks.Task
    accept: Callable[[Any], Any]  # the part from what a file holds, a class made an object; None: it is none
    ours: Mapping[str, Any]  # the package's own
    listed: Mapping[str, Any]  # those of them that lists name
    known: dict[str, Any] = field(default_factory=dict)  # other people's, by the name that a run records
    files: dict[str, str] = field(default_factory=dict)  # those a person named: whole path and name
    used: set[str] = field(default_factory=set)  # names of those that were asked for


KINDS: dict[str, PartKind] = {}


def declare(
    word: str,
    group: str,
    option: str,
    what: str,
    accept: Callable[[Any], Any],
    ours: Mapping[str, Any],
    words: str = "",
    listed: Mapping[str, Any] | None = None,
) -> None:
    """Make a kind of part known; `ours` are looked at whenever a name is asked for, lists name those `listed`."""
    shown = ours if listed is None else listed
    KINDS[word] = PartKind(word, words or f"{word}s", group, option, what, accept, ours, shown)


declare(
    "block", "looped.blocks", "--block", "a class or a function that makes a block from a ModelConfig",
    lambda found: found if callable(found) else None, {},
)  # fmt: skip


def object_of(base: type) -> Callable[[Any], Any]:
    """For `PartKind.accept`: an object of this class as it is, a subclass made one, None for anything else."""

    def accept(found: Any) -> Any:
        if inspect.isclass(found) and issubclass(found, base) and found is not base:
            return found()
        return found if isinstance(found, base) else None

    return accept


def find(word: str, name: str) -> Any:
    """The part that a run or another file names; never runs a file, and says what to pass where it is not known."""
    kind = KINDS[word]
    alias = name.strip().replace("-", "_")  # `binary-sum` will do for `binary_sum`
    for table, key in ((kind.ours, name), (kind.ours, alias), (kind.known, name)):
        if key in table:
            kind.used.add(key)
            return table[key]
    file, _, own = name.rpartition(":")
    for known, part in reversed(kind.known.items()):
        renamed = file and known in kind.files and known.endswith(f":{own}")  # the file that a person names
        if renamed or getattr(part, "name", None) == name:
            kind.used.add(known)
            return part
    for point in entry_points(group=kind.group):
        if point.name == name:
            kind.known[name] = _loaded(kind, point)
            return kind.known[name]
    raise NotKnown(_missing(kind, name))


def resolve(word: str, text: str) -> str:
    """Make known what a person names, `FILE.py:Name` or a name; returns the name that a run records.

    What follows `=` after a name is a parameter and is left to others.
    """
    kind = KINDS[word]
    file, _, own = text.rpartition(":")
    name, equals, value = own.partition("=")
    if text.endswith(".py") and Path(text).is_file():
        raise InputError(f"{text} is a file: name the {word} in it, as {text}:Name")
    if not file.endswith(".py"):
        plain, equals, value = text.partition("=")
        part = find(word, plain)
        known = plain if plain in kind.ours or plain in kind.known else register(part, kind=word)
        return known + equals + value
    path, known = Path(file), f"{Path(file).name}:{name}"
    if not path.is_file():
        raise InputError(f"there is no file {file}: a {word} of your own is named FILE.py:Name")
    module = _run(path)
    if not hasattr(module, name):
        own_names = [key for key, each in vars(module).items() if key[0] != "_" and _is_own(module, each)]
        raise InputError(f"{file} has no {name[:60]!r}; {_listed(name, own_names, 'it has')}")
    whole = f"{path.resolve()}:{name}"
    if (other := kind.files.get(known, whole)) != whole:
        raise InputError(f"{other} and {whole} would both be known as {known}: rename one of the files")
    kind.known[known] = accepted(kind, getattr(module, name), f"{name} of {file}")
    kind.files[known] = whole
    return known + equals + value


def register(part: Any, name: str | None = None, kind: str | None = None) -> str:
    """Make a task, block, method, stopping rule or recipe known in this process; returns the name a run records.

    The kind follows from the object: a function of task, method and seeds is a recipe, any other makes a block.
    """
    found = KINDS[kind or _kind_of(part)]
    made = accepted(found, part, f"{part!r:.60}")
    for table in (found.ours, found.known):
        for known, other in table.items():
            if (other is made or (table is found.ours and _same(other, made))) and name in (None, known):
                return known
    known = name or _reference(made)
    before = found.known.get(known)
    if name is None and before is not None and not callable(made) and vars(before) != vars(made):
        raise InputError(
            f"another {found.word} is known as {known}: give this one a name, register(…, name=…)"
        )
    found.known[known] = made
    return known


def names(word: str) -> list[str]:
    """Every name that a list of this kind shows: the package's own, entry points, what was registered."""
    kind = KINDS[word]
    installed = (point.name for point in entry_points(group=kind.group))
    return list(dict.fromkeys([*kind.listed, *installed, *kind.known]))


def named_files() -> list[str]:
    """What a person named from files, as words for another process: `--own task=/home/me/my_tasks.py:Reverse`."""
    files = [f"{kind.word}={path}" for kind in KINDS.values() for path in kind.files.values()]
    return [word for file in files for word in ("--own", file)]


def resolve_named(files: Iterable[str]) -> None:
    """Make known in this process what the other one was told: the values of its `--own`."""
    for file in files:
        word, _, path = file.partition("=")
        resolve(word, path)


class NamedParts:
    """What a command's options name, by kind: made known at once; `check` complains of what nothing has asked for."""

    def __init__(self, **texts: Iterable[str]) -> None:
        self._names = [(word, resolve(word, text)) for word, each in texts.items() for text in each]
        for word, name in self._names:
            KINDS[word].used.discard(name)

    def check(self) -> None:
        """Raise if a part was named that no run needs."""
        for word, name in self._names:
            if name not in KINDS[word].used:
                option = KINDS[word].option.split()[0]
                raise InputError(f"no run here was trained with the {word} {name}: leave out {option}")


def accepted(kind: PartKind, found: Any, what: str) -> Any:
    """The part that an object is, or stands for; raises where it is of another kind."""
    if inspect.isclass(found) and inspect.isabstract(found):
        lacking = ", ".join(sorted(found.__abstractmethods__))  # type: ignore[attr-defined]
        raise InputError(f"the {kind.word} {what} lacks {lacking}")
    try:
        part = kind.accept(found)
    except TypeError as error:
        raise InputError(f"the {kind.word} {what} could not be made: {error}") from None
    if part is None:
        raise InputError(f"{what} is no {kind.word}: one is {kind.what}")
    name = str(getattr(part, "name", ""))
    if name in kind.ours and not _same(kind.ours[name], part):  # results would be taken for those of ours
        raise InputError(f"the {kind.word} {what} calls itself {name}, as one of ours: give it another name")
    return part


def label(name: str) -> str:
    """The short form of a recorded name, for the names of folders: `my_tasks.py:Reverse` gives `reverse`."""
    own = re.split(r"[:.]", name)[-1].lower() if ":" in name else name
    return re.sub(r"[^A-Za-z0-9._-]", "-", own)


def _kind_of(part: Any) -> str:
    abstract = inspect.isclass(part) and inspect.isabstract(part)
    for word, kind in KINDS.items():
        if word in ("block", "recipe", "model") or abstract:
            continue
        with contextlib.suppress(TypeError):
            if kind.accept(part) is not None:
                return word
    if isinstance(part, FunctionType) and len(inspect.signature(part).parameters) == RECIPE_PARAMETERS:
        return "recipe"
    if callable(part):
        return "block"
    raise InputError(f"{part!r:.60} is none of {', '.join(KINDS)}")


def _same(part: Any, other: Any) -> bool:
    return part is other or (type(part) is type(other) and not callable(part) and vars(part) == vars(other))


def _reference(part: Any) -> str:
    """The file's name and the part's own, as a person would name it; else its `name`, or its module and name."""
    shape = part if callable(part) and hasattr(part, "__qualname__") else type(part)
    try:
        file = inspect.getsourcefile(shape)
    except (TypeError, OSError):
        file = None
    if shape.__module__.startswith("looped.") and hasattr(part, "name"):
        return str(part.name)  # an object of one of our classes, such as a `Method`
    return f"{Path(file).name if file else shape.__module__}:{shape.__qualname__}"


def _loaded(kind: PartKind, point: EntryPoint) -> Any:
    try:
        found = point.load()
    except Exception as error:  # a package that is not ours
        why = f"{type(error).__name__}: {error}"
        raise InputError(
            f"the {kind.word} {point.name} ({point.value}) could not be loaded: {why}"
        ) from error
    return accepted(kind, found, f"{point.name} ({point.value})")


def _missing(kind: PartKind, name: str) -> str:
    file, _, own = name[:200].rpartition(":")
    if file:
        how = f"pass {kind.option} FILE.py:{own} (in Python, looped.register({own}))"
        return f"this run needs the {kind.word} {own} of {file}: {how}"
    if not kind.ours:
        return f"the {kind.word} {name[:80]!r} is not known here: pass {kind.option} FILE.py:Name"
    said = _listed(name, names(kind.word), f"the {kind.words} are", kind.ours)
    return f"unknown {kind.word} {name[:40]!r}; {said}"


def _listed(name: str, known: list[str], verb: str, more: Iterable[str] = ()) -> str:
    """All there is, and what may have been meant."""
    near = difflib.get_close_matches(name[:60], [*known, *more], n=1)
    return f"{verb} {', '.join(known) or 'nothing'}" + (f" (did you mean {near[0]}?)" if near else "")


def _is_own(module: ModuleType, found: Any) -> bool:
    """Whether a file makes something itself, rather than importing it."""
    if isinstance(found, type | FunctionType | ModuleType):
        return getattr(found, "__module__", None) == module.__name__
    return True


def fault(error: BaseException) -> str | None:
    """The file, line and function of a person's own where an error arose, as a sentence; None if it was not there."""
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).startswith(USER_MODULE):
            place = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name}"
    return place and f"{place}: {type(error).__name__}: {error}"


def _run(path: Path) -> ModuleType:
    """The module in a file, run once a process and again when it has changed; it may import its neighbours."""
    whole = path.resolve()
    text = files.read_bytes(whole, "a file of Python", LARGEST_FILE)
    key = hashlib.sha256(str(whole).encode() + text).hexdigest()[:16]
    name = f"{USER_MODULE}{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, whole)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], folder = module, str(whole.parent)
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    finally:
        if added:
            sys.path.remove(folder)
    return module
