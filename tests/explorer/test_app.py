"""The server over real sockets: what it gives, and everything it refuses."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from running_server import Running

from looped import tasks
from looped.explorer import app, queries, security
from looped.explorer.queries import WatchedLoop, read_query
from looped.explorer.security import LIMITS, STRANGER, BoundedConnection, Token

JSON = {"content-type": "application/json"}


def call(
    running: Running, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One request: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    try:
        headers = {"cookie": running.cookie, **(headers or {})}
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, json.dumps(body), {**JSON, **headers})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def lines(running: Running, body: object) -> list[dict[str, object]]:
    status, _, text = call(running, "/api/run", body)
    assert status == 200, text
    return [json.loads(line) for line in text.splitlines()]


# --- what it gives -------------------------------------------------------------------------------------------
def test_the_page_and_its_files_are_there_with_a_strict_policy(running: Running) -> None:
    for path in ["/", *(f"/static/{name}" for name in app.static_files())]:
        status, headers, body = call(running, path)
        assert status == 200
        assert body
        assert headers["content-security-policy"].startswith("default-src 'self'; ")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert call(running, path, headers={"if-none-match": headers["etag"]})[0] == 304


def test_the_page_names_no_other_host(running: Running) -> None:
    for name, file in app.static_files().items():
        if name.startswith("vendor/") or name.endswith(".svg"):
            continue
        assert b"://" not in file.data, name


def test_the_licences_of_what_is_shipped_are_there() -> None:
    table = app.static_files()
    assert b"Mike Bostock" in table["vendor/d3.LICENSE.txt"].data
    assert b"Observable" in table["vendor/plot.LICENSE.txt"].data
    assert b"v7.9.2" in table["vendor/d3.min.js"].data[:60]
    assert b"v0.6.17" in table["vendor/plot.umd.min.js"].data[:60]


def test_a_run_is_told_from_start_to_end(running: Running) -> None:
    start, *steps, end = lines(running, {"model": "addition-compiled", "question": "10+11"})
    assert (start["kind"], start["expected"], start["needed"], start["from"]) == ("start", "101", 3, 5)
    assert [step["step"] for step in steps] == list(range(1, start["steps"] + 1))
    assert end["kind"] == "end"
    halt = next(rule for rule in end["rules"] if rule["name"] == "halt")
    assert (halt["answer"], halt["correct"], halt["stopped"]) == ("101", True, True)
    tokens = np.frombuffer(base64.b64decode(steps[halt["step"] - 1]["tokens"]), "<u2").reshape(
        -1, len(start["row"])
    )
    assert [start["names"][i] for i in tokens[0, start["from"] :]][:4] == ["1", "0", "1", "#"]


def test_a_drawn_question_can_be_asked(running: Running) -> None:
    for task in tasks.TASKS.values():
        for family in task.families:
            drawn = {"model": f"{task.name}-compiled", "length": 5, "family": family, "seed": 7}
            status, _, body = call(running, "/api/draw", drawn)
            assert status == 200
            assert body == call(running, "/api/draw", drawn)[2], "the same seed draws the same question"
            assert task.measure(task.parse(json.loads(body)["question"]))[0] == 5


def test_the_program_is_traced_in_the_same_row(running: Running) -> None:
    status, _, body = call(running, "/api/program", {"model": "copy-compiled", "question": "10"})
    found = json.loads(body)
    assert (status, found["steps"], [v["name"] for v in found["variables"]]) == (200, 2, ["output", "seq"])
    values = np.frombuffer(base64.b64decode(found["variables"][1]["values"]), "<i2").reshape(3, 8)
    assert values[2].tolist() == [-1, -1, 1, 0, *[found["names"].index("#")] * 4]


@pytest.mark.parametrize("asked_before", [True, False])
def test_attention_is_the_same_kept_or_computed_anew(running: Running, asked_before: bool) -> None:
    question = "110100" if asked_before else "110101"
    wanted = {"model": "my-copy:seed-0", "question": question}
    if asked_before:
        lines(running, wanted)
    status, _, body = call(running, "/api/attention", {**wanted, "step": 5, "layer": 0, "head": 1})
    assert status == 200
    asked = read_query(running.explorer.registry["my-copy:seed-0"], question)
    watch = WatchedLoop(asked)
    while watch.done < 4:
        watch.advance(1, 4 - watch.done)
    shares = np.frombuffer(base64.b64decode(json.loads(body)["shares"]), "u1").reshape(
        asked.batch().tokens.shape[1], -1
    )
    assert np.abs(shares / 255 - queries.attention_map(asked, watch.state, 0, 1).numpy()).max() < 0.01


def test_a_client_that_goes_away_ends_its_run(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of hundreds of steps is called off after the first ones; the server must not go on computing."""
    watches: list[WatchedLoop] = []
    original = WatchedLoop.advance

    def slowly(self: WatchedLoop, seconds: float, most: int | None = None) -> object:
        watches.append(self)
        time.sleep(0.02)
        return original(self, 0.0, 1)

    monkeypatch.setattr(WatchedLoop, "advance", slowly)
    body = json.dumps({"model": "copy-compiled", "question": "01" * 100}).encode()
    with socket.create_connection(("127.0.0.1", running.port)) as client:
        client.sendall(_known(running, _post("/api/run", body)))
        assert client.recv(4096)
    time.sleep(0.3)
    done = watches[-1].done
    time.sleep(0.4)
    assert watches[-1].done == done < watches[-1].asked.steps
    assert running.explorer.pool.waiting == 0


