"""The explorer as a static site, behind `python -m http.server` and in a real browser: it says what Python says."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from running_server import PATIENCE, PHONE, SETTLED

from looped import registry, tasks
from looped.cli import main
from looped.errors import InputError
from looped.explorer import export, queries
from looped.explorer.queries import Model, ModelRegistry, WatchedLoop, read_query
from looped.model.weights import Layout
from looped.runs import Run
from looped.training import recipes

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")

# A run's messages, without what is compared elsewhere: the page's own back end, asked as the page asks it.
ASK = """async ([model, question, stretch]) => {
  const api = await import("./static/api.js"), told = { seen: [] };
  await api.catalogue();
  await api.run({ model, question, stretch }, (message) => {
    if (message.kind === "step") told.seen.push({ ...message, tokens: Array.from(message.tokens), shares: [] });
    else Object.assign(told, message);
  });
  return told;
}"""
STRANGER = "http://127.0.0.1:9/"  # a test of the policy asks it, and nothing may reach it
LOOK = """async (wanted) => {
  const api = await import("./static/api.js");
  await api.catalogue();
  const found = await api.attention(wanted);
  return Array.from(found.shares);
}"""


class Site:
    """A folder behind `python -m http.server`."""

    def __init__(self, folder: Path, registry: ModelRegistry) -> None:
        self.folder, self.registry = folder, registry
        self.told: dict[str, Any] = {}  # what the command printed
        words = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(folder)]
        self.server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.server.stdout is not None
        self.url = f"http://127.0.0.1:{self.server.stdout.readline().split(' port ')[1].split()[0]}/"

    def close(self) -> None:
        self.server.terminate()
        self.server.wait(timeout=10)
        assert self.server.stdout is not None
        self.server.stdout.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, told = tmp_path_factory.mktemp("site") / "one", io.StringIO()
    with contextlib.redirect_stdout(told):
        assert main(["explore", "--export", str(folder), "addition-long", "--json"]) == 0
    made = Site(folder, export.chosen_models(["addition-long"]))
    made.told = json.loads(told.getvalue())
    yield made
    made.close()


@pytest.fixture
def open_site(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a site. At the end: no console error, and not one request to any other origin."""
    contexts, trouble, asked = [], [], []

    def open_page(site: Site, state: str = "", **window: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **window})
        contexts.append((context, site))
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        api.expect.set_options(timeout=PATIENCE)
        page.on(
            "console", lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: asked.append((site.url, request.url)))
        page.goto(f"{site.url}#{state}")
        page.wait_for_selector(SETTLED)
        return page

    yield open_page
    for context, _ in contexts:
        context.close()
    assert [text for text in trouble if f"'{STRANGER}'" not in text] == []
    assert asked
    assert [url for home, url in asked if not url.startswith((home, STRANGER))] == []


def told_by_python(model: Model, question: str, stretch: float) -> WatchedLoop:
    watch = WatchedLoop(read_query(model, question, stretch))
    watch.seen = []  # type: ignore[attr-defined]
    while not watch.over:
        watch.seen += watch.advance(10.0)  # type: ignore[attr-defined]
    return watch


def compare(page: Any, model: Model, question: str, stretch: float = 1.25) -> None:
    """Row, answers, steps and every stopping rule: the page's are Python's."""
    watch = told_by_python(model, question, stretch)
    told = page.evaluate(ASK, [model.key, question, stretch])
    asked = watch.asked
    assert (told["question"], told["needed"], len(told["seen"])) == (asked.text, asked.needed, asked.steps)
    assert told["row"] == watch.batch.tokens[0].tolist()
    assert told["target"] == watch.batch.targets[0].tolist()
    assert (told["from"], told["expected"]) == (watch.start, watch.expected)
    ours: list[Any] = watch.seen  # type: ignore[attr-defined]
    for name in ("answer", "meaning", "correct", "rewritten"):
        assert [step[name] for step in told["seen"]] == [getattr(step, name) for step in ours], name
    for name in ("confidence", "entropy", "change"):
        found = [step[name] for step in told["seen"]]
        assert found == pytest.approx([getattr(step, name) for step in ours], abs=2e-3, rel=2e-3), name
    assert told["rules"] == list(watch.rules())


