"""What the page explains: its words, its cells, its tour; by mouse, by keyboard, by touch, on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from running_server import PHONE, SETTLED, asked

from looped.evaluation import stopping

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
Visit = Callable[..., Any]

# Pixels of the colour of a wrong cell, which alone is warm: more red than blue.
ORANGE = """(id) => {
  const { width, height } = document.getElementById(id);
  const pen = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  pen.drawImage(document.getElementById(id), 0, 0);
  const { data } = pen.getImageData(0, 0, width, height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) found += data[i] > 100 && data[i] - data[i + 2] > 25;
  return found;
}"""


def orange(page: Any, canvas: str) -> int:
    return int(page.evaluate(ORANGE, canvas))


# --- cells -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_right_program_never_looks_wrong(visit: Visit, scheme: str) -> None:
    page = visit(asked("addition", "1011+0110"), color_scheme=scheme)
    page.wait_for_selector(SETTLED)
    api.expect(page.locator("#program-note")).to_contain_text("done after 5 steps")
    assert (orange(page, "network"), orange(page, "program")) == (0, 0)
    page.fill("#step", "2")
    api.expect(page.locator("#now")).to_contain_text("not yet")
    assert (orange(page, "network"), orange(page, "program")) == (0, 0)


def test_a_wrong_answer_looks_wrong_from_the_step_at_which_the_loop_stops(visit: Visit) -> None:
    page = visit("task=copy&model=my-copy:seed-0&q=0110")
    page.wait_for_selector(SETTLED)
    assert "wrong: it is 0110" in page.inner_text("#badge")
    assert "wrong" in page.inner_text("#now")
    assert orange(page, "network") > 0
    page.fill("#step", "3")
    api.expect(page.locator("#now")).to_contain_text("not yet")


CELLS = """async () => {
  const { answerCell } = await import("/static/cells.js"), { contrast, theme } = await import("/static/colours.js");
  let least = 21;
  const both = [true, false];
  for (const token of [0, 1]) for (const wanted of [0, 1]) for (const counts of both) for (const early of both)
    for (let share = 0; share <= 1; share += 0.02) {
      const { ink, fill } = answerCell({ token, names: ["0", "#"], share, wanted, counts, early });
      least = Math.min(least, contrast(ink, fill ?? theme().card));
    }
  return least;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_cell_can_be_read(visit: Visit, scheme: str) -> None:
    page = visit(asked("copy", "101"), color_scheme=scheme)
    page.wait_for_selector(SETTLED)
    assert page.evaluate(CELLS) >= 4.5


# --- words -------------------------------------------------------------------------------------------------------
def test_the_strip_says_what_is_asked_with_an_example(visit: Visit) -> None:
    page = visit(asked("multiplication", "11*101"))
    page.wait_for_selector(SETTLED)
    task = page.inner_text("#what-task")
    assert task.startswith("Multiplication: 1 or 2 binary digits times n digits")
    assert "11*110 → 01001 = 18, least significant first" in task
    assert "A question of length n gets T(n) = n1·n steps." in task
    assert page.inner_text("#meaning") == "= 15, least significant first"
    page.click("#what summary")
    assert not page.is_visible("#what-task")
    # The browser reports that it was closed a moment later; a page reloaded before that would not remember it.
    page.wait_for_function("localStorage.getItem('looped-what') === 'closed'")
    page.reload()
    page.wait_for_selector(SETTLED)
    assert not page.is_visible("#what-task"), "it stays closed"


def test_the_answer_says_who_answered_and_which_rule_stopped_the_loop(visit: Visit) -> None:
    page = visit(asked("addition", "1011+0110"))
    page.wait_for_selector(SETTLED)
    assert page.inner_text("#about").startswith(
        "addition, the program compiled answered after 5 steps by the rule halt, due at step 5"
    )
    page.click("#about button")
    api.expect(page.locator("#explain")).to_contain_text("The network itself says that it is done")


@pytest.mark.slow
def test_every_word_that_is_underlined_explains_itself(visit: Visit) -> None:
    page = visit("task=copy&model=my-copy:seed-0&q=0110")
    page.wait_for_selector(SETTLED)
    words = page.locator("button.term:visible, button.why:visible")
    assert words.count() > 35
    assert page.locator("button.term:disabled, button.why:disabled").count() == 0
    seen = set()
    for i in range(words.count()):
        words.nth(i).click()
        api.expect(page.locator("#explain")).to_be_visible()
        seen.add(page.inner_text("#explain h3"))
        assert len(page.inner_text("#explain p").split()) > 8
        words.nth(i).click()
        api.expect(page.locator("#explain")).to_be_hidden()
    assert {"Task", "Not yet", "Entropy", "Head", "oracle", "settled", "Stopping rule"} <= seen


def test_every_stopping_rule_is_explained(visit: Visit) -> None:
    page = visit(asked("copy", "101"))
    page.wait_for_selector(SETTLED)
    explained = 'async (name) => !(await import("/static/terms.js")).term(name).disabled'
    assert [name for name in stopping.RULES if not page.evaluate(explained, name)] == []
    assert page.evaluate(explained, "threshold=0.1"), "whatever its parameter"
    assert not page.evaluate(explained, "my-own-rule")


def test_an_explanation_opens_by_key_by_pointing_and_by_touch(visit: Visit) -> None:
    page = visit(asked("copy", "1011"))
    page.wait_for_selector(SETTLED)
    word, note = page.locator("#legend .early button"), page.locator("#explain")
    word.focus()
    page.keyboard.press("Enter")
    api.expect(note).to_contain_text("That is no mistake")
    assert word.get_attribute("aria-expanded") == "true"
    assert word.get_attribute("aria-describedby") == "explain"
    page.keyboard.press("Escape")
    api.expect(note).to_be_hidden()
    assert page.evaluate("document.activeElement.textContent") == "not yet", "the focus stays"
    word.hover()
    api.expect(note).to_contain_text("That is no mistake")
    note.hover()  # it stays while the pointer is on it
    page.wait_for_timeout(500)
    api.expect(note).to_be_visible()
    page.mouse.move(2, 2)
    api.expect(note).to_be_hidden()
    phone = visit(asked("copy", "1011"), viewport=PHONE, is_mobile=True, has_touch=True)
    phone.wait_for_selector(SETTLED)
    phone.tap("#legend .early button")
    box = phone.locator("#explain").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    phone.tap("h1")
    api.expect(phone.locator("#explain")).to_be_hidden()


# --- steps -------------------------------------------------------------------------------------------------------
def test_buttons_go_a_step_and_the_speed_can_be_chosen(visit: Visit) -> None:
    page = visit(asked("copy", "1011", step=4))
    page.wait_for_selector(SETTLED)
    page.click("#back")
    assert page.inner_text("#step-shown") == "step 3 of 9"
    page.click("#on")
    page.click("#on")
    assert page.inner_text("#step-shown") == "step 5 of 9"
    page.fill("#step", "0")
    page.clock.install(time=0)
    page.clock.pause_at(1)
    page.select_option("#speed", "2")
    page.click("#play")
    page.clock.run_for(2 * 450 + 20)
    assert page.inner_text("#step-shown") == "step 4 of 9", "two steps in the time of one"


# --- the tour ----------------------------------------------------------------------------------------------------
TITLES = ["A loop at work", "The program beside it", "Past the training length", "When to stop"]


def test_the_tour_has_four_stops(visit: Visit) -> None:
    page = visit()
    page.wait_for_selector(SETTLED)
    page.click("#tour-start")
    for number, title in enumerate(TITLES, 1):
        api.expect(page.locator("#tour-title")).to_have_text(title)
        api.expect(page.locator("#tour-seen")).not_to_have_text("")
        page.wait_for_selector(SETTLED)
        api.expect(page.locator(".spot")).to_have_count(1)
        assert page.url.endswith(f"#tour={number}")
        page.click("#tour-next")
    api.expect(page.locator("#tour")).to_be_hidden()
    api.expect(page.locator(".spot")).to_have_count(0)
    page.wait_for_url("**#task=addition**")


def test_a_stop_of_the_tour_has_an_address(visit: Visit) -> None:
    page = visit("tour=2")
    api.expect(page.locator("#tour-title")).to_have_text(TITLES[1])
    api.expect(page.locator("#tour-seen")).to_contain_text("the program is done after step 9")
    assert page.input_value("#model") == "copy-compiled", "the best of its models that is here"
    page.wait_for_selector(SETTLED)
    assert page.url.endswith("#tour=2")
    page.fill("#question", "11")
    page.click("#run")
    page.wait_for_url("**q=11**")
    api.expect(page.locator("#tour")).to_be_visible()
    page.click("#tour-next")
    api.expect(page.locator("#tour-title")).to_have_text(TITLES[2])
    page.go_back()
    api.expect(page.locator("#asked")).to_have_text("11")
    away = visit("tour=9")
    away.wait_for_selector(SETTLED)
    assert not away.is_visible("#tour"), "no such stop"


def test_the_tour_is_walked_by_keys(visit: Visit) -> None:
    page = visit("tour=1")
    api.expect(page.locator("#tour")).to_be_focused()
    page.keyboard.press("ArrowLeft")  # there is nothing before the first
    page.keyboard.press("ArrowRight")
    api.expect(page.locator("#tour-title")).to_have_text(TITLES[1])
    page.keyboard.press("ArrowRight")
    api.expect(page.locator("#tour-title")).to_have_text(TITLES[2])
    page.keyboard.press("ArrowLeft")
    api.expect(page.locator("#tour-title")).to_have_text(TITLES[1])
    api.expect(page.locator("#tour-seen")).not_to_have_text("")
    page.keyboard.press("Escape")
    api.expect(page.locator("#tour")).to_be_hidden()
    api.expect(page.locator("#tour-start")).to_be_focused()


@pytest.mark.slow
def test_the_tour_plays_unless_less_motion_is_wanted(visit: Visit) -> None:
    page = visit("tour=1")
    api.expect(page.locator("#play")).to_have_text("Pause")
    api.expect(page.locator("#play")).to_have_text("Play")
    assert page.inner_text("#step-shown").startswith("step 7 of"), (
        "it plays to the step at which the loop stops"
    )
    still = visit("tour=1", reduced_motion="reduce")
    api.expect(still.locator("#tour-seen")).not_to_have_text("")
    assert still.inner_text("#play") == "Play"
    assert still.inner_text("#step-shown").startswith("step 7 of")


# --- a phone -----------------------------------------------------------------------------------------------------
def test_a_long_addition_can_be_read_on_a_phone(visit: Visit) -> None:
    question = "1011001110001011010011100101+0110100101110010101101001011"
    page = visit(asked("addition", question, step=40), viewport=PHONE, is_mobile=True, has_touch=True)
    page.wait_for_selector(SETTLED)
    api.expect(page.locator("#program-note")).to_contain_text("done after")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], (
        "the page stays in its frame"
    )
    frame = page.locator("#network-scroll")
    columns, left = 3 * (28 + 2), 34
    width = page.locator("#network").evaluate("canvas => canvas.clientWidth")
    cell = frame.evaluate("box => box.scrollLeft") / (2 * 28 + 1)
    assert cell >= 14, "the grid begins at the answer, its cells are large enough for letters"
    assert width >= left + columns * cell
    sideways = [
        page.locator(f"#{name}-scroll").evaluate("box => box.scrollLeft") for name in ("network", "program")
    ]
    assert sideways[0] == sideways[1]
    shown = frame.evaluate("box => [box.scrollTop, box.scrollTop + box.clientHeight]")
    assert 0 < shown[0] <= 17 * 40 < shown[1], "the step asked for is in sight"
    page.tap("#zoom")
    api.expect(page.locator("#zoom")).to_have_text("Larger cells")
    assert page.locator("#network").evaluate("canvas => canvas.clientWidth") < width / 2


def test_a_tap_on_a_cell_tells_its_probabilities(visit: Visit) -> None:
    page = visit(asked("copy", "1011"), viewport=PHONE, is_mobile=True, has_touch=True)
    page.wait_for_selector(SETTLED)
    page.locator("#network").scroll_into_view_if_needed()
    page.locator("#network").tap(position={"x": 120, "y": 60})
    api.expect(page.locator("#tip")).to_contain_text("position")
    assert re.search(r"\d %", page.inner_text("#tip"))
    page.tap("#network-note")
    api.expect(page.locator("#tip")).to_be_hidden()


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_the_tour_fits_a_phone(visit: Visit, stop: int) -> None:
    page = visit(f"tour={stop}", viewport=PHONE, is_mobile=True, has_touch=True, reduced_motion="reduce")
    api.expect(page.locator("#tour-seen")).not_to_have_text("")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    box = page.locator("#tour").bounding_box()
    assert box["height"] < 0.56 * PHONE["height"]
    spot = page.locator(".spot").bounding_box()
    assert spot["y"] < box["y"] - 100, "what is meant is in sight above the words"
