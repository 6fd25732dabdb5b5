"""Ways to damage and to forge files, and a judge of those who read them. Every blow is drawn from a seed."""

from __future__ import annotations

import json
import random
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from looped import checkpoints
from looped.errors import InputError

MEMORY = 1 << 30  # bytes a reader may take beyond what the process has
LONGEST_SENTENCE = 600  # characters, paths of temporary folders included

VALUES: list[Any] = [
    None, True, False, 0, -1, 3, 2**63, 10**40, -(10**40), 1.5, -0.0, 1e308, "", "x", "x" * 5000, "../x",
    "/etc/passwd", "C:\\x", "\0", "a\nb", "\ud800", "ünï ∞", [], [[]], [1] * 3000, {}, {"a": {}}, ["../x"],
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
TEXTS = [
    "", " ", "{", "}", "[", "null", "true", "3", '"x"', "NaN", "{}", "[]", "{}{}", '{"a":1,}', "{'a': 1}", "// no\n{}",
    "1" * 5000, "[" * 100_000, '{"a":' * 100_000, "[" * 900 + "]" * 900, "\ufeff{}", '{"step": 1e999}', "\0" * 64,
    '{"looped": "0", "config": {}, "config": {}}', '{"looped": "0", "config": {}, "__class__": "os.system"}',
    "!!python/object/apply:os.system ['touch pwned']", "cos\nsystem\n(S'touch pwned'\ntR.",
]  # fmt: skip
FOREIGN = [
    b"", b"\0", b"\xff" * 100, b"\x80\x04\x95junk pickle", b"PK\x03\x04" + b"\0" * 200,
    b"\x89PNG\r\n\x1a\n" + b"\1" * 64,
    b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", b"\xef\xbb\xbf{}", '{"a": "é"}'.encode("utf-16"),
    b"#!/bin/sh\ntouch pwned\n",
]  # fmt: skip


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """A reader that believes a header's impossible sizes fails here."""
    if not Path("/proc/self/statm").exists():  # only Linux tells how much there is
        yield
        return
    old = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


# --- blows -------------------------------------------------------------------------------------------------
def blows(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Files nearly like this one, and files of other programs."""
    rng = random.Random(seed)
    for _ in range(count):
        a, b = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
        flipped = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 50))):
            flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        yield rng.choice(
            [
                data[:a],  # cut off
                data[: rng.choice((1, 7, 8, 9, len(data) - 1))],
                bytes(flipped),
                bytes(flipped[:200]) + data[200:],
                data[:a] + b"\0" * (b - a) + data[b:],  # a block that was never written
                data[:a] + data[b:],
                data[:b] + data[a:],
                data[a:] + data[:a],
                data + rng.randbytes(rng.choice((1, 8, 4096))),
                rng.randbytes(rng.choice((1, 8, 100, 4096))),
            ]
        )
    yield from FOREIGN


def headers(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """A safetensors file with a header that says something else."""
    rng = random.Random(seed)
    (size,) = struct.unpack("<Q", data[:8])
    for huge in (0, 1, size - 1, size + 1, 2**31, 2**40, 2**63, 2**64 - 1):
        yield struct.pack("<Q", huge) + data[8:]
    for _ in range(count):
        header = json.loads(data[8 : 8 + size])
        name = rng.choice([key for key in header if key != "__metadata__"])
        entry = header[name]
        match rng.randrange(7):
            case 0:
                entry["dtype"] = rng.choice(
                    ["F64", "F16", "BF16", "I8", "U8", "BOOL", "F8_E5M2", "F4", "C64", "X", 3]
                )
            case 1:
                entry["shape"] = rng.choice(
                    [[], [-1], [2**62, 4], [10**12], [2**63], [1e9], "x", None, [0], [[1]]]
                )
            case 2:
                entry["data_offsets"] = rng.choice(
                    [[0, 2**60], [-8, 0], [4, 0], [0], [0, 0], "x", [2**63, 2**64]]
                )
            case 3:
                header[rng.choice(["../x", "/etc/x", "a\0b", "", "__metadata__ ", "x" * 9999])] = header.pop(
                    name
                )
            case 4:
                header["__metadata__"] = rng.choice(
                    [{}, None, 3, {"format": "pt"}, {"format": {}}, {"a": 1}, []]
                )
            case 5:
                header["again"] = dict(entry)
            case 6:
                entry[rng.choice(["dtype", "shape", "data_offsets"])] = rng.choice(VALUES[:20])
        text = json.dumps(header).encode()
        yield struct.pack("<Q", len(text)) + text + data[8 + size :]
    for text in (*TEXTS, '{"__metadata__": {"format": "looped-seed-1", "format": "x"}}'):
        raw = text.encode("utf-8", "surrogatepass")
        yield struct.pack("<Q", len(raw)) + raw + data[8 + size :]


def forgeries(path: Path, kind: str, seed: int, count: int) -> Iterator[bytes]:
    """Checkpoints with a right checksum over wrong texts and tensors."""
    rng = random.Random(seed)
    metadata, tensors = checkpoints.load(path, kind, lambda metadata, shapes: None)
    for _ in range(count):
        texts, rows = dict(metadata), dict(tensors)
        name, field = rng.choice(list(rows)), rng.choice(list(texts))
        match rng.randrange(8):
            case 0:
                rows[name] = rows[name].to(
                    rng.choice([torch.float64, torch.float16, torch.int64, torch.bool])
                )
            case 1:
                rows[name] = torch.full_like(rows[name], 255 if rows[name].dtype == torch.uint8 else True)
                if rows[name].is_floating_point():
                    rows[name].fill_(rng.choice([float("nan"), float("inf")]))
            case 2:
                rows[name] = rows[name].flatten()[: rng.choice((0, 1))]
            case 3:
                del rows[name]
            case 4:
                rows[rng.choice(["../x", "/etc/x", "good.0", "good.-1", "seed", ""])] = rows[name].clone()
            case 5:
                texts[field] = rng.choice(
                    [*TEXTS, "-1", "9" * 5000, "nan", "inf", "-inf", "1e999", "٣", "../x"]
                )
            case 6:
                del texts[field]
            case 7:
                texts["config"] = changed(metadata["config"], rng)
                if "watch" in texts and rng.random() < 0.5:
                    texts["config"], texts["watch"] = metadata["config"], changed(metadata["watch"], rng)
        texts.pop("format", None)
        place = path.with_name("forged")
        checkpoints.save(place, kind, rows, texts)
        yield place.read_bytes()
        place.unlink()


def changed(text: str, rng: random.Random) -> str:
    """JSON with one thing in it changed, taken out, put in or doubled."""
    data = json.loads(text)
    here: Any = data
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(here[key], dict | list) and here[key] and rng.random() < 0.8:
            here = here[key]
            continue
        match rng.randrange(6):
            case 0:
                del here[key]
            case 1 if isinstance(here, dict):
                here[rng.choice(["../x", "__class__", "x" * 5000, "\0", "\ud800", "self"])] = rng.choice(
                    VALUES
                )
            case 2:
                return json.dumps(data).replace(f'"{key}":', f'"{key}": 1, "{key}":', 1)
            case _:
                here[key] = rng.choice(VALUES)
        break
    return json.dumps(data)


# --- the judge ---------------------------------------------------------------------------------------------
def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refusal(read: Callable[[], object]) -> str | None:
    """The one sentence with which a reader refuses, if it does; any other error is a failed test."""
    try:
        read()
    except InputError as error:
        sentence = str(error)
    else:
        return None
    assert 10 < len(sentence) <= LONGEST_SENTENCE, sentence
    assert sentence.isprintable(), sentence
    return sentence


def feed(
    path: Path, data: bytes, read: Callable[[], object], sound: Callable[[Any], bool], named: bool = True
) -> bool:
    """Puts the file there and reads it; whether it was refused, by name unless `named` is false."""
    path.write_bytes(data)
    before = contents(path.parent)
    found: list[object] = []
    complaint = refusal(lambda: found.append(read()))
    assert sound(found[0]) if complaint is None else (path.name in complaint or not named), complaint
    assert contents(path.parent) == before, "reading changes nothing"
    assert not Path("pwned").exists()
    return complaint is not None
