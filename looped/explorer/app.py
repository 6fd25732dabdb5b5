"""The explorer's web application on a loopback socket: a page, its files, and five addresses that it talks to.

| address              | takes              | gives                                                       |
|----------------------|--------------------|-------------------------------------------------------------|
| GET  /               |                    | the page; `/static/…` its files                             |
| GET  /api/catalogue  |                    | tasks, models, limits                                       |
| POST /api/draw       | `DrawRequest`      | a question                                                  |
| POST /api/run        | `RunRequest`       | a line a message: `start`, every `step` as it is done, `end` |
| POST /api/program    | `ProgramRequest`   | the n-RASP-L program's variables at every step              |
| POST /api/attention  | `AttentionRequest` | the attention weights of a head at a step                   |

A bad request gets 4xx and `{"error": sentence}`. When a client goes away in the middle of a run, the run ends. The
page's files are a fixed table, read once at the start; nothing else is ever read from the disk on a request.

Computing is done in short slices by a pool of workers, first come, first served. A long question is many slices, and
other clients get theirs in between; so a hundred clients share the machine evenly, and a short question never waits for
the end of a long one. What takes a few milliseconds only has a lane of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import uvicorn
from jaxtyping import Float
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from torch import Tensor

from looped import __version__, tasks
from looped.errors import InputError
from looped.explorer import queries
from looped.explorer.models import (
    STRETCHES,
    USUAL_STRETCH,
    Model,
    ModelRegistry,
    Query,
    describe_task,
    read_query,
)
from looped.explorer.queries import WatchedLoop
from looped.explorer.security import LIMITS, BoundedConnection, Limits, SecurityMiddleware, Token
from looped.rasp import programs
from looped.rasp import trace as traces
from looped.tasks import Task

T = TypeVar("T")
LARGEST_SEED = 2**53 - 1  # what a page can count to


class Explorer:
    """The application's handlers and what they share."""

    def __init__(self, registry: ModelRegistry, limits: Limits = LIMITS, stops: Sequence[str] = ()) -> None:
        self.registry, self.limits, self.stops = registry, limits, stops
        self.pool = WorkerPool(limits.waiting)
        self.threads = torch.get_num_threads()
        self.cache = StateCache(limits)
        self.files = static_files()
        self.catalogue = describe_all(registry, limits)

    def app(self, token: Token | None = None) -> Starlette:
        """The web application; every request to it needs the token, if there is one."""
        post, refusals = ["POST"], (InputError, HTTPException, QueueFull, ClientDisconnect)
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/static/{name:path}", self.static),
                Route("/api/catalogue", self.listed),
                Route("/api/draw", self.draw, methods=post),
                Route("/api/run", self.run, methods=post),
                Route("/api/program", self.program, methods=post),
                Route("/api/attention", self.attention, methods=post),
            ],
            middleware=[Middleware(SecurityMiddleware, token=token)],
            exception_handlers=dict.fromkeys(refusals, _refused),
        )

    # --- files -----------------------------------------------------------------------------------------------
    async def page(self, request: Request) -> Response:
        """The page itself."""
        return self._file(request, PAGE)

    async def static(self, request: Request) -> Response:
        """One of its files."""
        return self._file(request, request.path_params["name"])

    def _file(self, request: Request, name: str) -> Response:
        file = self.files.get(name)
        if file is None:
            raise HTTPException(404, "there is no such file")
        headers = {"cache-control": "no-cache", "etag": file.tag}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers={**headers, "content-type": file.kind})

    async def listed(self, request: Request) -> Response:
        """What there is to choose from."""
        return _json(self.catalogue)

    # --- questions -------------------------------------------------------------------------------------------
    async def draw(self, request: Request) -> Response:
        """A question of a given length, drawn from an input distribution."""
        wanted = await self._read(request, queries.DrawRequest)
        model = self._model(wanted.model)
        drawn = partial(self._drawn, model, wanted)
        return _json({"question": await self.pool.take(drawn, new=True, light=True)})

    def _drawn(self, model: Model, wanted: queries.DrawRequest) -> str:
        task, longest = model.solver.task, model.longest(self.limits)
        if not 1 <= wanted.length <= longest:
            raise InputError(f"a question's length is between 1 and {longest} here, not {wanted.length}")
        if not 0 <= wanted.seed <= LARGEST_SEED:
            raise InputError(f"a seed is between 0 and {LARGEST_SEED}, not {wanted.seed}")
        generator = torch.Generator().manual_seed(wanted.seed)
        length = wanted.length
        drawn = task.sample(torch.tensor([length]), generator, max_length=length, family=wanted.family)
        ids = drawn.question[0, : int(drawn.question_length[0])].tolist()
        return task.format_question(task.vocab.decode(ids))

    async def run(self, request: Request) -> Response:
        """A question's way through the loop, as it is computed."""
        wanted = await self._read(request, queries.RunRequest)
        model = self._model(wanted.model)

        def begin() -> tuple[WatchedLoop, bytes]:
            asked = read_query(model, wanted.question, wanted.stretch, self.limits)
            watch = self._watch(asked)
            return watch, queries.json_line(watch.start_message()) + self._advance(watch)

        watch, first = await self.pool.take(begin, new=True)

        async def lines() -> AsyncIterator[bytes]:
            yield first
            try:
                while not watch.over:
                    yield await self.pool.take(partial(self._advance, watch))
            except InputError as error:  # the status is sent already
                yield queries.json_line({"kind": "error", "error": str(error)})

        return StreamingResponse(
            lines(), media_type="application/x-ndjson", headers={"cache-control": "no-store"}
        )

    def _watch(self, asked: Query) -> WatchedLoop:
        return WatchedLoop(asked, partial(self.cache.put, (asked.model.key, asked.text)), self.stops)

    def _advance(self, watch: WatchedLoop) -> bytes:
        """The messages of one turn, the last one included where it is due."""
        lines = [queries.json_line(seen.message()) for seen in watch.advance(self._share())]
        return b"".join([*lines, queries.json_line(watch.end_message())] if watch.over else lines)

    def _share(self) -> float:
        """The seconds a slice may take, and as many threads for it as there are, or one while others wait."""
        others = self.pool.waiting > 1
        torch.set_num_threads(1 if others else self.threads)  # of this worker alone
        return self.limits.busy_slice_seconds if others else self.limits.slice_seconds

    async def program(self, request: Request) -> Response:
        """The n-RASP-L program on the same question, in a row of the same size."""
        wanted = await self._read(request, queries.ProgramRequest)
        model = self._model(wanted.model)

        def trace() -> dict[str, object]:
            asked = read_query(model, wanted.question, 1.0, self.limits)
            task = model.solver.task
            code = programs.get(task.name)
            row = code.row(asked.tokens, task.row_size(asked.length))
            return queries.program_message(traces.trace(code, row, outputs=True))

        return _json(await self.pool.take(trace, new=True, light=True))

    async def attention(self, request: Request) -> Response:
        """The attention weights of a head at a step, from the cached states or computed from the start."""
        wanted = await self._read(request, queries.AttentionRequest)
        model = self._model(wanted.model)
        asked = read_query(model, wanted.question, max(STRETCHES), self.limits)
        config = model.solver.model.config
        for name, value, low, high in (
            ("step", wanted.step, 1, asked.steps),
            ("layer", wanted.layer, 0, config.layers - 1),
            ("head", wanted.head, 0, config.heads - 1),
        ):
            if not low <= value <= high:
                raise InputError(f"the {name} is between {low} and {high}, not {value}")
        before = await self._state(asked, wanted.step - 1)
        look = partial(queries.attention_map, asked, before, wanted.layer, wanted.head)
        shares = (await self.pool.take(look, new=True, light=True) * 255).round().numpy().astype(np.uint8)
        return _json({"size": shares.shape[0], "shares": queries.packed(shares)})

    async def _state(self, asked: Query, step: int) -> torch.Tensor | None:
        """The state after a step, None for step 0."""
        if step == 0:
            return None
        known = self.cache.get((asked.model.key, asked.text), step)
        if known is not None:
            return known
        watch = await self.pool.take(partial(self._watch, asked), new=True)
        while watch.done < step:
            await self.pool.take(lambda: watch.advance(self._share(), step - watch.done))
        return watch.state

    # --- requests --------------------------------------------------------------------------------------------
    def _model(self, key: str) -> Model:
        if key not in self.registry:
            raise HTTPException(404, "there is no model of that name here")
        return self.registry[key]

    async def _read(self, request: Request, kind: type[T]) -> T:
        """A request's body, bounded in size and time."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the body must be JSON and say so (content-type: application/json)")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "the body must not be compressed")
        body = b""
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.body:
                        raise HTTPException(413, f"a body has at most {self.limits.body} bytes")
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time") from None
        try:
            return queries.read_request(kind, body)
        except InputError as error:
            raise HTTPException(400, str(error)) from None


def describe_all(registry: ModelRegistry, limits: Limits) -> dict[str, Any]:
    """Tasks in their usual order, models as they are offered."""
    return {
        "version": __version__,
        "limits": limits.public(),
        "stretches": list(STRETCHES),
        "stretch": USUAL_STRETCH,
        "tasks": [describe_task(task) for task in _tasks(registry)],
        "models": [registry[key].describe(limits) for key in registry],
    }


def _tasks(registry: ModelRegistry) -> list[Task]:
    """Our tasks, and those of the models that are not ours."""
    own = {model.solver.task.name: model.solver.task for model in registry.values()}
    return list({**tasks.TASKS, **own}.values())


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    own = {"cache-control": "no-store", **(headers or {})}
    return Response(text, status, own, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    """A refusal as JSON: a person's mistake is 422, a full house 503."""
    if isinstance(error, HTTPException):
        return _json({"error": error.detail}, error.status_code, dict(error.headers or {}))
    if isinstance(error, QueueFull):
        sentence = "too many questions at once: try again in a moment"
        return _json({"error": sentence}, 503, {"retry-after": "1"})
    return _json({"error": str(error)}, 422 if isinstance(error, InputError) else 400)