# --- what it refuses -----------------------------------------------------------------------------------------
def _post(
    path: str, body: bytes, extra: str = "", host: str = "127.0.0.1", kind: str = "application/json"
) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    ).encode() + body


def _known(running: Running, request: bytes) -> bytes:
    """The same request with the cookie that a browser would send."""
    return request.replace(b"\r\n", f"\r\ncookie: {running.cookie}\r\n".encode(), 1)


def _get(
    path: str, extra: str = "host: 127.0.0.1\r\n", verb: str = "GET", version: str = "HTTP/1.1"
) -> bytes:
    return f"{verb} {path} {version}\r\n{extra}\r\n".encode("latin-1")


def _run(**changes: object) -> bytes:
    return _post("/api/run", json.dumps({"model": "copy-compiled", "question": "101", **changes}).encode())


def _look(**changes: object) -> bytes:
    asked = {"model": "copy-compiled", "question": "101", "step": 1, "layer": 0, "head": 0}
    return _post("/api/attention", json.dumps({**asked, **changes}).encode())


MALFORMED: dict[str, bytes] = {
    # paths
    "a file of the system": _get("/etc/passwd"),
    "up and away": _get("/static/../server.py"),
    "up, encoded": _get("/static/%2e%2e/server.py"),
    "up, encoded twice": _get("/static/%252e%252e%252fserver.py"),
    "a slash, encoded": _get("/static/..%2f..%2fcli.py"),
    "backslashes": _get("/static/..\\..\\cli.py"),
    "an absolute path": _get("/static//etc/passwd"),
    "a null byte": _get("/static/index.html%00.js"),
    "a folder": _get("/static/vendor/"),
    "no such file": _get("/static/absent.js"),
    "the source": _get("/server.py"),
    "no such address": _get("/api/files"),
    "a query": _get("/?file=/etc/passwd"),
    "a query of the api": _get("/api/catalogue?model=../../x"),
    # verbs
    "delete": _get("/", verb="DELETE"),
    "put": _get("/static/index.html", verb="PUT"),
    "trace": _get("/", verb="TRACE"),
    "options": _get("/api/run", verb="OPTIONS"),
    "an invented verb": _get("/", verb="FETCH"),
    "get where post is due": _get("/api/run"),
    "post where get is due": _post("/api/catalogue", b"{}"),
    # headers
    "no host": _get("/", ""),
    "a foreign host": _get("/", "host: evil.example\r\n"),
    "a host that begins like ours": _get("/", "host: 127.0.0.1.evil.example\r\n"),
    "two hosts": _get("/", "host: 127.0.0.1\r\nhost: evil.example\r\n"),
    "another site's origin": _post("/api/run", b"{}", "origin: http://evil.example\r\n"),
    "the null origin": _post("/api/run", b"{}", "origin: null\r\n"),
    "another site's page": _get("/api/catalogue", "host: 127.0.0.1\r\nsec-fetch-site: cross-site\r\n"),
    "another origin after ours": _post(
        "/api/run", b"{}", "origin: http://127.0.0.1\r\norigin: http://evil.example\r\n"
    ),
    "our origin twice": _get("/", "host: 127.0.0.1\r\n" + 2 * "origin: http://127.0.0.1\r\n"),
    "two sites": _get("/", "host: 127.0.0.1\r\nsec-fetch-site: none\r\nsec-fetch-site: cross-site\r\n"),
    "two types": _post("/api/run", b"{}", "content-type: text/plain\r\n"),
    "a long path": _get("/" + "a" * LIMITS.address),
    "a long query": _get("/?" + "a" * LIMITS.address),
    "an upgrade": _get("/", "host: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n"),
    "an endless header": _get("/", f"host: 127.0.0.1\r\nx: {'a' * 3 * LIMITS.header}\r\n"),
    "an endless path": _get("/" + "a" * 3 * LIMITS.header),
    "no http at all": b"\x16\x03\x01\x02\x00hello\r\n\r\n",
    "another protocol": _get("/", version="HTTP/9.9"),
    "a broken header": b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nbad header\r\n\r\n",
    "a length that is none": b"POST /api/run HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -5\r\n\r\n",
    "two lengths": _post("/api/run", b"{}", "content-length: 5\r\n"),
    # bodies
    "a body too long": _post("/api/run", b" " * (LIMITS.body + 1)),
    "no body": _post("/api/run", b""),
    "not json": _post("/api/run", b"model=copy"),
    "form data": _post("/api/run", b"model=copy", kind="application/x-www-form-urlencoded"),
    "plain text, as a foreign page could send": _post("/api/run", b"{}", kind="text/plain"),
    "compressed": _post("/api/run", b"{}", "content-encoding: gzip\r\n"),
    "not utf-8": _post("/api/run", b'{"model": "\xff"}'),
    "a list": _post("/api/run", b"[]"),
    "deep nesting": _post("/api/run", b"[" * 4000),
    "a field twice": _post("/api/run", b'{"model": "copy-compiled", "model": "x", "question": "1"}'),
    "a field too many": _run(path="/etc/passwd"),
    "a field too few": _post("/api/run", b'{"model": "copy-compiled"}'),
    "a number for a text": _run(question=101),
    "nothing for a text": _run(question=None),
    "not a number": _post("/api/run", b'{"model": "copy-compiled", "question": "1", "stretch": NaN}'),
    "a model that is a path": _run(model="../../zoo/copy.safetensors"),
    "a model of another name": _run(model="nobody"),
    "an empty question": _run(question=""),
    "a question of other signs": _run(question="10<script>"),
    "half a sign": _post("/api/run", b'{"model": "copy-compiled", "question": "\\ud800"}'),
    "a question too long": _run(question="1" * (LIMITS.length + 1)),
    "endlessly many steps": _run(stretch=1e9),
    "steps backwards": _run(stretch=-1),
    "a step before the first": _look(step=0),
    "a step past the last": _look(step=10**6),
    "a layer that is not there": _look(layer=99),
    "a head below zero": _look(head=-1),
    "a huge number": _look(step=10**400),
    "a length of none": _post("/api/draw", b'{"model": "copy-compiled", "length": 0}'),
    "a length of a million": _post("/api/draw", b'{"model": "copy-compiled", "length": 1000000}'),
    "a family of no task": _post("/api/draw", b'{"model": "copy-compiled", "length": 3, "family": "carry"}'),
    "a seed below zero": _post("/api/draw", b'{"model": "copy-compiled", "length": 3, "seed": -1}'),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_refused(running: Running, name: str) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as client:
        client.settimeout(20)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before it was all told
            client.sendall(_known(running, MALFORMED[name]))
        answer = client.recv(65536)
    status = int(answer.split(b" ", 2)[1])
    assert 400 <= status < 500, answer[:300]
    assert STRANGER.encode() not in answer, "refused for what it asks"
    assert b"root:" not in answer
    assert b"Traceback" not in answer


def test_the_table_of_malformed_requests_is_long_enough() -> None:
    assert len(MALFORMED) >= 30


def test_a_refusal_is_a_sentence(running: Running) -> None:
    status, _, body = call(running, "/api/run", {"model": "addition-compiled", "question": "10+1+1"})
    assert status == 422
    assert "exactly one + stands between" in json.loads(body)["error"]


def test_a_body_that_does_not_come_is_not_waited_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LIMITS", replace(LIMITS, body_seconds=0.2))
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as client:
        client.sendall(_known(running, _post("/api/run", b"{}"))[:-1])
        assert b" 408 " in client.recv(4096)


def test_a_full_house_says_so(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running.explorer.pool, "_most", 0)
    status, headers, body = call(running, "/api/run", {"model": "copy-compiled", "question": "1"})
    assert (status, headers["retry-after"]) == (503, "1")
    assert "try again" in json.loads(body)["error"]


def test_only_loopback_is_bound(running: Running) -> None:
    for address in _own_addresses():
        with pytest.raises((ConnectionRefusedError, TimeoutError)):
            socket.create_connection((address, running.port), timeout=2)


def _own_addresses() -> Iterator[str]:
    """This machine's addresses other than loopback."""
    for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET):
        if not str(found[4][0]).startswith("127."):
            yield str(found[4][0])


