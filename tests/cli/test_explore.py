from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from looped.explorer import app


@pytest.mark.parametrize("more", [[], ["--no-token"]])
def test_the_command_serves_until_it_is_interrupted(more: list[str]) -> None:
    words = [sys.executable, "-m", "looped", "explore", "--no-open", "--json", "--port", "0", *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        told = json.loads(process.stdout.readline())
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(told["url"], timeout=20) as answer:
            assert b"looped explorer" in answer.read()
            assert answer.geturl() == told["url"].partition("?")[0], "the token has left the address"
        assert ("?token=" in told["url"]) == (not more)
        stranger = http.client.HTTPConnection("127.0.0.1", urlsplit(told["url"]).port, timeout=20)
        stranger.request("GET", "/api/catalogue")
        assert stranger.getresponse().status == (200 if more else 403)
        stranger.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")
    assert "addition-compiled" in told["models"]
    assert told["url"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--port", "65536"], "from 0 (any free one) to 65535, not 65536"),
        (["--port", "x"], "--port takes"),
        (["--model", "nowhere.safetensors"], "there is no model nowhere.safetensors"),
        (["--prot", "1"], "did you mean --port?"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    cli: Callable[..., object], words: list[str], complaint: str
) -> None:
    code, out, err = cli("explore", "--no-open", *words)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_port_that_is_taken_is_named_and_the_usual_one_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with app.listen(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(app.InputError, match=f"port {port} is taken"):
            app.listen(port)
        monkeypatch.setattr(app, "USUAL_PORT", port)
        with app.listen(None) as second:
            assert second.getsockname()[0] == "127.0.0.1"
            assert second.getsockname()[1] != port


def test_the_page_is_opened_in_a_browser_if_not_told_otherwise(
    cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(app.webbrowser, "open", opened.append)
    monkeypatch.setattr(app.uvicorn.Server, "run", lambda self, sockets: None)
    _, out, _ = cli("explore", "--port", "0")
    cli("explore", "--port", "0", "--no-open")
    _, plain, _ = cli("explore", "--port", "0", "--no-token")
    first, second = opened
    assert first not in out, "other users see a browser's command line: its token is good for one visit"
    assert first.partition("?token=")[0] in out
    assert second in plain
    assert second.endswith("/")


def test_the_files_of_the_page_are_part_of_the_package() -> None:
    static = Path(app.__file__).parent / "static"
    for name in ("index.html", "style.css", "main.js", "vendor/d3.min.js", "vendor/d3.LICENSE.txt"):
        assert (static / name).is_file()
