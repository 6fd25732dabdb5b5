"""Puts the application on a loopback socket and keeps it there until somebody presses Ctrl-C."""

from __future__ import annotations

import contextlib
import socket
import webbrowser
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from looped.errors import InputError
from looped.explorer.limits import LIMITS, Limits

LOOPBACK = "127.0.0.1"
USUAL_PORT = 8642


def listen(port: int | None) -> socket.socket:
    """A socket on the loopback address: the port asked for, or the usual one, or any if that is taken."""
    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"a port is a number from 0 (any free one) to 65535, not {port}")
    for wanted in (USUAL_PORT, 0) if port is None else (port,):
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((LOOPBACK, wanted))
            bound.listen(LIMITS.connections)  # whoever comes before the server is up waits
        except PermissionError:
            bound.close()
            raise InputError(f"port {wanted} may not be used by you; choose one above 1023") from None
        except OSError:
            bound.close()
            continue
        return bound
    raise InputError(f"port {port} is taken; choose another with --port, or leave it out for any free one")


def address(bound: socket.socket) -> str:
    """Where a browser finds the page."""
    return f"http://{LOOPBACK}:{bound.getsockname()[1]}/"


def server(app: ASGIApp, limits: Limits = LIMITS) -> uvicorn.Server:
    """A server for the application, not started yet."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=limits.connections,
        backlog=limits.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=limits.header,
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, bound: socket.socket, open_page: bool, ready: Callable[[], None]) -> None:
    """Serves until Ctrl-C; opens the page in a browser if asked to."""
    ready()
    if open_page:
        webbrowser.open(address(bound))
    with contextlib.suppress(KeyboardInterrupt):  # which uvicorn raises again when it has closed everything
        server(app).run(sockets=[bound])