# --- the token -----------------------------------------------------------------------------------------------
def test_the_first_visit_turns_the_token_into_a_cookie(running: Running) -> None:
    query = running.page.removeprefix(running.url)
    status, headers, body = call(running, f"/{query}", headers={"cookie": ""})
    assert (status, headers["location"], body) == (303, "/", b"")
    assert headers["set-cookie"] == f"{running.cookie}; HttpOnly; SameSite=Strict; Path=/"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert call(running, "/", headers={"cookie": f"other=1; {running.cookie}"})[0] == 200


@pytest.mark.parametrize(
    "path", ["/", "/static/main.js", "/static/absent.js", "/api/catalogue", "/api/run", "/x"]
)
@pytest.mark.parametrize(
    "cookie",
    ["", "NAME=", "NAME=wrong", "other=TOKEN", "NAME=TOKENx", "NAME=\xe9", "TOKEN", "name=TOKEN"],
)
def test_who_lacks_the_token_learns_nothing(running: Running, path: str, cookie: str) -> None:
    text = running.token.text.upper() if cookie == "name=TOKEN" else running.token.text
    cookie = cookie.replace("NAME", running.token.cookie).replace("TOKEN", text)
    body = {"model": "copy-compiled", "question": "1"} if path == "/api/run" else None
    status, headers, answer = call(running, path, body, {"cookie": cookie})
    assert (status, json.loads(answer)["error"]) == (403, STRANGER)
    assert "set-cookie" not in headers


