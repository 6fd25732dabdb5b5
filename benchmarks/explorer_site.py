"""How long an exported explorer takes in a browser: questions of 60 symbols, every model of the site.

$ looped explore --export public && python -m benchmarks.explorer_site public
parity-long: 79 steps in 24 ms (24 to 31), at first 40 ms

The time runs from the question to the end of the loop, after the page has loaded and answered its first question. With
`--cpu` it is the time that the page's thread was computing, which other processes hardly change.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import statistics
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from looped import tasks
from looped.cli.arguments import Positional, parse

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60_000  # milliseconds
ASK = """async ([key, length]) => {
  const api = await import("./static/api.js"), { question } = await api.draw({ model: key, length, seed: 1 });
  let steps = 0;
  const began = performance.now();
  await api.run({ model: key, question, stretch: 1.25 }, (message) => { steps += message.kind === "step"; });
  return [steps, performance.now() - began];
}"""


@dataclass(frozen=True)
class Args:
    """Time the models of an exported site in a browser."""

    folder: Annotated[Path, Positional("DIR")]
    """What `looped explore --export` wrote."""
    symbols: int = 60
    """Tokens of a question, at most."""
    times: int = 5
    """How often each is asked, after a first time."""
    cpu: bool = False
    """Count the time that the page's thread computed, not that which passed."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files, without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def longest(task: str, symbols: int) -> int:
    """The length of the longest question with so many tokens."""
    return max(n for n in range(1, symbols + 1) if tasks.get(task).question_size(n) <= symbols)


def main(words: list[str]) -> int:
    """Serve the folder on the loopback address, ask, print."""
    from playwright.sync_api import sync_playwright

    args = parse(Args, words, "python -m benchmarks.explorer_site")
    handler = functools.partial(Quiet, directory=str(args.folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    models = json.loads((args.folder / "catalogue.json").read_text())["models"]
    with sync_playwright() as playwright:
        path = next(found for name in BROWSERS if (found := shutil.which(name)))
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for model in models:  # a window each: nothing is warm from the one before
            page = browser.new_context().new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/#model={model['key']}")
            page.wait_for_selector("body[data-state=settled]", timeout=PATIENCE)
            steps, times = timed(page, model, args)
            first, *later = times
            span = f"{min(later):.0f} to {max(later):.0f}"
            told = f"{steps} steps in {statistics.median(later):.0f} ms ({span}), at first {first:.0f} ms"
            print(f"{model['key']}: {told}", flush=True)
            page.context.close()
        browser.close()
    return 0


def timed(page: Any, model: dict[str, Any], args: Args) -> tuple[int, list[float]]:
    """Steps of a question, and the milliseconds each time it was asked."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def computed() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return 1000 * next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")

    steps, times = 0, []
    for _ in range(args.times + 1):
        before = computed()
        steps, passed = page.evaluate(ASK, [model["key"], longest(model["task"], args.symbols)])
        times.append(computed() - before if args.cpu else passed)
    return steps, times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
