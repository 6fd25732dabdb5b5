"""The page in a real browser: asked, scrubbed, shared, refused, by keyboard, on a phone, in the dark."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from running_server import PHONE, SETTLED, Running, asked

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BEAT = 450  # milliseconds between two steps of a short loop that is played


def read_query(page: Any, question: str) -> None:
    page.fill("#question", question)
    page.click("#run")
    api.expect(page.locator("#asked")).to_have_text(question)


def stop_the_clock(page: Any) -> None:
    """From here on the page's timers wait for `page.clock.run_for`, however busy the machine is."""
    page.clock.install(time=0)
    page.clock.pause_at(1)


def answer(page: Any) -> tuple[str, str]:
    return page.inner_text("#answer"), page.inner_text("#badge")


def test_a_newcomer_sees_a_loop_without_doing_anything(visit: Callable[..., Any]) -> None:
    page = visit()
    page.wait_for_selector(SETTLED)
    assert page.is_visible("#stage")
    assert page.input_value("#model") == "my-copy:seed-0", "the first trained model"
    api.expect(page.locator("#accuracy svg")).to_have_count(1)
    assert "×" in page.inner_text("#stretch")


def test_a_question_is_answered(visit: Callable[..., Any]) -> None:
    page = visit(asked("addition", "10+11"))
    page.wait_for_selector(SETTLED)
    read_query(page, "1011+0110")
    assert answer(page) == ("10001", "✓ right")
    assert page.inner_text("#step-shown") == "step 5 of 11", (
        "the page stands where the model's own rule stops"
    )
    rules = {row.split()[0]: row.split()[1:] for row in page.locator("#rules tbody tr").all_inner_texts()}
    assert rules["halt"] == ["5", "✓", "10001", "=", "17"]
    assert rules["oracle"] == ["5", "✓", "10001", "=", "17"], (
        "the program's own number of steps, one more than the paper's T = n"
    )
    api.expect(page.locator("#program-note")).to_contain_text("n-RASP-L, done after 5 steps")
    api.expect(page.locator("#measures svg")).to_have_count(3)


LATE_END = """
const { read } = ReadableStreamDefaultReader.prototype;
ReadableStreamDefaultReader.prototype.read = async function () {
  const got = await read.call(this);
  if (got.done) await new Promise((go) => setTimeout(go, 600));
  return got;
};
"""


def test_a_run_whose_stream_ends_late_settles_all_the_same(visit: Callable[..., Any]) -> None:
    page = visit(asked("addition", "10+11"), LATE_END)
    page.wait_for_selector(SETTLED)
    page.wait_for_timeout(900)
    assert page.locator(SETTLED).count() == 1, "what has settled stays so"


def test_steps_are_scrubbed_and_played(visit: Callable[..., Any]) -> None:
    page = visit(asked("copy", "1011"))
    page.wait_for_selector(SETTLED)
    page.fill("#step", "2")
    assert page.inner_text("#step-shown") == "step 2 of 9"
    assert "not yet" in page.inner_text("#now")
    pictures = {page.locator("#network").screenshot()}
    page.fill("#step", "4")
    assert "right" in page.inner_text("#now")
    pictures.add(page.locator("#network").screenshot())
    assert len(pictures) == 2, "another step is another picture"
    stop_the_clock(page)
    page.click("#play")
    page.clock.run_for(2 * BEAT)
    assert page.inner_text("#step-shown") == "step 6 of 9"
    page.click("#play")
    page.clock.run_for(2 * BEAT)
    assert page.inner_text("#step-shown") == "step 6 of 9", "paused"
    page.click("#play")
    page.click("#rules tbody tr:first-child td button")
    page.clock.run_for(2 * BEAT)
    assert page.inner_text("#step-shown") == "step 4 of 9", "whoever chooses a step wants to stay there"


def test_an_address_is_shared_and_reopened(visit: Callable[..., Any]) -> None:
    page = visit(asked("unique_set", "4 2 4 7"))
    page.wait_for_selector(SETTLED)
    page.fill("#step", "3")
    page.select_option("#layer", "1")
    page.select_option("#head", "2")
    page.click("#variables button:text-is('seq')")
    page.wait_for_url("**step=3**show=seq**")
    again = visit(page.url.partition("#")[2])
    again.wait_for_selector(SETTLED)
    for field in ("#task", "#model", "#question", "#step", "#layer", "#head"):
        assert again.input_value(field) == page.input_value(field)
    api.expect(again.locator("#variables button[aria-pressed=true]")).to_have_text("seq")
    assert answer(again) == answer(page) == ("4 2 7", "✓ right")


