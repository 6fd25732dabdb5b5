"""The explorer's web application on a loopback socket: a page, its files, and five addresses that it talks to.

| address              | takes              | gives                                                       |
|----------------------|--------------------|-------------------------------------------------------------|
| GET  /               |                    | the page; `/static/…` its files                             |
| GET  /api/catalogue  |                    | tasks, models, limits                                       |
| POST /api/draw       | `DrawRequest`      | a question                                                  |
| POST /api/run        | `RunRequest`       | a line a message: `start`, every `step` as it is done, `end` |
| POST /api/program    | `ProgramRequest`   | the n-RASP-L program's variables at every step              |
| POST /api/attention  | `AttentionRequest` | the attention weights of a head at a step                   |

A request's body is a JSON object with exactly the fields of its dataclass. A bad request gets 4xx and `{"error":
sentence}`. When a client goes away in the middle of a run, the run ends. Computing is done in short slices by a pool
of workers, first come, first served, so a short question never waits for the end of a long one.
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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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

from looped import __version__, serial, tasks
from looped.errors import InputError
from looped.explorer import queries
from looped.explorer.queries import Model, ModelRegistry, Query, WatchedLoop, read_query
from looped.explorer.security import LIMITS, BoundedConnection, Limits, SecurityMiddleware, Token
from looped.rasp import programs
from looped.rasp import trace as traces

T = TypeVar("T")
LARGEST_SEED = 2**53 - 1  # what a page can count to
NOT_KEPT = {"cache-control": "no-store"}


@dataclass(frozen=True)
class ProgramRequest:
    """Run the program of a model's task on a question."""

    model: str
    question: str


@dataclass(frozen=True)
class RunRequest(ProgramRequest):
    """Ask a model a question and watch it."""

    stretch: float = queries.USUAL_STRETCH  # how far to run, in multiples of T(n)


@dataclass(frozen=True)
class AttentionRequest(ProgramRequest):
    """Where a head looks at a step; layers and heads count from 0, steps from 1."""

    step: int
    layer: int
    head: int


@dataclass(frozen=True)
class DrawRequest:
    """Draw a question for a model."""

    model: str
    length: int
    family: str = "uniform"
    seed: int = 0


Q = TypeVar("Q", DrawRequest, RunRequest, ProgramRequest, AttentionRequest)


def read_request(kind: type[Q], body: bytes) -> Q:
    """A request from a body; raises a sentence that names what is wrong with it."""
    try:
        return serial.from_json(kind, serial.parse(body.decode("utf-8"), "the request"), "the request")
    except UnicodeDecodeError:
        raise InputError("the request is not UTF-8") from None


