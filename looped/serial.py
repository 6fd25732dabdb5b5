"""Frozen dataclasses to JSON and back, strictly. Standard library only; knows no particular dataclass.

    TrainConfig(task="copy", …, lr=(0.0003,))  ⇄  {"task": "copy", …, "lr": [0.0003]}

What comes back is equal to what went in. An unknown key, a value of another type, NaN: each is refused in
a sentence that names the field. A missing key takes the field's default: old files outlive new fields.
A dataclass that was changed tells its OLD_NAMES, pairs of (old, new), and OLD_VALUES, triples of (field, old, new):
both are read, in files and by `override`; the new ones are written.
`override` sets single fields from text: `model.width=128`, `lr=3e-4,1e-3`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from looped import files
from looped.errors import InputError, quoted

T = TypeVar("T")
Json = dict[str, Any]
LARGEST_WHOLE = 1 << 63  # no field counts so far, and torch holds no more
LONGEST = 300  # characters of a complaint about values
FEW = 12  # fields that a complaint names


def to_json(value: object) -> Json:
    """A dataclass as plain JSON values."""
    plain: Json = json.loads(json.dumps(dataclasses.asdict(value), allow_nan=False))  # type: ignore[call-overload]
    return plain


def from_json(kind: type[T], data: object, what: str = "the configuration") -> T:
    """A dataclass from plain JSON values; `what` names their source in a complaint."""
    made: T = _dataclass(kind, data, "", what)
    return made


def former(kind: Any, data: Json) -> Json:
    """Plain JSON values of a dataclass under their first names, over which checksums last."""
    names = {new: old for old, new in getattr(kind, "OLD_NAMES", ())}
    values = {(field, new): old for field, old, new in getattr(kind, "OLD_VALUES", ())}
    hints = get_type_hints(kind)
    return {
        names.get(key, key): former(hints[key], value) if isinstance(value, dict) and key in hints
        else values.get((key, value), value) if isinstance(value, str) else value
        for key, value in data.items()
    }  # fmt: skip


def _current(kind: Any, name: str) -> str:
    """Today's name of a field."""
    names: dict[str, str] = dict(getattr(kind, "OLD_NAMES", ()))
    return names.get(name, name)


def parse(text: str, what: str) -> object:
    """Strict JSON from text: no NaN, no infinity, no key twice.

    >>> parse('{"a": 1, "a": 2}', "the file")
    Traceback (most recent call last):
    looped.errors.InputError: the file has the field 'a' twice
    """

    def refuse(constant: str) -> object:
        raise InputError(f"{what} holds {constant}, which is no number")

    def once(pairs: list[tuple[str, object]]) -> Json:
        found = dict(pairs)
        if len(found) < len(pairs):
            ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
            raise InputError(f"{what} has the field {twice[:40]!r} twice")
        return found

    def finite(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number[:20])  # type: ignore[return-value]

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what} is not JSON: {error}") from None


def read(path: Path, kind: str, largest: int) -> object:
    """Strict JSON from a file; `kind` says in a complaint what it should be: `a file of results`."""
    if not path.exists() or path.is_dir():
        raise InputError(f"there is no file {path}")
    return parse(files.read_text(path, kind, largest), str(path))


def override(value: T, assignments: Sequence[str]) -> T:
    """The same dataclass with single fields set from text such as `model.width=128`."""
    data = to_json(value)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"{quoted(assignment)} sets nothing: write KEY=VALUE, for example steps=2000")
        *outer, last = path.strip().split(".")
        kind: type = type(value)
        here = data
        for name in outer:
            inner = _hint(kind, name, path)
            if not dataclasses.is_dataclass(inner):
                raise InputError(f"{quoted(path.strip())} is no field: {name} has no parts")
            assert isinstance(inner, type)
            kind, here = inner, here[name]
        last = _current(kind, last)
        here[last] = _from_text(_hint(kind, last, path), text.strip(), path.strip())
    return from_json(type(value), data)


def to_text(value: object) -> str:
    """A value as `override` takes it: `true`, `none`, `0.9,0.99`; raises TypeError for what has no such form."""
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list | tuple) and not any(isinstance(item, list | tuple) for item in value):
        return ",".join(map(to_text, value))
    raise TypeError(value)


def differences(old: object, new: object) -> list[str]:
    """Every field that differs, with both values: `["lr: [0.0001] → [0.0003]"]`."""
    before, after = dict(leaves(to_json(old))), dict(leaves(to_json(new)))
    odd = [path for path in before | after if before.get(path) != after.get(path)]
    return [f"{path}: {_shown(before.get(path))} → {_shown(after.get(path))}" for path in odd]


