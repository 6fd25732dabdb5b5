"""A load test: many clients at once against a server on loopback, every one asking question after question.

$ python -m benchmarks.explorer_load --clients 100 --seconds 20
100 clients, 20 s: 4321 requests, median 310 ms, p95 720 ms, longest 1180 ms, 97 called off, 0 failed
  /api/run        …

Clients ask runs, programs, drawn questions and attention in turn, of mixed models and lengths, over plain sockets. One
in ten runs is called off half-way, as an impatient person would. A request fails if it is not answered with 200, or
its run does not come to its end. Without `--url` a server is started for the occasion.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from looped.cli.arguments import parse
from looped.errors import InputError

PATIENCE = 120.0  # seconds after which a request counts as failed


@dataclass(frozen=True)
class Args:
    """Put a server under load and print what it did."""

    clients: int = 100
    """Clients at once."""
    seconds: float = 20.0
    """For how long they ask."""
    length: int = 0
    """Of the questions; by default from 4 to 30, mixed."""
    url: str = ""
    """A running explorer's address; by default one is started."""
    json: bool = False
    """One JSON object."""


@dataclass(frozen=True)
class ExplorerAddress:
    """Where an explorer listens, and the cookie that it wants to see."""

    host: str
    port: int
    cookie: str = ""


@dataclass
class LoadResult:
    """What the clients met."""

    seconds: dict[str, list[float]] = field(default_factory=dict)  # of every request answered, by address
    cancelled: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, path: str, seconds: float) -> None:
        """Count a request that was answered."""
        self.seconds.setdefault(path, []).append(seconds)

    @property
    def all(self) -> list[float]:
        """The seconds of all requests."""
        return [each for times in self.seconds.values() for each in times]

    def facts(self) -> dict[str, object]:
        """Count and time, altogether and by address."""
        return {
            **spread(self.all),
            "cancelled": self.cancelled,
            "failed": len(self.failures),
            "failures": self.failures[:5],
            "by_address": {path: spread(times) for path, times in sorted(self.seconds.items())},
        }


def spread(seconds: list[float]) -> dict[str, float]:
    """How many there were, and their median, 95th percentile and maximum in milliseconds."""
    times = sorted(seconds) or [0.0]

    def share(p: float) -> float:
        return round(1000 * times[min(len(times) - 1, int(p * len(times)))], 1)

    return {
        "requests": len(seconds),
        "median_ms": share(0.5),
        "p95_ms": share(0.95),
        "longest_ms": share(1.0),
    }


async def put_under_load(at: ExplorerAddress, clients: int, seconds: float, length: int = 0) -> LoadResult:
    """So many clients for so long, asking questions of one length, or of several where it is 0."""
    result = LoadResult()
    status, body = await request(at, "/api/catalogue", None)
    if status != 200:
        raise InputError(f"there is no explorer at {at.host}:{at.port}: it answers {status}")
    models = json.loads(body)["models"]
    if not models:
        raise InputError("the explorer has no model to ask")
    until = time.monotonic() + seconds
    await asyncio.gather(*(_client(at, models, until, i, length, result) for i in range(clients)))
    return result


async def _client(
    at: ExplorerAddress,
    models: list[dict[str, object]],
    until: float,
    number: int,
    wanted: int,
    result: LoadResult,
) -> None:
    """Draw a question, ask it, look at the program and at a head; again and again."""
    dice = random.Random(number)
    while time.monotonic() < until:
        model = dice.choice(models)
        key, longest = str(model["key"]), int(str(model["longest"]))
        length = min(longest, wanted or dice.choice((4, 8, 12, 20, 30)))
        drawn = await _timed(
            at, "/api/draw", {"model": key, "length": length, "seed": dice.randrange(2**40)}, result
        )
        if drawn is None:
            continue
        asked = {"model": key, "question": json.loads(drawn)["question"]}
        if dice.random() < 0.1:
            await _called_off(at, asked, result)
            continue
        ran = await _timed(at, "/api/run", asked, result)
        if ran is not None and b'"kind":"end"' not in ran:
            result.failures.append("a run without an end")
        await _timed(at, "/api/program", asked, result)
        look = {**asked, "step": dice.randint(1, length), "layer": 0, "head": 0}
        await _timed(at, "/api/attention", look, result)


async def _timed(at: ExplorerAddress, path: str, body: dict[str, object], result: LoadResult) -> bytes | None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE):
            status, answer = await request(at, path, body)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        result.failures.append(f"{path}: {type(error).__name__} {error}")
        return None
    if status != 200:
        result.failures.append(f"{path}: {status} {answer[:120].decode(errors='replace')}")
        return None
    result.add(path, time.monotonic() - began)
    return answer


