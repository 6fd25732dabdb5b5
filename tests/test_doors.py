"""Other people's tasks, methods, stopping rules and recipes: from files, by `looped.register`, by entry points.

Blocks are in tests/training/test_own_block.py. The files are those of docs/your_own_task.md and your_own_method.md.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import looped
from looped import registry, runs, tasks
from looped.errors import InputError
from looped.evaluation import stopping
from looped.explorer.app import Explorer
from looped.explorer.queries import ModelRegistry, _given, read_query
from looped.fast.supports import supports
from looped.methods import Method
from looped.tasks import Task
from looped.training import recipes

ROOT = Path(__file__).parents[1]
SMALL = ("--recipe", "my_parts.py:tiny", "--seeds", "0", "--steps", "4", "--max-length", "4")


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the guides' files in it, as the current one."""
    for name in ("my_tasks.py", "my_parts.py", "my_blocks.py"):
        shutil.copy(ROOT / "docs" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process would not know."""
    for word, kind in registry.KINDS.items():
        monkeypatch.setitem(registry.KINDS, word, replace(kind, known={}, files={}, used=set()))


# --- the command line ----------------------------------------------------------------------------------------


def test_a_task_from_a_file_reaches_every_command(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, task = "my_tasks.py:DigitSum", ("--task", "my_tasks.py:DigitSum")
    assert cli("sample", own, "--length", "3", "--count", "1").code == 0
    done = cli("train", own, *SMALL, "--json")
    assert done.code == 0, done.err
    run = Path(json.loads(done.out)["folder"])
    assert run == Path("runs/digitsum-fop-loop-adaptive-tiny")
    config = runs.read_config(run)
    assert (config.task, config.recipe) == (own, "my_parts.py:tiny")
    for words in (
        ("train", own, *SMALL),
        ("evaluate", run, *task, "--lengths", "3", "--samples", "8"),
        ("discover", run, *task, "--lengths", "3", "--samples", "8", "--stop", "my_parts.py:Sure"),
        ("bench", "ladder", run, *task, "--lengths", "3", "--samples", "8", "--step-samples", "0"),
        ("solve", own, "210", "--model", run, "--stop", "my_parts.py:Sure=2"),
        ("cost", own),
        ("status", "runs"),
    ):
        done = cli(*words)
        assert done.code == 0, (words, done.err)
    forget(monkeypatch)
    (folder / "my_tasks.py").unlink()
    assert cli("status", "runs").code == 0  # which needs no code
    for words in (("evaluate", run), ("solve", "copy", "101", "--model", run), ("explore", "--model", run)):
        refused = cli(*words)
        assert refused.code == 2
        assert "needs the task DigitSum of my_tasks.py: pass --task (or TASK) FILE.py:DigitSum" in refused.err


def test_a_command_runs_no_file_that_only_a_run_names(
    cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("train", "my_tasks.py:DigitSum", *SMALL, "--out", "run").code == 0
    forget(monkeypatch)
    (folder / "my_tasks.py").write_text("open('was-run', 'w')\n")
    for run in ("run", "run/seed-0.safetensors"):
        assert cli("evaluate", run).code == 2
    assert cli("status", ".").code == 0
    assert not (folder / "was-run").exists()


def test_a_file_may_be_renamed(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("train", "my_tasks.py:DigitSum", *SMALL, "--out", "run").code == 0
    forget(monkeypatch)
    (folder / "my_tasks.py").rename("other.py")
    done = cli("solve", "other.py:DigitSum", "210", "--model", "run", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["task"] == "digit_sum"


def test_a_part_that_no_run_needs_is_refused(cli, folder: Path) -> None:
    task, block = ("--task", "my_tasks.py:DigitSum"), ("--block", "my_blocks.py:SwiGLU")
    for words in (
        ("evaluate", "copy-long", *task),
        ("solve", "copy", "101", *block),
        ("explore", "--no-open", *task),
    ):
        refused = cli(*words)
        assert refused.code == 2
        assert "no run here was trained with the " in refused.err


def test_two_files_of_one_name_are_not_mixed_up(cli, folder: Path) -> None:
    (folder / "other").mkdir()
    shutil.copy("my_tasks.py", "other")
    runs = [{"task": "my_tasks.py:DigitSum"}, {"task": "other/my_tasks.py:DigitSum"}]
    (folder / "sweep.json").write_text(json.dumps(runs))
    refused = cli("sweep", "sweep.json", "--dry-run")
    assert refused.code == 2
    assert "would both be known as my_tasks.py:DigitSum: rename one of the files" in refused.err


def test_a_method_and_a_rule_from_a_file(cli, folder: Path) -> None:
    method = ("--method", "my_parts.py:eight")
    assert cli("train", "parity", *method, *SMALL, "--out", "run").code == 0
    assert runs.read_config(Path("run")).method == "my_parts.py:eight"
    found = cli("evaluate", "run", *method, "--lengths", "4", "--samples", "8", "--json")
    (row,) = json.loads(found.out)["rows"]
    assert (row["method"], row["mean_steps"]) == ("fop-loop-8", 8.0)
    asked = cli("solve", "parity", "101", "--model", "run", *method, "--json")
    assert json.loads(asked.out)["steps"] == 8
    rules = ("--stop", "oracle", "my_parts.py:Sure", "my_parts.py:Sure=3")
    found = cli("evaluate", "copy-long", *rules, "--lengths", "5", "--samples", "8", "--json")
    assert [row["stop"] for row in json.loads(found.out)["rows"]] == ["oracle", "sure", "sure=3"]
    asked = cli("solve", "copy", "1011", "--model", "compiled", "--stop", "my_parts.py:Sure=2", "--json")
    assert (json.loads(asked.out)["stop"], json.loads(asked.out)["steps"]) == ("sure=2", 6)


@pytest.mark.slow
def test_a_sweep_runs_the_files_that_it_names(cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = {
        "tasks": ["my_tasks.py:DigitSum"],
        "methods": ["fop-loop-adaptive", "my_parts.py:eight"],
        "recipes": ["my_parts.py:tiny"],
        "seeds": [0],
        "set": {"steps": 3, "max_length": 3},
        "grid": {"block": ["", "my_blocks.py:SwiGLU"]},
        "measure": {"lengths": "3", "samples": 8, "stops": ["oracle", "my_parts.py:Sure"]},
    }
    (folder / "sweep.json").write_text(json.dumps(sweep))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = cli("sweep", "sweep.json", "--workers", "2", "--device", "cpu", "--json")
    assert done.code == 0, done.err + "".join(file.read_text() for file in folder.rglob("*.log"))
    found = [json.loads(file.read_text())["rows"] for file in folder.glob("runs/sweep/results/*.json")]
    assert sorted(len(rows) for rows in found) == [1, 1, 2, 2]  # a fixed depth has no step to choose
    # measured again from the weights, by the same command
    for file in folder.glob("runs/sweep/results/*.json"):
        file.unlink()
    forget(monkeypatch)
    assert cli("status", "runs/sweep").code == 0
    assert cli("sweep", "sweep.json", "--workers", "2", "--device", "cpu").code == 0


def test_the_explorer_shows_a_task_and_a_rule_of_the_users(cli, folder: Path) -> None:
    assert cli("train", "my_tasks.py:DigitSum", *SMALL, "--out", "run").code == 0
    sure = registry.resolve("stopping rule", "my_parts.py:Sure")
    model = _given(Path("run"))
    explorer = Explorer(ModelRegistry([model]), stops=[sure])
    names = [task["name"] for task in explorer.catalogue["tasks"]]  # type: ignore[attr-defined]
    assert "digit_sum" in names
    watch = explorer._watch(read_query(model, "2101"))
    while not watch.over:
        watch.advance(10.0)
    assert [rule["name"] for rule in watch.rules()][-1] == "sure"


# --- what is wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("train", "nowhere.py:Name"), "there is no file nowhere.py: a task of your own is named FILE.py:Name"),
        (("train", "my_tasks.py"), "my_tasks.py is a file: name the task in it, as my_tasks.py:Name"),
        (("train", "my_tasks.py:Digitsum"), "my_tasks.py has no 'Digitsum'; it has DigitSum, DrawnDigitSum (did"),
        (("train", "my_parts.py:eight"), "eight of my_parts.py is no task: one is a subclass of looped.tasks.Task"),
        (("train", "copy", "--method", "my_parts.py:tiny"), "is no method: one is an object of looped.methods"),
        (("train", "copy", "--recipe", "my_parts.py:Sure"), "is no recipe: one is a function of task, method"),
        (("train", "coppy"), "unknown task 'coppy'; the tasks are parity, copy"),
        (("train", "coppy"), "(did you mean copy?)"),
        (("train", "bad.py:Unsolved"), "the task Unsolved of bad.py lacks solve"),
        (("train", "bad.py:Blank"), "the task Blank of bad.py could not be made: it has no symbols"),
        (("train", "bad.py:Copy"), "the task Copy of bad.py calls itself copy, as one of ours"),
        (("train", "bad.py:Needy"), "the task Needy of bad.py could not be made: "),
        (("train", "bad.py:Long", "--steps", "1"), "an answer of 4 tokens, but"),
        (("train", "copy", "--recipe", "bad.py:nothing"), "must return a TrainConfig, not NoneType"),
        (("solve", "copy", "1", "--stop", "bad.py:Oracle"), "calls itself oracle, as one of ours"),
        (("solve", "copy", "1", "--stop", "my_parts.py:Sure=x"), "is no parameter for a stopping rule"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence(cli, folder: Path, words: tuple[str, ...], complaint: str) -> None:
    (folder / "bad.py").write_text(
        "from looped.tasks import Task\nfrom looped.evaluation import stopping\n"
        "class Unsolved(Task):\n    symbols = '01'\n"
        "class Copy(Task):\n    symbols = '01'\n    def solve(self, question): return question\n"
        "class Blank(Task):\n    def solve(self, question): return question\n"
        "class Needy(Copy):\n    name = 'needy'\n    def __init__(self, what): pass\n"
        "class Long(Task):\n    symbols = '01'\n    def solve(self, question): return '0000'\n"
        "class Oracle(stopping.OnlineRule):\n    def stops(self, now): return now.step > 1\n"
        "def nothing(task, method, seeds): pass\n"
    )
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err.replace("\n", " ")
    assert done.err.count("\n") == 1 or "in runs" in done.err  # a training that has begun says so first


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("sample", "faulty.py:Raises"), "faulty.py, line 9, in solve: IndexError: "),
        (("sample", "faulty.py:Number"), ": solve must return the answer's tokens, not 7"),
        (("train", "copy", "--recipe", "faulty.py:fails"), "faulty.py, line 26, in fails: KeyError: 'x'"),
        (("train", "copy", "--block", "faulty.py:Bare"), "the block Bare could not be made from a ModelConfig: "),
        (("train", "copy", "--block", "faulty.py:nothing"), "must be a torch.nn.Module or return one, not NoneType"),
        (("train", "copy", "--block", "faulty.py:First"), "must return a state of the shape it is given, "),
        (("solve", "copy", "1", "--stop", "faulty.py:Five"), "five: stops must return a boolean tensor, not int"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_of_the_users_own_names_its_place(
    cli, folder: Path, words: tuple[str, ...], complaint: str
) -> None:
    (folder / "faulty.py").write_text(
        "from torch import nn\n"
        "from looped.evaluation.stopping import OnlineRule\n"
        "from looped.tasks import Task\n"
        "class Number(Task):\n    symbols = '01'\n    def solve(self, question): return 7\n"
        "class Raises(Task):\n    symbols = '01'\n    def solve(self, question): return question[99]\n"
        "class Bare(nn.Module):\n    def __init__(self): super().__init__()\n"
        "class First(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(config.width, config.width)\n"
        "    def forward(self, h):\n"
        "        return self.linear(h)[:, :1]\n"
        "class Five(OnlineRule):\n"
        "    def stops(self, now):\n"
        "        return 5\n"
        "\n"
        "def nothing(config):\n"
        "    return None\n"
        "\n"
        "def fails(task, method, seeds):\n"
        "    raise KeyError('x')\n"
    )
    own = ("--recipe", "quick", "--seeds", "0") if "--block" in words else ()
    done = cli(*words, *own)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.err.splitlines()[-1]


# --- Python --------------------------------------------------------------------------------------------------


class Doubled(Task):
    """Every bit twice."""

    symbols = "01"

    def answer_size(self, length: int) -> int:
        return 2 * length

    def solve(self, question: list[str]) -> list[str]:
        return [bit for bit in question for _ in range(2)]


class Modulo(Task):
    """The number of ones modulo a number, which belongs to the object."""

    symbols = "0123"

    def __init__(self, number: int = 2) -> None:
        self.number = number

    def solve(self, question: list[str]) -> list[str]:
        return [str(question.count("1") % self.number)]


class Waits(stopping.OnlineRule):
    def stops(self, now: stopping.Present) -> torch.Tensor:
        return now.unchanged >= 1


def test_objects_everywhere(tmp_path: Path) -> None:
    eight = Method("eight", "fop", loops=8)

    def short(task: Task, method: Method, seeds: tuple[int, ...]) -> recipes.TrainConfig:
        return replace(recipes.quick(task, method, seeds), steps=3, max_length=3)

    run = looped.train(Doubled(), recipe=short, out=tmp_path / "run", device="cpu")
    assert runs.read_config(tmp_path / "run").task == "test_doors.py:Doubled"
    rows = looped.evaluate(run, lengths=[3], samples=8, stop=["oracle", Waits()])
    assert [row["stop"] for row in rows] == ["oracle", "waits"]
    assert {row["task"] for row in rows} == {"doubled"}
    model = looped.load(tmp_path / "run")
    assert model.solve("101", stop=Waits()).expected == "110011"
    assert next(iter(looped.data(Doubled, max_length=3, batch=4))).tokens.shape == (4, 10)
    run = looped.train("parity", method=eight, recipe=short, out=tmp_path / "eight", device="cpu")
    assert runs.read_config(tmp_path / "eight").method == "eight"
    assert looped.evaluate(run, lengths=[3], samples=8)[0]["mean_steps"] == 8


def test_register_tells_the_kinds_apart() -> None:
    def recipe(task: Task, method: Method, seeds: tuple[int, ...]) -> None: ...

    def block(config: object) -> None: ...

    eight = Method("eight", "fop", loops=8)
    for part, kind in (
        (Doubled(), "task"), (Doubled, "task"), (eight, "method"), (Waits(), "stopping rule"), (recipe, "recipe"),
        (block, "block"), (torch.nn.Linear, "block"),
    ):  # fmt: skip
        name = looped.register(part)
        assert registry.find(kind, name) is not None
    assert tasks.get("doubled") is tasks.get("test_doors.py:Doubled")
    assert looped.register(Doubled(), name="twice") == "twice"
    assert looped.register(tasks.get("copy")) == "copy"
    with pytest.raises(InputError, match="3 is none of block, task"):
        looped.register(3)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("copy", "copy"),
        ("my_tasks.py:DigitSum", "digitsum"),
        ("my.py:outer.<locals>.tiny", "tiny"),
        ("../a b", "..-a-b"),
    ],
)
def test_folders_get_names_that_folders_can_have(name: str, label: str) -> None:
    assert registry.label(name) == label


def test_two_objects_of_one_class_are_not_mixed_up() -> None:
    looped.register(Modulo(2))
    looped.register(Modulo(2))
    with pytest.raises(
        InputError, match=r"another task is known as test_doors\.py:Modulo: give this one a name"
    ):
        looped.register(Modulo(3))
    assert looped.register(Modulo(3), name="modulo-3") == "modulo-3"
    assert tasks.get("modulo-3").solve(list("111")) == ["0"]


# --- a task that says little ---------------------------------------------------------------------------------


def test_the_least_that_a_task_says() -> None:
    task = Doubled()
    assert (task.name, task.summary, task.example) == ("doubled", "Every bit twice.", "0101")
    assert (task.parse(" 1 0\n1"), task.format_answer(["1", "1"])) == (["1", "0", "1"], "11")
    assert task.row_size(4) == 4 + 8 + 1
    for text in ("", "12", "1" * 5000):
        with pytest.raises(InputError):
            task.parse(text)
    lengths = torch.tensor([1, 3, 5])
    drawn = [task.sample(lengths, torch.Generator().manual_seed(s), max_length=6) for s in (0, 0, 1)]
    assert (drawn[0].question.shape, drawn[0].answer.shape) == ((3, 6), (3, 12))
    assert torch.equal(drawn[0].question, drawn[1].question)
    assert not torch.equal(drawn[0].question, drawn[2].question)
    assert drawn[0].length.tolist() == lengths.tolist()


@pytest.mark.parametrize("recipe", list(recipes.RECIPES))
def test_every_recipe_trains_it(recipe: str, tmp_path: Path) -> None:
    run = looped.train(
        Doubled(), recipe=recipe, steps=2, max_length=2, batch=4, model={"width": 32, "heads": 4}, device="cpu",
        out=tmp_path / "run",
    )  # fmt: skip
    assert run.ending == "finished"
    assert looped.evaluate(run, lengths=[3], samples=4)


def test_the_sampler_of_the_guide_agrees_with_its_oracle(folder: Path) -> None:
    task = tasks.get(registry.resolve("task", "my_tasks.py:DrawnDigitSum"))
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 65, (64,), generator=generator)
    problems = task.sample(lengths, generator, max_length=64)
    rows = zip(problems.question.tolist(), lengths.tolist(), strict=True)
    expected = task.problems([task.vocab.decode(row[:n]) for row, n in rows], max_length=64)
    for field in vars(expected):
        assert torch.equal(getattr(problems, field), getattr(expected, field)), field


def test_the_guides_task_learns(folder: Path) -> None:
    given = {"max_length": 4, "steps": 400, "interval": 40, "lr": 6e-3}
    run = looped.train("my_tasks.py:DigitSum", recipe="quick", out="runs/sum", device="cpu", **given)  # type: ignore[arg-type]
    (row,) = looped.evaluate(run, lengths=[4], samples=256)
    assert row["accuracy"] > 0.8  # chance is a third


@pytest.mark.slow
def test_the_guides_task_holds_past_its_training_length(folder: Path) -> None:
    """What the page shows, of one seed."""
    given = {"steps": 2000, "interval": 80}
    run = looped.train("my_tasks.py:DigitSum", recipe="quick", out="runs/sum", device="cpu", **given)  # type: ignore[arg-type]
    (row,) = looped.evaluate(run, lengths=[40], samples=256)
    assert row["accuracy"] > 0.95  # trained up to 10


def test_the_fast_engine_says_what_it_cannot_draw(folder: Path) -> None:
    class Odd(Method):
        pass

    little, drawn = (
        recipes.asked(f"my_tasks.py:{name}", "fop-loop-adaptive", "quick")
        for name in ("DigitSum", "DrawnDigitSum")
    )
    assert supports(None, little) is None
    assert "draws its problems in Python" in str(supports(None, little, cuda=True))
    assert supports(None, drawn, cuda=True) is None
    odd = recipes.make("copy", registry.register(Odd("odd", "fop", adaptive=True)), "quick", (0,))
    assert "knows methods as data, not Odd" in str(supports(None, odd))


# --- entry points --------------------------------------------------------------------------------------------


def test_an_installed_package_offers_its_parts(cli, folder: Path) -> None:
    """A distribution in a folder on the path, as pip would leave it."""
    site = folder / "site"
    (site / "sums-1.0.dist-info").mkdir(parents=True)
    for name in ("my_tasks.py", "my_parts.py", "my_blocks.py"):
        (folder / name).rename(site / name)
    (site / "sums-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sums\nVersion: 1.0\n")
    (site / "sums-1.0.dist-info" / "entry_points.txt").write_text(
        "[looped.tasks]\ndigits = my_tasks:DigitSum\nbroken = my_tasks:Nothing\n"
        "[looped.methods]\neight = my_parts:eight\n"
        "[looped.stopping]\nsure = my_parts:Sure\n[looped.recipes]\ntiny = my_parts:tiny\n"
        "[looped.blocks]\nswiglu = my_blocks:SwiGLU\n"
    )
    script = """
import json
from looped.cli import main
small = ("--recipe", "tiny", "--seeds", "0", "--steps", "2", "--max-length", "3", "--block", "swiglu")
assert main(["train", "digits", *small, "--out", "run"]) == 0
config = json.load(open("run/config.json"))["config"]
assert [config[key] for key in ("task", "recipe", "block")] == ["digits", "tiny", "swiglu"], config
assert main(["train", "copy", "--method", "eight", *small, "--out", "other"]) == 0
assert main(["evaluate", "run", "--lengths", "3", "--samples", "4", "--stop", "sure=2"]) == 0
assert main(["train", "broken"]) == 2
assert main(["tasks"]) == 0
"""
    path = os.pathsep.join([str(ROOT), str(site)])
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "the task broken (my_tasks:Nothing) could not be loaded: AttributeError" in done.stderr
    assert "digits" in done.stdout
    # where the package is not installed, its runs are shown all the same
    assert cli("status", ".").code == 0
    refused = cli("evaluate", "run")
    assert (refused.code, "the block 'swiglu' is not known here: pass --block" in refused.err) == (2, True)
