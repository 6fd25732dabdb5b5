"""Damaged and forged files, fed to everything that reads one: a sentence, or what the file truly says.

Each case is a file made from a good one by a seeded random blow. A reader may refuse it, in one sentence that
names the file, or read it, if what it gives back is sound. It may not crash, hang, take memory the file does not
have, give back a part, or change the file (a damaged checkpoint of a run is renamed, as documented). Over a
thousand files in all; every test asserts how many were its share.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from looped import checkpoints, runs, serial
from looped.cli import main
from looped.errors import InputError
from looped.training.config import TrainConfig, make
from looped.training.trainer import Cadence, train

pytestmark = pytest.mark.timeout(120)

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


# --- a good run to damage ----------------------------------------------------------------------------------
def config() -> TrainConfig:
    base = make("copy", "fop-loop-adaptive", "quick", (0, 1))
    small = [
        "model.width=8",
        "model.heads=2",
        "model.bands=2",
        "steps=6",
        "max_length=3",
        "interval=2",
        "batch=4",
    ]
    return serial.override(base, small)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run broken off after four of six steps."""
    folder, left = tmp_path_factory.mktemp("good") / "run", iter(range(4))
    often = Cadence(report_steps=1, evaluate_steps=2, save_steps=2, samples=2)
    train(config(), folder, cadence=often, stop=lambda: next(left, None) is None)
    return folder


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Whoever believes a header that promises the moon fails here."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, old)