async def _called_off(at: ExplorerAddress, body: dict[str, object], result: LoadResult) -> None:
    """Ask, wait for the first words of the answer, and go away."""
    try:
        reader, writer = await asyncio.open_connection(at.host, at.port)
        writer.write(_message(at, "/api/run", body))
        async with asyncio.timeout(PATIENCE):
            await reader.read(1024)
        writer.close()
        result.cancelled += 1
    except (OSError, TimeoutError) as error:
        result.failures.append(f"called off: {type(error).__name__} {error}")


async def request(at: ExplorerAddress, path: str, body: dict[str, object] | None) -> tuple[int, bytes]:
    """One request over a connection of its own: the status and the whole body."""
    reader, writer = await asyncio.open_connection(at.host, at.port, limit=1 << 24)
    try:
        writer.write(_message(at, path, body))
        head = await reader.readuntil(b"\r\n\r\n")
        rest = await reader.read(-1)
    finally:
        writer.close()
    status = int(head.split(b" ", 2)[1])
    return status, _joined(rest) if b"transfer-encoding: chunked" in head.lower() else rest


def _message(at: ExplorerAddress, path: str, body: dict[str, object] | None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    kind = f"content-type: application/json\r\ncontent-length: {len(data)}\r\n" if body is not None else ""
    verb = "GET" if body is None else "POST"
    cookie = f"cookie: {at.cookie}\r\n" if at.cookie else ""
    head = f"{verb} {path} HTTP/1.1\r\nhost: {at.host}:{at.port}\r\n{kind}{cookie}connection: close\r\n\r\n"
    return head.encode() + data


def _joined(rest: bytes) -> bytes:
    """The chunks of a streamed body, put together; raises where one is cut off."""
    parts: list[bytes] = []
    while True:
        size_text, _, rest = rest.partition(b"\r\n")
        size = int(size_text, 16)
        if size == 0:
            return b"".join(parts)
        if len(rest) < size + 2:
            raise ValueError("a chunk was cut off")
        parts.append(rest[:size])
        rest = rest[size + 2 :]


@contextlib.contextmanager
def started() -> Iterator[str]:
    """An explorer in a process of its own, on any free port; yields its address."""
    command = [sys.executable, "-m", "looped", "explore", "--no-open", "--json", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            if not said:
                raise InputError("the explorer could not be started")
            yield json.loads(said)["url"]
        finally:
            server.send_signal(signal.SIGINT)


def run(args: Args) -> int:
    """Print the result; 1 if a request failed."""
    if args.clients < 1 or args.seconds <= 0 or args.length < 0:
        raise InputError("there must be at least one client, more than 0 seconds and no length below 0")
    if args.url:
        result = _at(args.url, args)
    else:
        with started() as url:
            result = _at(url, args)
    facts = result.facts()
    if args.json:
        print(json.dumps({"clients": args.clients, "seconds": args.seconds, **facts}))
    else:
        print(f"{args.clients} clients, {args.seconds:g} s: {_told(result.all)}, ", end="")
        print(f"{result.cancelled} called off, {len(result.failures)} failed")
        for path, times in sorted(result.seconds.items()):
            print(f"  {path:<15} {_told(times)}")
        for failure in result.failures[:5]:
            print(f"  {failure}", file=sys.stderr)
    return 1 if result.failures else 0


def _told(seconds: list[float]) -> str:
    found = spread(seconds)
    times = f"median {found['median_ms']} ms, p95 {found['p95_ms']} ms, longest {found['longest_ms']} ms"
    return f"{found['requests']} requests, {times}"


def _at(url: str, args: Args) -> LoadResult:
    where = urlsplit(url)
    if where.hostname not in ("127.0.0.1", "localhost", "::1") or where.port is None:
        raise InputError(f"--url must be an explorer's address on this machine, not {url[:60]!r}")
    at = ExplorerAddress(where.hostname, where.port, cookie(url) if where.query else "")
    return asyncio.run(put_under_load(at, args.clients, args.seconds, args.length))


def cookie(url: str) -> str:
    """What an explorer gives a browser that opens the address it printed."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", f"{where.path}?{where.query}")
        return (connection.getresponse().getheader("set-cookie") or "").partition(";")[0]


def main() -> int:
    """`python -m benchmarks.explorer_load`."""
    try:
        return run(parse(Args, sys.argv[1:], "python -m benchmarks.explorer_load"))
    except (InputError, OSError) as error:
        print(f"looped: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