class Explorer:
    """The application's handlers and what they share."""

    def __init__(self, registry: ModelRegistry, stops: Sequence[str] = ()) -> None:
        self.registry, self.stops = registry, stops
        self.pool = WorkerPool(LIMITS.waiting)
        self.threads = torch.get_num_threads()
        self.cache = StateCache()
        self.files = static_files()
        self.catalogue = describe_all(registry)

    def app(self, token: Token | None = None) -> Starlette:
        """The web application; every request to it needs the token, if there is one."""
        post, refusals = ["POST"], (InputError, HTTPException, ClientDisconnect)
        return Starlette(
            routes=[
                Route("/", self.file),
                Route("/static/{name:path}", self.file),
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
    async def file(self, request: Request) -> Response:
        """The page itself, or one of its files."""
        file = self.files.get(request.path_params.get("name", PAGE))
        if file is None:
            raise HTTPException(404, "there is no such file")
        headers = {"cache-control": "no-cache", "etag": file.tag}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers, media_type=file.kind)

    async def listed(self, request: Request) -> Response:
        """What there is to choose from."""
        return _json(self.catalogue)

    # --- questions -------------------------------------------------------------------------------------------
    async def draw(self, request: Request) -> Response:
        """A question of a given length, drawn from an input distribution."""
        wanted, model = await self._read(request, DrawRequest)
        task = model.solver.task

        def question() -> str:
            _between("a question's length", wanted.length, 1, model.longest())
            _between("a seed", wanted.seed, 0, LARGEST_SEED)
            generator, lengths = torch.Generator().manual_seed(wanted.seed), torch.tensor([wanted.length])
            drawn = task.sample(lengths, generator, max_length=wanted.length, family=wanted.family)
            ids = drawn.question[0, : int(drawn.question_length[0])].tolist()
            return task.format_question(task.vocab.decode(ids))

        return _json({"question": await self.pool.take(question, new=True, light=True)})

    async def run(self, request: Request) -> Response:
        """A question's way through the loop, as it is computed."""
        wanted, model = await self._read(request, RunRequest)

        def begin() -> tuple[WatchedLoop, bytes]:
            watch = self._watch(read_query(model, wanted.question, wanted.stretch))
            return watch, _line(watch.start_message()) + self._advance(watch)

        watch, first = await self.pool.take(begin, new=True)

        async def lines() -> AsyncIterator[bytes]:
            yield first
            try:
                while not watch.over:
                    yield await self.pool.take(partial(self._advance, watch))
            except InputError as error:  # the status is sent already
                yield _line({"kind": "error", "error": str(error)})

        return StreamingResponse(lines(), media_type="application/x-ndjson", headers=NOT_KEPT)

    def _watch(self, asked: Query) -> WatchedLoop:
        return WatchedLoop(asked, partial(self.cache.put, (asked.model.key, asked.text)), self.stops)

    def _advance(self, watch: WatchedLoop) -> bytes:
        """The messages of one turn, the last one included where it is due."""
        lines = [_line(seen.message()) for seen in watch.advance(self._share())]
        return b"".join([*lines, _line(watch.end_message())] if watch.over else lines)

    def _share(self) -> float:
        """The seconds a slice may take, and as many threads for it as there are, or one while others wait."""
        others = self.pool.waiting > 1
        torch.set_num_threads(1 if others else self.threads)  # of this worker alone
        return LIMITS.busy_slice_seconds if others else LIMITS.slice_seconds

    async def program(self, request: Request) -> Response:
        """The n-RASP-L program on the same question, in a row of the same size."""
        wanted, model = await self._read(request, ProgramRequest)

        def trace() -> dict[str, object]:
            asked, task = read_query(model, wanted.question, 1.0), model.solver.task
            code = programs.get(task.name)
            row = code.row(asked.tokens, task.row_size(asked.length))
            return queries.program_message(traces.trace(code, row, outputs=True))

        return _json(await self.pool.take(trace, new=True, light=True))

    async def attention(self, request: Request) -> Response:
        """The attention weights of a head at a step, from the cached states or computed from the start."""
        wanted, model = await self._read(request, AttentionRequest)
        asked, config = read_query(model, wanted.question, max(queries.STRETCHES)), model.solver.model.config
        _between("the step", wanted.step, 1, asked.steps)
        _between("the layer", wanted.layer, 0, config.layers - 1)
        _between("the head", wanted.head, 0, config.heads - 1)
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
    async def _read(self, request: Request, kind: type[Q]) -> tuple[Q, Model]:
        """A request's body, bounded in size and time, and the model that it names."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the body must be JSON and say so (content-type: application/json)")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise HTTPException(415, "the body must not be compressed")
        body = b""
        try:
            async with asyncio.timeout(LIMITS.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > LIMITS.body:
                        raise HTTPException(413, f"a body has at most {LIMITS.body} bytes")
        except TimeoutError:
            raise HTTPException(408, "the body did not come in time") from None
        try:
            wanted = read_request(kind, body)
        except InputError as error:
            raise HTTPException(400, str(error)) from None
        if wanted.model not in self.registry:
            raise HTTPException(404, "there is no model of that name here")
        return wanted, self.registry[wanted.model]


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{name} is between {low} and {high} here, not {value}")


def describe_all(registry: ModelRegistry) -> dict[str, Any]:
    """Our tasks in their usual order and those of models that are not ours; models as they are offered."""
    own = {model.solver.task.name: model.solver.task for model in registry.values()}
    return {
        "version": __version__,
        "limits": {"length": LIMITS.length, "steps": LIMITS.steps, "text": LIMITS.text},
        "stretches": list(queries.STRETCHES),
        "stretch": queries.USUAL_STRETCH,
        "tasks": [queries.describe_task(task) for task in {**tasks.TASKS, **own}.values()],
        "models": [model.describe() for model in registry.values()],
    }


def _line(message: dict[str, object]) -> bytes:
    """One message of a stream."""
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status, {**NOT_KEPT, **(headers or {})}, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    """A refusal as JSON: a person's mistake is 422."""
    if isinstance(error, HTTPException):
        return _json({"error": error.detail}, error.status_code, error.headers)
    return _json({"error": str(error)}, 422 if isinstance(error, InputError) else 400)


FOLDER = Path(__file__).parent / "static"
KINDS = {  # to which the response adds the charset of a text
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml",
    ".txt": "text/plain",
}  # fmt: skip
PAGE = "index.html"


@dataclass(frozen=True)
class StaticFile:
    """One file as it is sent."""

    data: bytes
    kind: str
    tag: str  # changes with the contents


def static_files() -> dict[str, StaticFile]:
    """Every file of the page by its path below the folder: `style.css`, `vendor/d3.min.js`."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in KINDS:
            data = path.read_bytes()
            tag = '"' + hashlib.sha256(data).hexdigest()[:20] + '"'
            found[path.relative_to(FOLDER).as_posix()] = StaticFile(data, KINDS[path.suffix], tag)
    return found


ADDRESS = "127.0.0.1"
USUAL_PORT = 8642


def listen(port: int | None) -> socket.socket:
    """A socket on the loopback address: the port asked for, or the usual one, or any if that is taken."""
    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"a port is a number from 0 (any free one) to 65535, not {port}")
    for wanted in (USUAL_PORT, 0) if port is None else (port,):
        try:  # a client that comes before the server is up waits
            return socket.create_server((ADDRESS, wanted), backlog=LIMITS.connections)
        except PermissionError:
            raise InputError(f"port {wanted} may not be used by you; choose one above 1023") from None
        except OSError:
            continue
    raise InputError(f"port {port} is taken; choose another with --port, or leave it out for any free one")


def address(bound: socket.socket, token: str = "") -> str:
    """Where a browser finds the page."""
    return f"http://{ADDRESS}:{bound.getsockname()[1]}/" + (f"?token={token}" if token else "")


def server(app: ASGIApp) -> uvicorn.Server:
    """A server for the application, not started yet."""
    config = uvicorn.Config(
        app, http=BoundedConnection, ws="none", lifespan="off", log_level="warning", access_log=False,
        proxy_headers=False, server_header=False, limit_concurrency=LIMITS.connections,
        backlog=LIMITS.connections // 2,  # so many are accepted at once, before any of them gives way
        timeout_keep_alive=LIMITS.header_seconds, timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=LIMITS.header,
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


class QueueFull(HTTPException):
    """Too many are waiting already."""

    def __init__(self) -> None:
        super().__init__(503, "too many questions at once: try again in a moment", {"retry-after": "1"})


class WorkerPool:
    """Two queues, one of them before a few workers and one before its own."""

    def __init__(self, most_waiting: int) -> None:
        self._most = most_waiting
        self.waiting = 0  # have asked and not been served yet, those being served included
        workers = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._workers = ThreadPoolExecutor(workers, "explorer")  # first come, first served
        self._light = ThreadPoolExecutor(1, "explorer-light")

    async def take(self, work: Callable[[], T], *, new: bool = False, light: bool = False) -> T:
        """Do some work in its turn, unless its client is cancelled; where the queue is full, new work is refused."""
        if new and self.waiting >= self._most:
            raise QueueFull
        self.waiting += 1
        try:
            worker = self._light if light else self._workers
            return await asyncio.get_running_loop().run_in_executor(worker, work)
        finally:
            self.waiting -= 1


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
            self.size += state.nbytes
            self._runs.move_to_end(key)
            if len(states) * state.nbytes > self._limits.cache_entry:
                self._drop(key)
            while self.size > self._limits.cache_bytes:
                self._drop(next(iter(self._runs)))

    def get(self, key: Key, step: int) -> Float[Tensor, "L D"] | None:
        """The state after a step, if it is known."""
        with self._lock:
            states = self._runs.get(key, [])
            if 1 <= step <= len(states):
                self._runs.move_to_end(key)
                return states[step - 1]
        return None

    def _drop(self, key: Key) -> None:
        self.size -= sum(state.nbytes for state in self._runs.pop(key))
