"""Files that are whole or not there: atomic writing, and tensors with a checksum. Knows no run and no model.

A file is written under a temporary name in its own folder, synced, and renamed, so that a process killed at
any moment leaves the old file or the new one. Every writer has a name of its own, `x.json.4711-0123456789abcdef.tmp`:
of several who write the same file, each puts a whole one in place and the last one stays.

A checkpoint is a safetensors file (never a pickle) whose metadata say what it is and hold a sha256 over names, shapes,
numbers and all other metadata. Reading checks that the file is whole, of the kind asked for, and that its tensors have
the shapes the reader expects; only then is memory taken, the checksum compared, and the numbers shown to the reader
before they are used. A checksum tells of accidents only: a forged file has a forged checksum, so no reader may rely on
it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from looped import files, serial
from looped.errors import InputError

Shapes = dict[str, tuple[int, ...]]
Metadata = dict[str, str]
Check = Callable[[Metadata, Shapes], None]  # raises InputError if a file is not what its reader expects
Verify = Callable[[Mapping[str, Tensor]], None]  # the same for the tensors themselves

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LARGEST = 1 << 36  # bytes of a checkpoint
LARGEST_HEADER = 1 << 24  # bytes of its texts and shapes
WIDEST = 8  # bytes of a number
CHUNK = 1 << 24  # bytes written or hashed at once
NO_LINKS: int = getattr(os, "O_NOFOLLOW", 0)
TEMPORARY = re.compile(r"(.+)\.\d+-[0-9a-f]{16}\.tmp")  # the file that is written, by which process, a token
OLD_S = 3600.0  # a temporary file untouched for so long will not be finished


def write(path: Path, data: bytes, keep: Path | None = None) -> None:
    """Puts a whole file in place at once; on failure the old one stays and the sentence says so.

    With `keep`, the file that is replaced lives on under that name.
    """
    check_plain(path)
    _clean(path.parent.absolute())
    temporary = own_name(path)
    with disk(path, len(data)):
        handle = _open_new(temporary)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(handle, view[:CHUNK]) :]
                os.fsync(handle)
            finally:
                os.close(handle)
            if keep is not None and path.exists():
                _keep(path, keep)
            os.replace(temporary, path)
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def write_json(path: Path, value: object, indent: int = 1) -> None:
    """The same for JSON, into a folder that is made where it is missing."""
    with disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())


def check_writable(path: Path) -> None:
    """Raises if a file cannot be written there, before anything is computed for it."""
    check_plain(path)
    temporary = own_name(path)
    try:
        os.close(_open_new(temporary))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    temporary.unlink()


def check_folder(option: str, path: Path) -> None:
    """Raises where an option names no file in a folder that is there."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{option} must name a file in a folder that exists, not {path}")


def check_plain(path: Path) -> None:
    """Raises where something lies that is no file, such as a device or a pipe: a rename would put an end to it."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no plain file, so it is not written")


def _open_new(path: Path) -> int:
    """A file that was not there: never through a link, nor into a file that was put here."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, 0o644)


def own_name(path: Path) -> Path:
    """A temporary name for a file that no other writer has, on this machine or another."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(8)}.tmp")


def temporary_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """What writers have in a folder or have left there, each with the name of the file it was to become."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if found := TEMPORARY.fullmatch(entry.name):
                yield found[1], folder / entry.name


@cache
def _clean(folder: Path) -> None:
    """Removes what killed writers have left in a folder, once a process: it may hold many thousand files.

    A live writer may be on another machine, where its process number says nothing, so only old files are removed.
    """
    with contextlib.suppress(OSError):
        for _, path in temporary_files(folder):
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > OLD_S:
                    path.unlink()


