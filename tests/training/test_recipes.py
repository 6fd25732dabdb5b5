"""The recipe `paper` is the paper's table, written out a second time; bad settings are refused in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from looped.errors import InputError
from looped.evaluation.measure import Subject, length_grid, measure
from looped.fast.engine import Engine
from looped.methods import METHODS
from looped.training.recipes import RECIPES, make

# task: longest length, layers and heads of the block, interval, decay of the weight average, tokens
PAPER = {
    "parity": (20, 1, 64, 500, 0.9999),
    "copy": (19, 2, 8, 1000, 0.0),
    "addition": (19, 3, 8, 1600, 0.0),
    "binary_sum": (19, 2, 16, 500, 0.9999),
    "multiplication": (11, 4, 8, 500, 0.0),
    "unique_set": (19, 3, 8, 1000, 0.0),
}
# method: blocks deep, loops (T: each problem's own), pause tokens, input injection where it loops
DEPTH = {
    "fop-loop-adaptive": (1, "T", 0, True),
    "fop-loop-adaptive-wo": (1, "T", 0, False),
    "fop-loop-fixed": (1, "largest T", 0, True),
    "fop": (20, 1, 0, None),
    "fop-pause": (20, 1, 20, None),
    "ntp": (20, 1, 0, None),
    "ntp-pause": (20, 1, 20, None),
    "ntp-loop": (1, 20, 0, None),
}


@pytest.mark.parametrize("task", PAPER)
@pytest.mark.parametrize("method", DEPTH)
def test_the_papers_settings(task: str, method: str) -> None:
    config = make(task, method, "paper", (0, 1, 2, 3, 4))
    longest, layers, heads, interval, ema = PAPER[task]
    blocks, loops, pause, injection = DEPTH[method]
    row = METHODS[method]
    assert (config.task, config.method, config.recipe) == (task, method, "paper")
    assert (config.max_length, config.interval, config.ema) == (longest, interval, ema)
    assert (config.lr, config.batch, config.steps) == ((1e-4,), 64, 100_000)
    assert (config.betas, config.weight_decay, config.clip) == ((0.9, 0.999), 0.01, 1.0)
    assert (config.warmup, config.start_length, config.lengths, config.backprop) == (0, 1, "iid", 0)
    assert config.curriculum_end == (longest + 1) * interval  # theirs starts one interval later
    model = config.model
    assert (model.layers, model.heads, model.width) == (layers * blocks, heads, 256)
    assert (model.positions, model.bands, model.expansion) == ("none", (), 4)
    assert ("T" if row.adaptive else "largest T" if row.loops is None else row.loops) == loops
    assert row.pause == pause
    assert row.prediction == method[:3]
    if injection is not None:
        assert model.injection == injection


def test_every_method_of_the_table_is_there() -> None:
    assert set(DEPTH) == set(METHODS)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("task", PAPER)
def test_every_recipe_fits_every_task(recipe: str, task: str) -> None:
    config = make(task, "fop-loop-adaptive", recipe, (3,))
    assert (config.recipe, config.seeds) == (recipe, (3,))
    assert config.curriculum_end < config.steps, "the longest length is trained on, and then the rate falls"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("sorting", "fop", "paper"), "unknown task 'sorting'"),
        (("copy", "rnn", "paper"), "unknown method 'rnn'"),
        (("copy", "fop", "slow"), "unknown recipe 'slow'; the recipes are paper, fast, quick, long"),
    ],
)
def test_unknown_names(words: tuple[str, str, str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make(*words, (0,))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seeds": ()}, "seeds must be distinct"),
        ({"seeds": (1, 1)}, "seeds must be distinct"),
        ({"seeds": (-1,)}, "seeds must be distinct"),
        ({"seeds": (2**32,)}, "seeds must be distinct"),
        ({"lr": (1e-3, 1e-4, 1e-5)}, "one learning rate or one for each of the 2 seeds"),
        ({"lr": (0.0,)}, "lr and clip must be positive"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"max_length": 5000}, "length must be between 1 and 4096"),
        ({"ema": 1.0}, "decay must be in"),
        ({"betas": (0.9, 1.0)}, "betas must be in"),
        ({"task": "unique_set"}, "tokens"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, object], complaint: str, tiny) -> None:
    with pytest.raises(InputError, match=complaint):
        replace(tiny(), **changes)


def test_long_learns_to_say_when_it_is_done() -> None:
    config = replace(make("copy", "fop-loop-adaptive", "long", (0,)), max_length=3, steps=240, interval=40)
    engine = Engine(config)
    for _ in range(config.steps):
        engine.step()
    weights = engine.model.prepare(engine.evaluated_weights)
    subject = Subject(
        engine.task, engine.method, engine.model, weights, config.seeds, config.max_length, loops=engine.law
    )
    for row in measure(subject, [1, 2, 3], 64, seed=1, stops=("oracle", "halt")):
        assert row.accuracy > 0.9
        assert row.mean_steps == pytest.approx(row.length, abs=0.1)
    grid = length_grid(subject, 3, 64, seed=1, max_steps=12)
    assert float(grid.correct[:, grid.needed[0] + 8].double().mean()) > 0.9, (
        "a row that has halted holds the answer"
    )


def test_long_is_for_what_loops() -> None:
    with pytest.raises(InputError, match="loop as often as a problem needs, not for ntp"):
        make("copy", "ntp", "long", (0,))
