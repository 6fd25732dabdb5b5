"""A server with every compiled program and one untrained copy model, and a browser where there is one.

Without the shipped models: tests do not change with them, and none of them is slow.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from running_server import PATIENCE, Running

from looped.explorer import app, queries
from looped.explorer.app import Explorer
from looped.explorer.queries import ModelRegistry
from looped.explorer.security import Token
from looped.model.weights import Layout
from looped.runs import Run
from looped.training import recipes

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder whose weights are random and whose metrics say what was measured of them."""
    folder = tmp_path_factory.mktemp("runs") / "my-copy"
    config = recipes.make("copy", "fop-loop-adaptive", "quick", (0,))
    with Run(folder, config) as run:
        flat = 0.2 * torch.randn(Layout(config.model).size, generator=torch.Generator().manual_seed(0))
        run.save_seed(0, flat, 10)
        measured = {"kind": "evaluation", "seed": 0, "stop": "oracle", "samples": 64}
        run.log([{**measured, "step": 5, "length": 10, "accuracy": 0.1}])
        run.log([{**measured, "step": 10, "length": n, "accuracy": 1 / n} for n in (10, 20)])
        run.log([{**measured, "step": 10, "length": 20, "accuracy": 0.0, "family": "zeros"}])
    return folder


@pytest.fixture(scope="session")
def registry(untrained: Path) -> ModelRegistry:
    return queries.all_models([untrained], shipped=())


@pytest.fixture(scope="session")
def running(registry: ModelRegistry) -> Iterator[Running]:
    explorer = Explorer(registry)
    bound = app.listen(0)
    token = Token(bound.getsockname()[1])
    server = app.server(explorer.app(token))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Running(app.address(bound), bound.getsockname()[1], explorer, token)
    server.should_exit = True
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The system's browser, as a path."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium on this machine: install it to test the page in a real browser")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any, running: Running) -> Iterator[Callable[..., Any]]:
    """Opens the page in a window of its own. At the end: no console error, no request to any other host."""
    from playwright.sync_api import expect

    contexts, trouble, hosts = [], [], set()

    def open_page(state: str = "", script: str = "", **window: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **window})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script(script)
        expect.set_options(timeout=PATIENCE)
        page.on(
            "console", lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: hosts.add(re.sub(r"^(\w+://[^/]+/).*", r"\1", request.url)))
        page.goto(f"{running.page}#{state}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    refusals = [
        text for text in trouble if "status of 422" in text
    ]  # the browser's own note of a refused question
    assert [text for text in trouble if text not in refusals] == []
    assert hosts <= {running.url}