def leaves(data: Json, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value that is no object, with the path to it: `("model.width", 256)`."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def _hint(kind: type, name: str, path: str) -> Any:
    hints = get_type_hints(kind)
    if name not in hints:
        raise InputError(f"there is no field {quoted(path.strip())}; {kind.__name__} has {', '.join(hints)}")
    return hints[name]


def _known(name: str, fields: list[str]) -> str:
    """What a person may have meant: all fields if they are few, else the nearest, else the first."""
    if len(fields) > FEW and (near := difflib.get_close_matches(name, fields)):
        return f"the nearest known ones are {', '.join(near)}"
    more = f" and {len(fields) - FEW} more" if len(fields) > FEW else ""
    return f"known are {', '.join(fields[:FEW])}{more}"


def _dataclass(kind: Any, data: object, path: str, what: str) -> Any:
    if not isinstance(data, dict):
        raise InputError(f"{what}: {path or 'it'} must be an object of fields, not {_shown(data)}")
    hints = get_type_hints(kind)
    for old, new in getattr(kind, "OLD_NAMES", ()):
        if old in data and new in data:
            raise InputError(f"{what} has the field {_join(path, new)!r} twice, once by its old name {old!r}")
    values = {(field, old): new for field, old, new in getattr(kind, "OLD_VALUES", ())}
    data = {_current(kind, key): item for key, item in data.items()}
    data = {
        key: values.get((key, item), item) if isinstance(item, str) else item for key, item in data.items()
    }
    if unknown := [str(key)[:40] for key in data if key not in hints]:
        known = _known(unknown[0], list(hints))
        raise InputError(f"{what} has an unknown field {_join(path, unknown[0])!r}; {known}")
    for field in dataclasses.fields(kind):
        defaults = {field.default, field.default_factory}
        if field.name not in data and defaults == {dataclasses.MISSING}:
            raise InputError(f"{what} lacks the field {_join(path, field.name)!r}")
    made = {key: _value(hints[key], item, _join(path, key), what) for key, item in data.items()}
    try:
        return kind(**made)
    except InputError as error:  # the dataclass's own complaint: it does not know where its values came from,
        said = str(error)  # and may quote a list of any length
        raise InputError(f"{what}: {said if len(said) <= LONGEST else said[:LONGEST] + '…'}") from None


def _value(kind: Any, data: object, path: str, what: str) -> Any:
    """`data` as an instance of the type `kind`, or a sentence."""
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data, path, what)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        if data in inner:
            return data
        raise InputError(f"{what}: {path} must be one of {', '.join(map(str, inner))}, not {_shown(data)}")
    if origin in (Union, UnionType):
        if data is None and NoneType in inner:
            return None
        (kind,) = (option for option in inner if option is not NoneType)
        return _value(kind, data, path, what)
    if origin is tuple:
        if not isinstance(data, list) or (inner[-1] is not Ellipsis and len(data) != len(inner)):
            size = "" if inner[-1] is Ellipsis else f" of {len(inner)}"
            raise InputError(f"{what}: {path} must be a list{size}, not {_shown(data)}")
        kinds = inner[:1] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(
            _value(k, item, f"{path}[{i}]", what) for i, (k, item) in enumerate(zip(kinds, data, strict=True))
        )
    if origin is dict and isinstance(data, dict):
        return data
    if kind is float and type(data) is int and abs(data) < 2**53:
        return float(data)
    if type(data) is int and kind is int and abs(data) >= LARGEST_WHOLE:
        raise InputError(f"{what}: {path} must be a whole number below 2^63, not {_shown(data)}")
    if type(data) is kind and (kind is not float or math.isfinite(data)):  # type: ignore[arg-type]
        return data
    raise InputError(f"{what}: {path} must be {_NAMES[origin or kind]}, not {_shown(data)}")


def _from_text(kind: Any, text: str, path: str) -> object:
    """The JSON value a person means by `text`, where a field of type `kind` stands."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        parts = [part.strip() for part in text.strip("[]() ").split(",") if part.strip()]
        kinds = inner[:1] * len(parts) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(parts):
            raise InputError(f"{path} takes {len(kinds)} values separated by commas, not {quoted(text)}")
        return [_from_text(k, part, path) for k, part in zip(kinds, parts, strict=True)]
    if origin in (Union, UnionType):
        (other,) = (option for option in inner if option is not NoneType)
        return None if text == "none" else _from_text(other, text, path)
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InputError(f"{path} takes true or false, not {quoted(text)}")
    if kind in (int, float):
        try:
            number: float = kind(text)
        except ValueError:
            raise InputError(f"{path} takes {_NAMES[kind]}, not {quoted(text)}") from None
        return number
    if dataclasses.is_dataclass(kind):
        raise InputError(
            f"{path} has parts; set one of them, for example {path}.{dataclasses.fields(kind)[0].name}=…"
        )
    return text


_NAMES = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text",
          dict: "an object of fields"}  # fmt: skip


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(data: object) -> str:
    try:
        text = json.dumps(data)
    except RecursionError:
        return "lists within lists"
    return text if len(text) <= 40 else text[:37] + "..."