FOLDER = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PAGE = "index.html"


@dataclass(frozen=True)
class StaticFile:
    """One file as it is sent."""

    data: bytes
    kind: str
    tag: str  # changes with the contents


def static_files(folder: Path = FOLDER) -> dict[str, StaticFile]:
    """Every file of the page by its path below the folder: `style.css`, `vendor/d3.min.js`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in KINDS:
            data = path.read_bytes()
            tag = '"' + hashlib.sha256(data).hexdigest()[:20] + '"'
            found[path.relative_to(folder).as_posix()] = StaticFile(data, KINDS[path.suffix], tag)
    return found


ADDRESS = "127.0.0.1"
USUAL_PORT = 8642


def listen(port: int | None) -> socket.socket:
    """A socket on the loopback address: the port asked for, or the usual one, or any if that is taken."""
    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"a port is a number from 0 (any free one) to 65535, not {port}")
    for wanted in (USUAL_PORT, 0) if port is None else (port,):
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((ADDRESS, wanted))
            bound.listen(LIMITS.connections)  # a client that comes before the server is up waits
        except PermissionError:
            bound.close()
            raise InputError(f"port {wanted} may not be used by you; choose one above 1023") from None
        except OSError:
            bound.close()
            continue
        return bound
    raise InputError(f"port {port} is taken; choose another with --port, or leave it out for any free one")


def address(bound: socket.socket, token: str = "") -> str:
    """Where a browser finds the page."""
    return f"http://{ADDRESS}:{bound.getsockname()[1]}/" + (f"?token={token}" if token else "")


def server(app: ASGIApp, limits: Limits = LIMITS) -> uvicorn.Server:
    """A server for the application, not started yet."""
    config = uvicorn.Config(
        app, http=BoundedConnection, ws="none", lifespan="off", log_level="warning", access_log=False,
        proxy_headers=False, server_header=False, limit_concurrency=limits.connections,
        backlog=limits.connections // 2,  # so many are accepted at once, before any of them gives way
        timeout_keep_alive=limits.header_seconds, timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=limits.header,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(app: ASGIApp, bound: socket.socket, page: str, ready: Callable[[], None]) -> None:
    """Serve until Ctrl-C; opens a page in a browser if it is given one's address."""
    ready()
    if page:
        webbrowser.open(page)
    with contextlib.suppress(KeyboardInterrupt):  # which uvicorn raises again when it has closed everything
        server(app).run(sockets=[bound])