def test_the_compiled_program_stands_beside_a_trained_model(visit: Callable[..., Any]) -> None:
    page = visit("task=copy&model=my-copy:seed-0&q=0110")
    page.wait_for_selector(SETTLED)
    before = page.evaluate("document.getElementById('program').toDataURL()")
    with page.expect_response("**/api/run") as asked_again:
        page.click("#variables button:text-is('compiled')")
    assert "copy-compiled" in asked_again.value.request.post_data
    api.expect(page.locator("#program-note")).to_contain_text("compiled into a network")
    page.wait_for_function("old => document.getElementById('program').toDataURL() !== old", arg=before)
    again = visit(page.url.partition("#")[2] + "&show=compiled")
    again.wait_for_selector(SETTLED)
    api.expect(again.locator("#variables button[aria-pressed=true]")).to_have_text("compiled")
    own = visit(asked("copy", "0110"))  # the compiled model itself has nothing beside it
    own.wait_for_selector(SETTLED)
    assert own.locator("#variables button:text-is('compiled')").count() == 0


def test_an_address_of_a_model_that_is_not_here_says_so(visit: Callable[..., Any]) -> None:
    page = visit("task=copy&model=gone&q=101&step=x&head=99&other=1")
    api.expect(page.locator("#message")).to_contain_text("is not here")
    assert page.input_value("#task") == "copy"


def test_a_bad_question_is_refused_in_a_sentence(visit: Callable[..., Any]) -> None:
    page = visit(asked("addition", "10+11"))
    page.wait_for_selector(SETTLED)
    page.fill("#question", "10+1+1")
    page.click("#run")
    api.expect(page.locator("#message")).to_contain_text("stands between two numbers, not 2")
    assert page.get_attribute("#question", "aria-invalid") == "true"
    read_query(page, "10+01")
    api.expect(page.locator("#message")).to_have_text("")
    assert page.get_attribute("#question", "aria-invalid") == "false"


def test_text_is_never_markup(visit: Callable[..., Any]) -> None:
    page = visit(asked("copy", "<img src=x onerror=alert(1)>"))
    api.expect(page.locator("#message")).to_contain_text("is no bit")
    assert page.locator("#message img").count() == 0


def test_the_last_wish_counts_whatever_comes_first(visit: Callable[..., Any]) -> None:
    page = visit(asked("copy", "1"))
    page.wait_for_selector(SETTLED)
    held: list[Any] = []

    def hold_the_first(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/api/draw", hold_the_first)
    page.fill("#length", "17")
    page.select_option("#family", "ones")
    api.expect(page.locator("#asked")).to_have_text("1" * 17)
    page.wait_for_selector(SETTLED)
    with page.expect_response("**/api/draw"):
        held[0].continue_()
    page.wait_for_timeout(300)
    api.expect(page.locator("#asked")).to_have_text("1" * 17)
    assert page.input_value("#question") == "1" * 17


def test_questions_are_drawn(visit: Callable[..., Any]) -> None:
    page = visit(asked("copy", "1"))
    page.wait_for_selector(SETTLED)
    page.fill("#length", "17")
    page.select_option("#family", "ones")
    api.expect(page.locator("#asked")).to_have_text("1" * 17)
    page.select_option("#task", "parity")
    api.expect(page.locator("#network-note")).to_contain_text("parity")
    assert re.fullmatch("[01]{17}", page.input_value("#question")), "the length stays when the task changes"


def test_pointing_at_a_cell_tells_its_probabilities(visit: Callable[..., Any]) -> None:
    page = visit(asked("copy", "1011"))
    page.wait_for_selector(SETTLED)
    box = page.locator("#network").bounding_box()
    page.mouse.move(box["x"] + 34 + 5.5 * 24, box["y"] + 90)
    api.expect(page.locator("#tip")).to_contain_text("position 6, wanted 0")
    assert re.search(r"\d %", page.inner_text("#tip"))
    page.mouse.move(5, 5)
    api.expect(page.locator("#tip")).to_be_hidden()


def test_the_keyboard_is_enough(visit: Callable[..., Any]) -> None:
    page = visit(asked("addition", "10+11"))
    page.wait_for_selector(SETTLED)
    focused = "document.activeElement.id"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(focused))
        if seen[-1] == "question":
            break
    page.keyboard.press("Control+a")
    page.keyboard.type("11+11")
    page.keyboard.press("Enter")
    api.expect(page.locator("#asked")).to_have_text("11+11")
    for wanted in ("step", "network"):
        while page.evaluate(focused) != wanted:
            page.keyboard.press("Tab")
            seen.append(page.evaluate(focused))
            assert len(seen) < 60, seen
        if wanted == "step":
            before = page.inner_text("#step-shown")
            page.keyboard.press("ArrowLeft")
            assert page.inner_text("#step-shown") != before
    page.keyboard.press("ArrowRight")  # the first key puts the cursor on the grid, the next ones move it
    page.keyboard.press("ArrowRight")
    api.expect(page.locator("#tip")).to_contain_text("position 7")
    page.keyboard.press("ArrowDown")
    api.expect(page.locator("#tip")).to_contain_text("Step 3")
    assert {"share", "theme", "task", "model", "play"} <= set(seen), "every control can be reached"
    page.keyboard.press("Escape")
    page.locator("#network").evaluate("(canvas) => canvas.blur()")
    page.keyboard.press("Home")
    assert page.inner_text("#step-shown").startswith("step 0")
    stop_the_clock(page)
    page.keyboard.press("Space")
    api.expect(page.locator("#play")).to_have_text("Pause")