@pytest.mark.parametrize(
    ("path", "status"),
    [("/?token=", 403), ("/?token=wrong", 403), ("/?token=%C3%A9", 403), ("/?token=\xe9", 400), ("/?Token=x", 400),
     ("/static/main.js?token=TOKEN", 400), ("/api/catalogue?token=TOKEN", 400), ("/?x=1&token=TOKEN", 400)],
)  # fmt: skip
def test_a_wrong_token_is_refused(running: Running, path: str, status: int) -> None:
    request = _known(running, _get(path.replace("TOKEN", running.token.text)))
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as client:
        client.sendall(request)
        answer = client.recv(65536)
    assert int(answer.split(b" ", 2)[1]) == status, answer
    assert b"set-cookie" not in answer


def test_a_token_for_one_visit_is_used_up() -> None:
    token = Token(8642)
    once = token.once().encode()
    assert not token.visit(b"")
    assert token.visit(once)
    assert not token.visit(once)
    assert token.visit(token.text.encode())
    assert token.visit(token.text.encode()), "the printed one stays good"
    assert Token(8642).text != token.text


# --- connections without a request ---------------------------------------------------------------------------
HALF = (b"", b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx: ")


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of many connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_many_half_open_connections_shut_nobody_out(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(1100):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=20))
            with contextlib.suppress(OSError):
                client.sendall(HALF[number % len(HALF)])
            if number % 100 == 99:
                began = time.monotonic()
                assert call(running, "/")[0] == 200
                assert time.monotonic() - began < 5
        assert len(BoundedConnection.waiting) <= LIMITS.idle


@pytest.mark.parametrize("after", ["nothing", "half a request", "drops of a request", "an answer"])
def test_a_connection_without_a_request_is_closed(
    running: Running, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    monkeypatch.setattr(security, "LIMITS", replace(LIMITS, header_seconds=1))
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as client:
        if after == "an answer":
            client.sendall(_known(running, _get("/api/catalogue")))
            assert client.recv(12) == b"HTTP/1.1 200"
        elif after != "nothing":
            client.sendall(HALF[1])
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError, TimeoutError):
            while time.monotonic() - began < 10:
                client.settimeout(0.2 if "drops" in after else 15)
                with contextlib.suppress(TimeoutError):
                    if not client.recv(1 << 20):
                        break
                if "drops" in after:
                    client.sendall(b"a")
        assert time.monotonic() - began < 5


def test_a_long_answer_outlives_the_time_for_headers(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "LIMITS", replace(LIMITS, header_seconds=1))
    original = WatchedLoop.advance

    def slowly(self: WatchedLoop, seconds: float, most: int | None = None) -> object:
        time.sleep(0.4)
        return original(self, 0.0, 1)

    monkeypatch.setattr(WatchedLoop, "advance", slowly)
    told = lines(running, {"model": "copy-compiled", "question": "1"})
    assert told[-1]["kind"] == "end"
