"""Every shipped model keeps its card's word, on a CPU, with fewer samples; all together they stay small."""

from __future__ import annotations

import math

import pytest

import looped
import looped.zoo as zoo
from looped import runs, serial, tasks
from looped.evaluation.measure import measure
from looped.result_files import wilson
from looped.zoo import Card, MeasuredAccuracy
from scripts.publish_model import LARGEST

NAMES = zoo.names()
shipped = pytest.mark.skipif(
    not NAMES, reason="no model is shipped yet: there is no card to hold to its word"
)
UNLIKELY = 1e-3  # a share of right answers this far off is no accident
SHARE = min(1, 6 / max(1, len(NAMES)))  # of the samples, so that more models do not take more time
AT_TRAINING_LENGTH, BEYOND = round(16 * SHARE), round(32 * SHARE)  # samples


def tail(right: int, samples: int, low: float, high: float) -> float:
    """How likely an outcome as far off as this is, for the accuracy between low and high that suits it best."""
    share = right / samples
    if low <= share <= high:
        return 1.0
    p, counts = (low, range(right + 1)) if share < low else (high, range(right, samples + 1))
    return sum(math.comb(samples, k) * p**k * (1 - p) ** (samples - k) for k in counts)


@pytest.mark.parametrize(
    ("right", "samples", "low", "high", "likely"),
    [
        (32, 32, 0.99, 1.0, True),
        (31, 32, 0.99, 1.0, True),
        (26, 32, 0.99, 1.0, False),
        (12, 32, 0.0, 0.01, False),
    ],
)
def test_an_outcome_far_off_is_unlikely(
    right: int, samples: int, low: float, high: float, likely: bool
) -> None:
    assert (tail(right, samples, low, high) > UNLIKELY) is likely


def exam(card: Card) -> list[tuple[MeasuredAccuracy, int]]:
    """What is asked: the training length, and the longest length up to the paper's that was measured."""
    rows = {row.length: row for row in card.rows if (row.stop, row.family) == ("oracle", "uniform")}
    trained = max(n for n in rows if n <= card.max_length)
    furthest = max(n for n in rows if n <= max(tasks.get(card.task).paper.test_length, card.max_length))
    return [(rows[trained], AT_TRAINING_LENGTH), (rows[furthest], BEYOND)]


@shipped
@pytest.mark.parametrize(
    "name", [n if n.endswith("-long") else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_a_model_keeps_its_cards_word(name: str) -> None:
    solver = looped.load(name, "cpu")
    for row, samples in exam(zoo.card(name)):
        (found,) = measure(solver.subject, [row.length], samples, seed=2026, stops=[row.stop])
        low, high = wilson(row.accuracy, row.samples, z=2.6)
        right = round(found.accuracy * samples)
        likely = tail(right, samples, low, high)
        said = (
            f"{right} of {samples} right at {row.length}, the card says {row.accuracy:.4f} of {row.samples}"
        )
        assert likely > UNLIKELY, said


@shipped
@pytest.mark.parametrize("name", NAMES)
def test_a_card_fits_its_weights(name: str) -> None:
    card, trained = zoo.card(name), runs.load_seed(zoo.path(name))
    config = trained.config
    told = (card.name, card.task, card.method, card.recipe, card.seed, card.max_length, card.steps)
    assert told == (
        *(name, config.task, config.method, config.recipe),
        *(trained.seed, config.max_length, trained.step),
    )
    assert serial.from_json(type(config), dict(card.config), name) == config
    assert name in (card.task, *(f"{card.task}-{suffix}" for suffix in zoo.PREFERRED))
    assert card.chosen
    assert card.trained.commit
    assert card.trained.command
    assert card.measured.device
    assert all(0 <= row.accuracy <= 1 and row.samples > 0 for row in card.rows)


@shipped
def test_every_file_has_its_card_and_every_card_its_file() -> None:
    assert sorted(path.stem for path in zoo.FOLDER.glob("*.json")) == NAMES
    for task in {zoo.card(name).task for name in NAMES}:
        assert looped.load(task).task.name == task


def test_all_models_together_stay_small() -> None:
    assert (
        sum(path.stat().st_size for path in zoo.FOLDER.iterdir() if path.is_file()) <= LARGEST == 40_000_000
    )