def test_a_phone_shows_everything_without_scrolling_sideways(visit: Callable[..., Any]) -> None:
    page = visit(asked("addition", "101101+011011"), viewport=PHONE, is_mobile=True, has_touch=True)
    page.wait_for_selector(SETTLED)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for part in (
        "#question",
        "#run",
        "#play",
        "#network-scroll",
        "#program-scroll",
        "#attention",
        "#measures svg",
        "#rules",
    ):
        api.expect(page.locator(part).first).to_be_visible()
        assert page.locator(part).first.bounding_box()["x"] >= 0
    stop_the_clock(page)
    page.tap("#play")
    api.expect(page.locator("#play")).to_have_text("Pause")


def test_dark_mode_follows_the_system_and_the_button(visit: Callable[..., Any]) -> None:
    page = visit(asked("copy", "101"), color_scheme="dark")
    page.wait_for_selector(SETTLED)
    colour = "getComputedStyle(document.body).backgroundColor"
    dark, drawn = page.evaluate(colour), page.locator("#network").screenshot()
    page.click("#theme")
    assert page.evaluate(colour) != dark
    assert page.locator("#network").screenshot() != drawn, "what is painted on canvas changes too"
    page.reload()
    page.wait_for_selector(SETTLED)
    assert page.evaluate("document.documentElement.dataset.theme") == "light", "the choice is remembered"


def test_a_long_question_shows_progress_and_can_be_cancelled(
    visit: Callable[..., Any], running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    from looped.explorer.queries import WatchedLoop

    original = WatchedLoop.advance

    def slowly(self: WatchedLoop, seconds: float, most: int | None = None) -> object:
        time.sleep(0.02)
        return original(self, 0.0, 1)

    page = visit(asked("copy", "1"))
    page.wait_for_selector(SETTLED)
    monkeypatch.setattr(WatchedLoop, "advance", slowly)
    page.fill("#question", "01" * 100)
    page.click("#run")
    api.expect(page.locator("#progress-text")).to_contain_text(re.compile(r"step \d+ of 254"))
    page.keyboard.press("Escape")
    api.expect(page.locator("#message")).to_contain_text(re.compile(r"Cancelled after \d+ of 254 steps"))
    api.expect(page.locator("#progress")).to_be_hidden()
    monkeypatch.setattr(WatchedLoop, "advance", original)
    read_query(page, "110")
    assert answer(page) == ("110", "✓ right")


def test_the_token_leaves_the_address_and_a_stranger_is_told_what_to_open(
    visit: Callable[..., Any], browser: Any, running: Running
) -> None:
    page = visit(asked("copy", "10"))
    page.wait_for_selector(SETTLED)
    assert page.url.startswith(f"{running.url}#task=copy"), "what stood behind the # stays"
    assert page.evaluate("document.cookie") == "", "no script can read it"
    page.reload()
    page.wait_for_selector(SETTLED)
    stranger = browser.new_context()
    other = stranger.new_page()
    assert other.goto(running.url).status == 403
    assert "open the address that `looped explore` printed" in other.inner_text("body")
    stranger.close()
