"""Bounds on what may be asked of the explorer, its token, and the middleware that refuses foreign requests.

A web page elsewhere must not be able to talk to this server through a person's browser. So the `Host` must be this
machine by one of its loopback names (which stops a foreign name that resolves here), a request that a browser says
comes from another site is refused, and every answer forbids being framed, sniffed or mixed with foreign scripts.

Other users of the machine can reach the loopback address too. So every request needs a token: the printed address has
it as its query, and the first visit turns it into a cookie. A connection that sends no request is closed after some
seconds, or sooner if there are many of them.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import ClassVar

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True)
class Limits:
    """Bounds on a question, on a request and on the whole server."""

    length: int = 256  # of a question, in the task's own measure n
    row: int = 1040  # positions of the row that is laid out for it
    steps: int = 800  # loop steps of a run
    text: int = 2048  # characters of a typed question
    body: int = 8192  # bytes of a request's body
    header: int = 16384  # bytes of a request's line and headers together
    address: int = 1024  # bytes of a request's path and query
    header_seconds: int = 10  # that a connection may be open without a request, or with half of one
    body_seconds: float = 5.0  # within which a body must have come
    idle: int = 256  # connections without a request; the oldest gives way to a new one
    waiting: int = 256  # requests that may wait for their turn; further ones are told to come back
    connections: int = 1024  # open at once
    slice_seconds: float = 0.025  # of computing, after which what is there is sent
    busy_slice_seconds: float = 0.1  # the same while others wait: fewer slices, so fewer waits
    cache_bytes: int = 256 << 20  # of cached states, so that attention need not be computed from the start
    cache_entry: int = 128 << 20  # of one run


LIMITS = Limits()


LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII)
METHODS = ("GET", "HEAD", "POST")
ONCE = ("host", "origin", "sec-fetch-site", "content-type", "content-length")
# The one inline style there is: what Observable Plot puts into every figure it draws (class `plot`).
PLOT_STYLE = "sha256-+TfQir1nvDucAdvE6XUQBt4ayUjpAWkbw2kCdSfekHM="
POLICY = (
    "default-src 'self'; "
    f"style-src 'self' '{PLOT_STYLE}'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]


class Token:
    """What a request must bring, in the address at the first visit and as a cookie from then on."""

    def __init__(self, port: int) -> None:
        self.text = secrets.token_urlsafe(24)
        self.cookie = f"looped-explorer-{port}"  # browsers share cookies among the ports of a host
        self._once = ""

    def once(self) -> str:
        """Another token, good for one visit: other users can read the command line of a browser that is opened."""
        self._once = secrets.token_urlsafe(24)
        return self._once

    def visit(self, given: bytes) -> bool:
        """Whether this is the token; one that is good for one visit is used up."""
        once = self._once.encode()
        if once and hmac.compare_digest(given, once):
            self._once = ""
            return True
        return hmac.compare_digest(given, self.text.encode())

    def known(self, headers: Headers) -> bool:
        """Whether one of a request's cookies has the token."""
        pairs = [pair.strip() for line in headers.getlist("cookie") for pair in line.split(";")]
        right = f"{self.cookie}={self.text}".encode()
        return any(hmac.compare_digest(pair.encode("latin-1"), right) for pair in pairs)

    def welcome(self) -> Response:
        """The answer to a first visit: the cookie, and the address without the token."""
        cookie = f"{self.cookie}={self.text}; HttpOnly; SameSite=Strict; Path=/"
        return Response(None, 303, {"location": "/", "set-cookie": cookie, "cache-control": "no-store"})


class SecurityMiddleware:
    """Wraps an application: refuses strangers, marks every answer."""

    def __init__(self, app: ASGIApp, token: Token | None = None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or say why not."""
        if scope["type"] != "http":  # there are no web sockets here
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        await (self._answer(scope) or self.app)(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """What a request gets that the application is not to see: a refusal, or the cookie at the first visit."""
        refused, query = refusal(scope), scope["query_string"]
        if refused is None and self.token is not None:
            first = scope["path"] == "/" and query.startswith(b"token=")
            if first and self.token.visit(query[6:]):
                return self.token.welcome()
            if first or not self.token.known(Headers(scope=scope)):
                refused = 403, STRANGER
        if refused is None and query:
            refused = 400, "no address here takes a query: the page's state stands behind the #"
        return None if refused is None else JSONResponse({"error": refused[1]}, refused[0])


STRANGER = "open the address that `looped explore` printed: it has a token, which this request lacks"


def refusal(scope: Scope) -> tuple[int, str] | None:
    """The status and the sentence with which a request is turned away."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LIMITS.header:
        return 431, f"the headers are longer than {LIMITS.header} bytes"
    if len(scope["raw_path"]) + len(scope["query_string"]) > LIMITS.address:
        return 414, f"the address is longer than {LIMITS.address} bytes"
    if scope["http_version"] not in ("1.0", "1.1"):
        return 400, "only HTTP/1.0 and HTTP/1.1 are spoken here"
    headers = Headers(scope=scope)
    if any(len(headers.getlist(name)) > 1 for name in ONCE):
        return 400, f"a request has no header of these twice: {', '.join(ONCE)}"
    host = headers.get("host", "")
    if not LOOPBACK.fullmatch(host):
        return 421, "this server answers on this machine's loopback address only"
    if scope["method"] not in METHODS:
        return 405, "only GET, HEAD and POST are known here"
    foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/"
    if foreign or headers.get("origin", f"http://{host}") != f"http://{host}":
        return 403, "requests from other sites are not answered"
    if headers.get("upgrade") is not None:
        return 400, "there is nothing to upgrade to"
    return None


class BoundedConnection(H11Protocol):
    """A connection that may wait for a request only for so long, and only as one of so many."""

    waiting: ClassVar[dict[BoundedConnection, asyncio.TimerHandle]] = {}  # of this process, the oldest first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Stop waiting where a request has come with all its headers."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there already."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait()

    def _wait(self) -> None:
        self.waiting[self] = self.loop.call_later(LIMITS.header_seconds, self.transport.close)
        if len(self.waiting) > LIMITS.idle:
            oldest = next(iter(self.waiting))
            oldest._stop_waiting()
            oldest.transport.close()

    def _stop_waiting(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()
