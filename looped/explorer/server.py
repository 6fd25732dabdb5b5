"""The explorer's web application: a page, its files, and five addresses that it talks to.

| address              | takes              | gives                                                       |
|----------------------|--------------------|-------------------------------------------------------------|
| GET  /               |                    | the page; `/static/…` its files                             |
| GET  /api/catalogue  |                    | tasks, models, limits                                       |
| POST /api/draw       | `DrawRequest`      | a question                                                  |
| POST /api/run        | `RunRequest`       | a line a message: `start`, every `step` as it is done, `end` |
| POST /api/program    | `ProgramRequest`   | the n-RASP-L program's variables at every step              |
| POST /api/attention  | `AttentionRequest` | where a head looks                                          |

A bad request gets 4xx and `{"error": sentence}`. When a client goes away in the middle of a run, the run ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from looped import __version__, tasks
from looped.errors import InputError
from looped.explorer import files, looking, program, wire
from looped.explorer.asking import STRETCHES, USUAL_STRETCH, Asked, ask
from looped.explorer.guard import Guard
from looped.explorer.kept import Kept
from looped.explorer.limits import LIMITS, Limits
from looped.explorer.models import Model, Shelf
from looped.explorer.turns import Busy, Turns
from looped.explorer.watch import Watch

T = TypeVar("T")
LARGEST_SEED = 2**53 - 1  # what a page can count to


class Explorer:
    """The application's handlers and what they share."""

    def __init__(self, shelf: Shelf, limits: Limits = LIMITS) -> None:
        self.shelf, self.limits = shelf, limits
        self.turns = Turns(limits.waiting)
        self.threads = torch.get_num_threads()
        self.kept = Kept(limits)
        self.files = files.table()
        self.catalogue = _catalogue(shelf, limits)

    def app(self) -> Starlette:
        """The web application."""
        post = ["POST"]
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
            middleware=[Middleware(Guard)],
            exception_handlers={
                InputError: _refused,
                HTTPException: _refused,
                Busy: _refused,
                ClientDisconnect: _refused,
            },
        )

    # --- files -----------------------------------------------------------------------------------------------
    async def page(self, request: Request) -> Response:
        """The page itself."""
        return self._file(request, files.PAGE)

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
        """A question of a given length, drawn from a family."""
        wanted = await self._read(request, wire.DrawRequest)
        model = self._model(wanted.model)
        drawn = partial(self._drawn, model, wanted)
        return _json({"question": await self.turns.take(drawn, new=True, light=True)})

    def _drawn(self, model: Model, wanted: wire.DrawRequest) -> str:
        task, longest = model.solver.task, model.longest(self.limits)
        if not 1 <= wanted.length <= longest:
            raise InputError(f"a question's length is between 1 and {longest} here, not {wanted.length}")
        if not 0 <= wanted.seed <= LARGEST_SEED:
            raise InputError(f"a seed is between 0 and {LARGEST_SEED}, not {wanted.seed}")
        generator = torch.Generator().manual_seed(wanted.seed)
        drawn = task.sample(
            torch.tensor([wanted.length]), generator, max_length=wanted.length, family=wanted.family
        )
        ids = drawn.question[0, : int(drawn.question_length[0])].tolist()
        return task.format_question(task.vocab.decode(ids))

    async def run(self, request: Request) -> Response:
        """A question's way through the loop, as it is computed."""
        wanted = await self._read(request, wire.RunRequest)
        model = self._model(wanted.model)

        def begin() -> tuple[Watch, bytes]:
            asked = ask(model, wanted.question, wanted.stretch, self.limits)
            watch = self._watch(asked)
            return watch, wire.line(wire.start(watch)) + self._advance(watch)

        watch, first = await self.turns.take(begin, new=True)

        async def lines() -> AsyncIterator[bytes]:
            yield first
            while not watch.over:
                yield await self.turns.take(partial(self._advance, watch))

        return StreamingResponse(
            lines(), media_type="application/x-ndjson", headers={"cache-control": "no-store"}
        )

    def _watch(self, asked: Asked) -> Watch:
        return Watch(asked, partial(self.kept.put, (asked.model.key, asked.text)))

    def _advance(self, watch: Watch) -> bytes:
        """The messages of one turn, the last one included where it is due."""
        lines = [wire.line(wire.step(seen)) for seen in watch.advance(self._share())]
        return b"".join([*lines, wire.line(wire.end(watch))] if watch.over else lines)

    def _share(self) -> float:
        """The seconds a slice may take, and as many threads for it as there are, or one while others wait."""
        others = self.turns.waiting > 1
        torch.set_num_threads(1 if others else self.threads)  # of this worker alone
        return self.limits.busy_slice_seconds if others else self.limits.slice_seconds

    async def program(self, request: Request) -> Response:
        """The n-RASP-L program on the same question, in a row of the same size."""
        wanted = await self._read(request, wire.ProgramRequest)
        model = self._model(wanted.model)

        def trace() -> dict[str, object]:
            asked = ask(model, wanted.question, 1.0, self.limits)
            task = model.solver.task
            grid = program.run(task.name, asked.tokens, task.row_size(asked.length))
            return wire.program(grid, task.vocab.names)

        return _json(await self.turns.take(trace, new=True, light=True))

    async def attention(self, request: Request) -> Response:
        """Where a head looks at a step; computed from the last states kept, or from the start."""
        wanted = await self._read(request, wire.AttentionRequest)
        model = self._model(wanted.model)
        asked = ask(model, wanted.question, max(STRETCHES), self.limits)
        config = model.solver.model.config
        for name, value, low, high in (
            ("step", wanted.step, 1, asked.steps),
            ("layer", wanted.layer, 0, config.layers - 1),
            ("head", wanted.head, 0, config.heads - 1),
        ):
            if not low <= value <= high:
                raise InputError(f"the {name} is between {low} and {high}, not {value}")
        before = await self._state(asked, wanted.step - 1)
        look = partial(looking.shares, asked, before, wanted.layer, wanted.head)
        shares = (await self.turns.take(look, new=True, light=True) * 255).round().numpy().astype(np.uint8)
        return _json({"size": shares.shape[0], "shares": wire.packed(shares)})

    async def _state(self, asked: Asked, step: int) -> torch.Tensor | None:
        """The state after a step, None for step 0."""
        if step == 0:
            return None
        known = self.kept.get((asked.model.key, asked.text), step)
        if known is not None:
            return known
        watch = await self.turns.take(partial(self._watch, asked), new=True)
        while watch.done < step:
            await self.turns.take(lambda: watch.advance(self._share(), step - watch.done))
        return watch.state

    # --- requests --------------------------------------------------------------------------------------------
    def _model(self, key: str) -> Model:
        if key not in self.shelf:
            raise HTTPException(404, "there is no model of that name here")
        return self.shelf[key]

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
            return wire.read(kind, body)
        except InputError as error:
            raise HTTPException(400, str(error)) from None


def _catalogue(shelf: Shelf, limits: Limits) -> dict[str, object]:
    """Tasks in their usual order, models as they are offered."""
    return {
        "version": __version__,
        "limits": limits.public(),
        "stretches": list(STRETCHES),
        "stretch": USUAL_STRETCH,
        "tasks": [
            {
                "name": task.name,
                "summary": task.summary,
                "example": task.example,
                "formula": task.steps_formula,
                "families": list(task.families),
                "paper_length": task.paper.max_length,
            }
            for task in tasks.TASKS.values()
        ],
        "models": [shelf[key].describe(limits) for key in shelf],
    }


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(
        text, status, {"cache-control": "no-store", **(headers or {})}, media_type="application/json"
    )


async def _refused(request: Request, error: Exception) -> Response:
    """A refusal as JSON: a person's mistake is 422, a full house 503."""
    if isinstance(error, HTTPException):
        return _json({"error": error.detail}, error.status_code, dict(error.headers or {}))
    if isinstance(error, Busy):
        sentence = "too many questions at once: try again in a moment"
        return _json({"error": sentence}, 503, {"retry-after": "1"})
    return _json({"error": str(error)}, 422 if isinstance(error, InputError) else 400)