def drawn(model: Model, length: int, seed: int) -> str:
    task = model.solver.task
    made = task.sample(torch.tensor([length]), torch.Generator().manual_seed(seed), max_length=length)
    ids = made.question[0, : int(made.question_length[0])].tolist()
    return task.format_question(task.vocab.decode(ids))


@pytest.mark.parametrize("length", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_the_site_says_what_python_says(site: Site, open_site: Callable[..., Any], length: int) -> None:
    page, model = open_site(site), site.registry["addition-long"]
    for seed in range(3):
        compare(page, model, drawn(model, length, seed))


@pytest.mark.slow
def test_all_six_tasks_say_what_python_says(open_site: Callable[..., Any], tmp_path: Path) -> None:
    chosen = export.chosen_models()
    export.write(tmp_path / "all", chosen)
    site = Site(tmp_path / "all", chosen)
    try:
        page = open_site(site)
        assert sorted(model.solver.task.name for model in site.registry.values()) == sorted(tasks.TASKS)
        for model in site.registry.values():
            for length in (10, 40):
                for seed in range(2):
                    compare(page, model, drawn(model, length, seed))
    finally:
        site.close()


@pytest.fixture(scope="module")
def odd_models(tmp_path_factory: pytest.TempPathFactory) -> ModelRegistry:
    """Untrained models of the other kinds: halting heads, position schemes, no injection, pauses; and a program."""
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        "act": ("fop-loop-adaptive", {"halting": "act", "halt_bias": -1.0, "positions": "rotary"}),
        "ponder": ("fop-loop-adaptive-wo", {"halting": "ponder", "positions": "alibi", "bands": (9, 2)}),
        "fixed": ("fop-loop-fixed", {"positions": "learned", "max_positions": 64, "sharpen": True}),
        "spread": ("fop-pause", {"positions": "randomised", "max_positions": 64}),
    }
    folder, found = tmp_path_factory.mktemp("odd"), []
    for name, (method, change) in changes.items():
        config = recipes.make("copy", method, "quick", (0,))
        config = replace(config, model=replace(config.model, width=32, heads=4, layers=2, **change))
        with Run(folder / name, config) as run:
            flat = 0.2 * torch.randn(Layout(config.model).size, generator=torch.Generator().manual_seed(1))
            run.save_seed(0, flat, 10)
        found.append(queries.named_model(str(folder / name)))
    return ModelRegistry([*found, queries.named_model("copy-compiled")])


@pytest.mark.slow
def test_every_halting_head_and_position_scheme(
    open_site: Callable[..., Any], odd_models: ModelRegistry, tmp_path: Path
) -> None:
    export.write(tmp_path / "odd", odd_models)
    site = Site(tmp_path / "odd", odd_models)
    try:
        page = open_site(site)
        for model in odd_models.values():
            compare(page, model, "1011001", 1.25 if model.solver.method.adaptive else 1.0)
            look(page, model, "1011001")
    finally:
        site.close()


def look(page: Any, model: Model, question: str) -> None:
    """The attention maps of every layer and head are the server's."""
    from looped.explorer.queries import attention_map

    watch, config = WatchedLoop(read_query(model, question, 1.0)), model.solver.model.config
    step = min(3, watch.asked.steps)
    if step > 1:
        watch.advance(10.0, step - 1)
    for layer in range(config.layers):
        for head in range(config.heads):
            wanted = {"model": model.key, "question": question, "step": step, "layer": layer, "head": head}
            ours = (attention_map(watch.asked, watch.state, layer, head) * 255).flatten().tolist()
            assert page.evaluate(LOOK, wanted) == pytest.approx(ours, abs=1.01), (layer, head)


