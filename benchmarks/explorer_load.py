"""A load test: many clients at once against a server on loopback, every one asking question after question.

$ python -m benchmarks.explorer_load --clients 100 --seconds 20
100 clients, 20 s: 4321 requests, median 310 ms, p95 720 ms, longest 1180 ms, 97 called off, 0 failed
  /api/run        …

Clients ask runs, programs, drawn questions and attention in turn, of mixed models and lengths, a thread each. One
in ten runs is called off half-way, as an impatient person would. A request fails if it is not answered with 200, or
its run does not come to its end. Without `--url` a server is started for the occasion.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
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


def put_under_load(at: ExplorerAddress, clients: int, seconds: float, length: int = 0) -> LoadResult:
    """So many clients for so long, asking questions of one length, or of several where it is 0."""
    result = LoadResult()
    status, body = request(at, "/api/catalogue")
    if status != 200:
        raise InputError(f"there is no explorer at {at.host}:{at.port}: it answers {status}")
    models = json.loads(body)["models"]
    if not models:
        raise InputError("the explorer has no model to ask")
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(lambda number: _client(at, models, until, number, length, result), range(clients)))
    return result


def _client(
    at: ExplorerAddress,
    models: list[dict[str, Any]],
    until: float,
    number: int,
    wanted: int,
    result: LoadResult,
) -> None:
    """Draw a question, ask it, look at the program and at a head; again and again."""
    dice = random.Random(number)
    while time.monotonic() < until:
        model = dice.choice(models)
        length = min(model["longest"], wanted or dice.choice((4, 8, 12, 20, 30)))
        question = {"model": model["key"], "length": length, "seed": dice.randrange(2**40)}
        drawn = _timed(at, "/api/draw", question, result)
        if drawn is None:
            continue
        asked = {"model": model["key"], "question": json.loads(drawn)["question"]}
        if dice.random() < 0.1:
            _called_off(at, asked, result)
            continue
        ran = _timed(at, "/api/run", asked, result)
        if ran is not None and b'"kind":"end"' not in ran:
            result.failures.append("a run without an end")
        _timed(at, "/api/program", asked, result)
        look = {**asked, "step": dice.randint(1, length), "layer": 0, "head": 0}
        _timed(at, "/api/attention", look, result)


def _timed(at: ExplorerAddress, path: str, body: dict[str, object], result: LoadResult) -> bytes | None:
    began = time.monotonic()
    try:
        status, answer = request(at, path, body)
    except (OSError, http.client.HTTPException) as error:
        result.failures.append(f"{path}: {type(error).__name__} {error}")
        return None
    if status != 200:
        result.failures.append(f"{path}: {status} {answer[:120].decode(errors='replace')}")
        return None
    result.add(path, time.monotonic() - began)
    return answer


def _called_off(at: ExplorerAddress, body: dict[str, object], result: LoadResult) -> None:
    """Ask, wait for the first words of the answer, and go away."""
    try:
        with _asked(at, "/api/run", body) as answer:
            answer.read1(1024)
        result.cancelled += 1
    except (OSError, http.client.HTTPException) as error:
        result.failures.append(f"called off: {type(error).__name__} {error}")


def request(at: ExplorerAddress, path: str, body: dict[str, object] | None = None) -> tuple[int, bytes]:
    """One request over a connection of its own: the status and the whole body."""
    with _asked(at, path, body) as answer:
        return answer.status, answer.read()


@contextlib.contextmanager
def _asked(
    at: ExplorerAddress, path: str, body: dict[str, object] | None
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a request, of which only the head is read; nothing is waited for longer than `PATIENCE`."""
    headers = {"connection": "close", **({"cookie": at.cookie} if at.cookie else {})}
    with contextlib.closing(http.client.HTTPConnection(at.host, at.port, timeout=PATIENCE)) as connection:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            kind = {"content-type": "application/json"}
            connection.request("POST", path, json.dumps(body), {**headers, **kind})
        with connection.getresponse() as answer:
            yield answer


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
    return put_under_load(at, args.clients, args.seconds, args.length)


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