# --- workers ------------------------------------------------------------------------------------------------

MOST_WORKERS = 4  # each computes with one thread while others wait


class QueueFull(Exception):
    """Too many are waiting already."""


class WorkerPool:
    """Two queues, one of them before a few workers and one before its own."""

    def __init__(self, most_waiting: int) -> None:
        self._most = most_waiting
        self._waiting = 0
        workers = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._workers = ThreadPoolExecutor(workers, "explorer")  # first come, first served
        self._light = ThreadPoolExecutor(1, "explorer-light")

    @property
    def waiting(self) -> int:
        """How many have asked and not been served yet, the one being served included."""
        return self._waiting

    async def take(self, work: Callable[[], T], *, new: bool = False, light: bool = False) -> T:
        """Do some work when its turn has come; new work gets `QueueFull` at once where the queue is full.

        A cancelled client leaves the queue; work that has begun is finished, its result dropped.
        """
        if new and self._waiting >= self._most:
            raise QueueFull
        self._waiting += 1
        try:
            worker = self._light if light else self._workers
            return await asyncio.get_running_loop().run_in_executor(worker, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let the workers go."""
        for worker in (self._workers, self._light):
            worker.shutdown(wait=False, cancel_futures=True)


Key = tuple[str, str]  # model and question
States = list[Float[Tensor, "L D"]]  # after step 1, 2, …


class StateCache:
    """The states of some runs, by model and question: attention at a step need not start from the beginning.

    The run that was used longest ago goes first, and one too large is not kept at all. Several threads may use it.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._runs: OrderedDict[Key, States] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0  # bytes

    def put(self, key: Key, step: int, state: Float[Tensor, "L D"]) -> None:
        """Keep the state after a step, if those before it are here; others are forgotten where room is short."""
        with self._lock:
            states = self._runs.setdefault(key, [])
            if step != len(states) + 1:
                return
            states.append(state)
            self.size += _size(state)
            self._runs.move_to_end(key)
            if len(states) * _size(state) > self._limits.cache_entry:
                self._drop(key)
            while self.size > self._limits.cache_bytes:
                self._drop(next(iter(self._runs)))

    def get(self, key: Key, step: int) -> Float[Tensor, "L D"] | None:
        """The state after a step, if it is known."""
        with self._lock:
            states = self._runs.get(key, [])
            if not 1 <= step <= len(states):
                return None
            self._runs.move_to_end(key)
            return states[step - 1]

    def _drop(self, key: Key) -> None:
        self.size -= sum(map(_size, self._runs.pop(key)))


def _size(state: Tensor) -> int:
    return state.numel() * state.element_size()
