from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from looped.explorer import app


def test_the_command_serves_until_it_is_interrupted() -> None:
    words = [sys.executable, "-m", "looped", "explore", "--no-open", "--json", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        told = json.loads(process.stdout.readline())
        with urllib.request.urlopen(told["url"], timeout=20) as answer:
            assert b"looped explorer" in answer.read()
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


def test_the_page_is_opened_in_a_browser_if_not_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(app.webbrowser, "open", opened.append)
    monkeypatch.setattr(app.uvicorn.Server, "run", lambda self, sockets: None)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        app.serve(None, bound, True, lambda: None)  # type: ignore[arg-type]
        app.serve(None, bound, False, lambda: None)  # type: ignore[arg-type]
        assert opened == [app.address(bound)]


def test_the_files_of_the_page_are_part_of_the_package() -> None:
    static = Path(app.__file__).parent / "static"
    for name in ("index.html", "style.css", "main.js", "vendor/d3.min.js", "vendor/d3.LICENSE.txt"):
        assert (static / name).is_file()
