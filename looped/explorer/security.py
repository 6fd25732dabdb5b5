"""Bounds on what may be asked of the explorer, and the middleware that refuses foreign requests.

A web page elsewhere must not be able to talk to this server through a person's browser. So the `Host` must be this
machine by one of its loopback names (which stops a foreign name that resolves here), a request that a browser says
comes from another site is refused, and every answer forbids being framed, sniffed or mixed with foreign scripts.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True)
class Limits:
    """Bounds on a question, on a request and on the whole server."""

    length: int = 256  # of a question, in the task's own measure n
    row: int = 1040  # positions of the row that is laid out for it
    steps: int = 800  # loop steps of a run
    text: int = 2048  # characters of a typed question
    body: int = 8192  # bytes of a request's body
    header: int = 16384  # bytes of a request's line and headers together
    body_seconds: float = 5.0  # within which a body must have come
    waiting: int = 256  # requests that may wait for their turn; further ones are told to come back
    connections: int = 1024  # open at once
    slice_seconds: float = 0.025  # of computing, after which what is there is sent
    busy_slice_seconds: float = 0.1  # the same while others wait: fewer slices, so fewer waits
    cache_bytes: int = 256 << 20  # of cached states, so that attention need not be computed from the start
    cache_entry: int = 128 << 20  # of one run

    def public(self) -> dict[str, int | float]:
        """What the page should know."""
        return {name: value for name, value in asdict(self).items() if name in ("length", "steps", "text")}


LIMITS = Limits()


LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.ASCII)
METHODS = ("GET", "HEAD", "POST")
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


class SecurityMiddleware:
    """Wraps an application: refuses strangers, marks every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or says why not."""
        if scope["type"] != "http":  # there are no web sockets here
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        refused = refusal(scope)
        if refused is None:
            await self.app(scope, receive, with_headers)
            return
        status, sentence = refused
        body = json.dumps({"error": sentence}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await with_headers({"type": "http.response.body", "body": body})


def refusal(scope: Scope) -> tuple[int, str] | None:
    """The status and the sentence with which a request is turned away, if it is."""
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LIMITS.header:
        return 431, f"the headers are longer than {LIMITS.header} bytes"
    if scope["http_version"] not in ("1.0", "1.1"):
        return 400, "only HTTP/1.0 and HTTP/1.1 are spoken here"
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not LOOPBACK.fullmatch(hosts[0]):
        return 421, "this server answers on this machine's loopback address only"
    if scope["method"] not in METHODS:
        return 405, "only GET, HEAD and POST are known here"
    if scope.get("query_string"):
        return 400, "no address here takes a query: the page's state stands behind the #"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{hosts[0]}":
        return 403, "requests from other sites are not answered"
    site = headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin") and scope["path"] != "/":
        return 403, "requests from other sites are not answered"
    if headers.get("upgrade") is not None:
        return 400, "there is nothing to upgrade to"
    return None