@pytest.fixture
def run(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in a folder where a `pwned` would show."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(good, tmp_path / "run")
    return tmp_path / "run"


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
    assert 10 < len(sentence) <= LONGEST_SENTENCE
    assert sentence.isprintable(), sentence
    return sentence


def feed(path: Path, data: bytes, read: Callable[[], object], sound: Callable[[Any], bool]) -> bool:
    """Puts the file there and reads it; whether it was refused."""
    path.write_bytes(data)
    before = contents(path.parent)
    found: list[object] = []
    complaint = refusal(lambda: found.append(read()))
    assert sound(found[0]) if complaint is None else path.name in complaint
    assert contents(path.parent) == before, "reading changes nothing"
    assert not Path("pwned").exists()
    return complaint is not None


# --- every reader ------------------------------------------------------------------------------------------
def test_checkpoints_of_a_seed(run: Path) -> None:
    path = run / "seed-0.safetensors"
    data, loaded = path.read_bytes(), runs.load_seed(path)

    def same(found: runs.Trained) -> bool:
        return found.config == loaded.config and found.row.equal(loaded.row)

    def sound(found: runs.Trained) -> bool:
        return found.row.shape == loaded.row.shape and bool(found.row.isfinite().all())

    damaged = [*blows(data, 0, 200), *headers(data, 1, 200)]
    forged = list(forgeries(path, runs.SEED_KIND, 2, 200))
    assert len(damaged) + len(forged) >= 600
    refused = sum(feed(path, blow, lambda: runs.load_seed(path), same) for blow in damaged)
    assert refused >= 0.9 * len(damaged)
    refused = sum(feed(path, blow, lambda: runs.load_seed(path), sound) for blow in forged)
    assert refused >= 0.5 * len(forged)


def test_states_of_a_run(run: Path) -> None:
    """A damaged state is set aside whole, and training says so; a sound one is taken up where it stands."""
    path = run / "state.safetensors"
    (run / "state.previous.safetensors").unlink()
    data, kept = path.read_bytes(), contents(run)
    every = [*blows(data, 3, 60), *headers(data, 4, 60), *forgeries(path, runs.STATE_KIND, 5, 120)]
    assert len(every) >= 250
    refused = 0
    for blow in every:
        path.write_bytes(blow)
        complaint = refusal(lambda: train(config(), run, stop=lambda: True))
        if complaint is not None:
            refused += 1
            if "it was made on 'cuda'" in complaint:
                continue
            assert "has no good checkpoint left" in complaint
            assert "set aside as state.safetensors.damaged" in complaint
            aside = run / "state.safetensors.damaged"
            assert aside.read_bytes() == blow
            aside.unlink()
        path.write_bytes(data)
        for name, text in kept.items():  # a forged step may have cut the metrics back
            if name != path.name:
                assert (run / name).read_bytes() == text[: (run / name).stat().st_size]
                (run / name).write_bytes(text)
        assert contents(run) == kept
    assert refused >= 0.7 * len(every)
    assert not Path("pwned").exists()


def test_configurations(run: Path) -> None:
    path, rng = run / "config.json", random.Random(6)
    data = path.read_bytes()
    texts = [changed(data.decode(), rng) for _ in range(250)] + TEXTS + [text * 2 for text in TEXTS]
    every = [*blows(data, 7, 100), *(text.encode("utf-8", "surrogatepass") for text in texts), b" " * 2**21]

    def sound(found: TrainConfig) -> bool:
        return serial.from_json(TrainConfig, serial.to_json(found)) == found

    refused = [feed(path, blow, lambda: runs.read_config(run), sound) for blow in every]
    assert len(every) >= 400
    assert sum(refused) >= 0.7 * len(every)


def test_metrics(run: Path) -> None:
    """A damaged line is left out, and only it."""
    path, rng = run / "metrics.jsonl", random.Random(8)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    whole = [json.loads(line) for line in lines]

    def without(rows: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
        """The rows less the one that was put in, if it was read at all."""
        return rows if len(rows) == len(whole) else [*rows[:at], *rows[at + 1 :]]

    for text in [*TEXTS, *(changed(lines[0].decode(), rng) for _ in range(60))]:
        raw, at = text.encode("utf-8", "surrogatepass"), rng.randrange(len(lines))
        blow = b"".join([*lines[:at], raw + b"\n", *lines[at:]])
        assert not feed(
            path, blow, lambda: runs.read_metrics(run), lambda rows, at=at: without(rows, at) == whole
        )
    damaged = list(blows(data, 9, 100))
    assert len(damaged) >= 100
    for blow in damaged:
        assert not feed(
            path, blow, lambda: runs.read_metrics(run), lambda rows: all("step" in row for row in rows)
        )
        path.write_bytes(blow)
        assert train(config(), run, stop=lambda: True).step == 4, "and training goes on all the same"
        for name in ("metrics.jsonl", "metrics.damaged.jsonl"):
            (run / name).unlink(missing_ok=True)


@pytest.mark.parametrize("thing", ["folder", "nothing", "loop", "pipe", "absent"])
def test_other_things_in_place_of_files(run: Path, good: Path, thing: str) -> None:
    readers: dict[str, Callable[[], object]] = {
        "seed-0.safetensors": lambda: runs.load_seed(run / "seed-0.safetensors"),
        "config.json": lambda: runs.read_config(run),
        "lock": lambda: train(config(), run, stop=lambda: True),
    }
    if thing != "absent":  # without metrics a run begins them anew
        readers["metrics.jsonl"] = lambda: train(config(), run, stop=lambda: True)
    for name, read in readers.items():
        path = run / name
        path.unlink()
        match thing:
            case "folder":
                path.mkdir()
            case "nothing":
                path.symlink_to(run.parent / "nowhere")
            case "loop":
                path.symlink_to(path)
            case "pipe":
                os.mkfifo(path)
        if thing == "absent" and name == "lock":
            read()
        else:
            with pytest.raises(InputError, match=rf"{name}|is no run's folder"):
                read()
        path.rmdir() if thing == "folder" else path.unlink(missing_ok=True)
        shutil.copy(good / name, path)
    assert not (run.parent / "nowhere").exists()


def test_nothing_is_written_through_a_link(run: Path) -> None:
    precious = run.parent / "precious"
    for name in ("metrics.jsonl", "lock", "config.json.tmp", "state.safetensors.tmp", "seed-0.safetensors"):
        precious.write_bytes(b"precious")
        path = run / name
        path.unlink(missing_ok=True)
        path.symlink_to(precious)
        complaint = refusal(lambda: train(config(), run))
        assert complaint is None or f"{name} must be a plain file" in complaint
        if complaint is not None:
            path.unlink()
        assert precious.read_bytes() == b"precious", name


def test_names_of_files_cannot_leave_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "../../etc/passwd",
        "/etc/passwd",
        "/dev/null",
        "/proc/self/mem",
        "a\0b",
        "x" * 5000,
        "",
        "\udcff",
    ):
        assert main(["evaluate", name, "--lengths", "2", "--samples", "2"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