@pytest.mark.slow
def test_the_page_answers_and_looks_as_the_served_one(site: Site, open_site: Callable[..., Any]) -> None:
    page = open_site(site, "task=addition&model=addition-long&q=1011%2B0110&step=4")
    assert page.inner_text("#answer") == "10001"
    assert page.inner_text("#badge") == "✓ right"
    assert page.inner_text("#step-shown").startswith("step 4 of ")
    api.expect(page.locator("#attention-note")).to_contain_text("step 4: a row looks")
    assert page.evaluate("document.getElementById('attention').width") > 100
    api.expect(page.locator("#measures svg")).to_have_count(3)
    assert not page.is_visible("#program"), "no program runs here, and the page says so"
    assert "computes in your browser" in page.inner_text("#what")
    assert "nothing is sent anywhere" in page.inner_text("#version")
    page.fill("#question", "10+1+1")
    page.click("#run")
    api.expect(page.locator("#message")).to_contain_text("stands between two numbers, not 2")
    page.select_option("#family", "carry")
    api.expect(page.locator("#badge")).to_have_text("✓ right")
    look(page, site.registry["addition-long"], "101+110")


@pytest.mark.slow
def test_the_tour_leaves_out_what_is_not_here(site: Site, open_site: Callable[..., Any]) -> None:
    page = open_site(site, "tour=1", viewport=PHONE)
    api.expect(page.locator("#tour-count")).to_have_text("Stop 1 of 3")
    api.expect(page.locator("#tour-seen")).to_contain_text("addition-long answers")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_page_may_ask_its_own_site_alone(site: Site, open_site: Callable[..., Any]) -> None:
    page = open_site(site)
    blocked = page.evaluate(
        """() => new Promise((done) => {
      addEventListener("securitypolicyviolation", (event) => done(event.effectiveDirective));
      new EventSource(STRANGER);
    })""".replace("STRANGER", repr(STRANGER))
    )
    assert blocked == "connect-src"
    policy = page.get_attribute("meta[http-equiv]", "content")
    assert "default-src 'self'" in policy
    assert "'unsafe-inline'" not in policy
    assert "'unsafe-eval'" not in policy


# --- tasks in the page ---------------------------------------------------------------------------------------

QUESTIONS = {
    "parity": ["1101", "1 0 1", "", "12", "a'b", "0" * 300],
    "copy": ["0110", "x"],
    "binary_sum": ["1011", "0000", "1" * 70, "é"],
    "addition": ["1011+0110", "101+11", "1+", "+1", "1+1+1", "1-1", "", "10", "1" * 70 + "+" + "0" * 70],
    "multiplication": ["11*110", "1x1", "101*1", "1×", "11X0111", "2*1", "11*" + "10" * 35],
    "unique_set": ["1 4 2 2 4 3", "1,4,,2", "50", "", "7 x", "01"],
}
READ = """async (asked) => {
  const { TASKS } = await import("./static/tasks.js"), { tasks } = await (await fetch("catalogue.json")).json();
  return asked.map(([name, example, names, text]) => {
    const own = TASKS[name];
    try {
      const { tokens, length, variant } = own.parse({ name, example, names }, text);
      const answer = own.solve(tokens), said = own.say(answer);
      return [tokens, length, variant, answer, own.print(tokens), said, own.meaning(said)];
    } catch (error) { return error.message; }
  });
}"""
DRAW = """async (wanted) => {
  const { TASKS, seeded } = await import("./static/tasks.js");
  return wanted.map(([name, family, length, seed]) => TASKS[name].draw(family, length, seeded(seed)));
}"""


def read_by_python(name: str, text: str) -> Any:
    task = tasks.get(name)
    try:
        tokens = task.parse(text)
    except InputError as error:
        return str(error)
    answer, (length, variant) = task.solve(tokens), task.measure(tokens)
    said = task.format_answer(answer)
    return [tokens, length, variant, answer, task.format_question(tokens), said, task.meaning(said)]


def test_the_page_reads_and_solves_questions_as_python_does(
    site: Site, open_site: Callable[..., Any]
) -> None:
    page = open_site(site)
    asked = [(name, text) for name, texts in QUESTIONS.items() for text in texts]
    known = {name: [task.example, list(task.vocab.names)] for name, task in tasks.TASKS.items()}
    told = page.evaluate(READ, [[name, *known[name], text] for name, text in asked])
    assert told == [read_by_python(name, text) for name, text in asked]