@contextlib.contextmanager
def disk(path: Path, size: int = 0) -> Iterator[None]:
    """Turns a full disk into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        what = f"{path} could not be written" + (f" ({size / 1e6:.1f} MB)" if size else "")
        raise InputError(f"the disk is full: {what}; what was there before is intact") from None


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _keep(path: Path, other: Path) -> None:
    """A second name for a file, in place of what had it; the first name stays where links are possible."""
    spare = own_name(other)
    try:
        os.link(path, spare)
    except FileNotFoundError:  # another writer has replaced it this moment, and kept it
        return
    except OSError:  # a file system without links
        os.replace(path, other)
        return
    try:
        os.replace(spare, other)
    finally:
        spare.unlink(missing_ok=True)  # still there if the two were the same file already


def save(
    path: Path, kind: str, tensors: Mapping[str, Tensor], metadata: Metadata, keep: Path | None = None
) -> None:
    """Writes tensors and texts as one checkpoint of the given kind; see `write` for `keep`."""
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    notes = {**metadata, "format": kind}
    write(path, to_bytes(flat, {**notes, "sha256": digest(flat, notes)}), keep)


def load(
    path: Path, kind: str | None, check: Check, verify: Verify = lambda tensors: None
) -> tuple[Metadata, dict[str, Tensor]]:
    """Texts and tensors of a checkpoint of that kind, verified; raises `InputError` naming the file.

    Without a kind, of any safetensors file: others write no checksum.

    `check` sees texts and shapes before memory is taken, `verify` the tensors before anybody else does.
    """
    if not path.exists() or path.is_dir():
        raise InputError(f"there is no checkpoint {path}")
    try:
        with files.open_regular(path, "a checkpoint", LARGEST) as file:
            head, metadata, shapes = _header(file)
            if kind is not None and metadata.get("format") != kind:
                raise InputError(f"{path} is a safetensors file, but not one of ours of the kind {kind!r}")
            check(metadata, shapes)
            numbers = sum(map(math.prod, shapes.values()))
            if os.fstat(file.fileno()).st_size > len(head) + WIDEST * numbers:
                raise InputError(f"{path} is damaged: it is larger than what it says to hold")
            tensors = from_bytes(head + file.read())
        claimed = metadata.pop("sha256", "")
        if kind is not None and digest(tensors, metadata) != claimed:
            raise InputError(f"{path} is damaged: its contents do not match its checksum")
        verify(tensors)
    except (SafetensorError, KeyError) as error:  # KeyError: a type of number that torch does not have
        raise InputError(_damaged(path, error)) from None
    except InputError as error:
        raise error if str(path) in str(error) else type(error)(f"{path}: {error}") from None
    return metadata, tensors


def header(path: Path) -> Metadata:
    """The texts in a safetensors file of any kind; its tensors are neither read nor checked."""
    try:
        with files.open_regular(path, "a checkpoint", LARGEST) as file:
            return _header(file)[1]
    except SafetensorError as error:
        raise InputError(_damaged(path, error)) from None


def _header(file: IO[bytes]) -> tuple[bytes, Metadata, Shapes]:
    """The start of a safetensors file up to its numbers, and what it says: texts, and the shapes of tensors."""
    start = file.read(8)
    size = int.from_bytes(start, "little")
    text = file.read(size) if size <= LARGEST_HEADER else b""
    if not len(start) == 8 or not 0 < len(text) == size:
        raise SafetensorError("it ends within its header")
    try:
        data = serial.parse(text.decode("utf-8"), "its header")
    except ValueError as error:
        raise SafetensorError(str(error)) from None
    metadata = data.pop("__metadata__", None) or {} if isinstance(data, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise SafetensorError("its header holds no texts")
    assert isinstance(data, dict)
    return start + text, metadata, {name: _shape(entry) for name, entry in data.items()}


def _shape(entry: object) -> tuple[int, ...]:
    match entry:
        case {"shape": list(shape)} if all(type(n) is int and 0 <= n < serial.LARGEST_WHOLE for n in shape):
            return tuple(shape)
    raise SafetensorError("its header holds a tensor without a shape")


def _damaged(path: Path, error: Exception) -> str:
    reason = "".join(filter(str.isprintable, " ".join(str(error).split())))[:200]
    return f"{path} is truncated, damaged or no safetensors file ({reason})"


def digest(tensors: Mapping[str, Tensor], metadata: Metadata) -> str:
    """A sha256 over everything a checkpoint holds."""
    sha = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
