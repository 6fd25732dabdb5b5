"""Takes the pictures of the explorer that the README and the guide show.

$ python docs/pictures/explorer.py copy-long 101100101011011010101

Needs playwright and a chromium. Writes beside itself explorer-light.png, explorer-dark.png, explorer-phone.png and
explorer.gif.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from looped.explorer import app, queries
from looped.explorer.app import Explorer

HERE = Path(__file__).parent
WINDOW = {"width": 1440, "height": 1000}
PHONE = {"width": 390, "height": 844}
TOUR = "#tour=1"  # what the phone shows
LARGEST = 1_500_000  # bytes of the animation
COLOURS = 240  # of the animation: text and flat cells need no more
SCRUB = "(slider, step) => { slider.value = step; slider.dispatchEvent(new Event('input')); }"
STILL, MOVING = 1600, 260  # milliseconds of the last frame and of the others


def main(model: str, question: str) -> None:
    """Asks a shipped model and takes all of them."""
    registry = queries.all_models()
    bound = app.listen(0)
    server = app.server(Explorer(registry).app())
    threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    address = f"{app.address(bound)}#model={model}&q={question}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
        )
        for theme in ("light", "dark"):
            page = browser.new_page(viewport=WINDOW, color_scheme=theme)
            _settle(page, address)
            _picture(page.screenshot(full_page=True)).save(HERE / f"explorer-{theme}.png", optimize=True)
        phone = browser.new_page(viewport=PHONE, is_mobile=True, has_touch=True, reduced_motion="reduce")
        _settle(phone, f"{app.address(bound)}{TOUR}")
        _picture(phone.screenshot()).save(HERE / "explorer-phone.png", optimize=True)
        page = browser.new_page(viewport=WINDOW)
        _settle(page, address)
        _animate(page, HERE / "explorer.gif")
        browser.close()
    server.should_exit = True


def _settle(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("body[data-state=settled]")
    page.wait_for_timeout(600)


def _animate(page: Page, path: Path) -> None:
    """Every step of the loop up to its answer."""
    stop = int(page.inner_text("#step-shown").split()[1])
    frames = []
    for step in range(stop + 1):
        page.locator("#step").evaluate(SCRUB, str(step))
        frames.append(_picture(page.locator("#stage").screenshot()))
    # The same colours for all: what stands still then costs nothing.
    colours = frames[stop // 2].quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    frames = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    frames[0].save(
        path,
        save_all=True,
        append_images=frames[1:],
        duration=[MOVING] * stop + [STILL],
        loop=0,
        optimize=True,
    )
    assert path.stat().st_size <= LARGEST, f"{path} has {path.stat().st_size} bytes"


def _picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("give a shipped model's name and a question")
    main(sys.argv[1], sys.argv[2])