@pytest.mark.slow
def test_the_page_draws_every_input_distribution(site: Site, open_site: Callable[..., Any]) -> None:
    page = open_site(site)
    wanted = [
        [name, family, length, seed]
        for name, task in tasks.TASKS.items()
        for family in task.families
        for length in (1, 9)
        for seed in range(4)
    ]
    for (name, family, length, _), text in zip(wanted, page.evaluate(DRAW, wanted), strict=True):
        task = tasks.get(str(name))
        question = task.parse(text)
        assert task.measure(question)[0] == length, (name, family, text)
        symbols = set(question) & set("01") if name != "unique_set" else set(question)
        if family in ("zeros", "ones"):
            assert symbols == {"0" if family == "zeros" else "1"}, (name, family, text)
        if family in ("few", "distinct"):
            assert len(symbols) <= 3 if family == "few" else len(symbols) == length
        if family == "carry" and name == "addition":
            assert task.solve(question)[0] == "1", text


# --- the command ---------------------------------------------------------------------------------------------


def test_the_command_tells_what_it_wrote(site: Site) -> None:
    found = {str(path.relative_to(site.folder)): path for path in site.folder.rglob("*") if path.is_file()}
    assert site.told["files"] == {name: path.stat().st_size for name, path in found.items()}
    assert site.told["bytes"] == sum(site.told["files"].values())
    assert {"index.html", "catalogue.json", "static/vendor/ort.LICENSE.txt"} <= set(found)
    data = found["models/0-addition-long/step.onnx"].read_bytes()
    assert str(Path(export.__file__).parent).encode() not in data, "no path of this machine"


BLOCKS = """
import torch.nn.functional as F
from torch import nn


class Smooth(nn.Linear):
    def __init__(self, config):
        super().__init__(config.width, config.width)

    def forward(self, h):
        return h + F.pad(super().forward(h), (0, 0, 1, -1))


class Highest(Smooth):
    def forward(self, h):
        return super().forward(h).cummax(1).values
"""
SMALL = ("--recipe", "quick", "--steps", "2", "--max-length", "3", "--batch", "4", "--seeds", "0")


@pytest.mark.slow
def test_a_block_of_the_users_own(
    cli: Callable[..., Any],
    open_site: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry.KINDS, "block", replace(registry.KINDS["block"], known={}, files={}))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(BLOCKS)
    for name in ("Smooth", "Highest"):
        assert cli("train", "copy", *SMALL, "--block", f"mine.py:{name}", "--out", name).code == 0
    done = cli("explore", "--export", "bad", "Highest", "--block", "mine.py:Highest")
    assert (done.code, done.out, (tmp_path / "bad").exists()) == (2, "", False)
    assert re.fullmatch(r"looped: Highest, seed-0 cannot be written as ONNX: .+\n", done.err)
    done = cli("explore", "--export", "good", "Smooth", "--block", "mine.py:Smooth")
    assert done.code == 0, done.err
    assert "good holds a site of 1 model, " in done.out
    site = Site(tmp_path / "good", export.chosen_models(["Smooth"]))
    try:
        page, model = open_site(site), site.registry["Smooth:seed-0"]
        compare(page, model, "1011")
        api.expect(page.locator("#attention-note")).to_contain_text("has no attention maps to show")
    finally:
        site.close()


def test_a_task_of_the_users_own_is_refused(cli: Callable[..., Any], tmp_path: Path) -> None:
    class Turned(tasks.Task):
        symbols = "01"

        def solve(self, question: list[str]) -> list[str]:
            return question[::-1]

    model = queries.named_model("copy-long")
    own = replace(model, solver=replace(model.solver, task=Turned()))
    with pytest.raises(InputError, match="not of turned: serve that model"):
        export.write(tmp_path / "site", ModelRegistry([own]))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--export", ".", "parity-long"], "is there already: give a folder that is new or empty"),
        (["--export", "new", "nothing-long"], "there is no model"),
        (["--export", "new", "nowhere/run"], "there is no model nowhere/run"),
        (["parity-long"], "parity-long needs --export DIR"),
        (["--export", "new", "--port", "1"], "--port is for serving"),
    ],
)
def test_a_bad_export_is_refused_in_a_sentence(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("kept")
    done = cli("explore", *words)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
