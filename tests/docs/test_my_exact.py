"""The blocks and recipes of docs/my_exact.py: what each does, and that it trains as replicas too."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from looped import methods, registry, runs, tasks
from looped.cli import main
from looped.fast.supports import supports
from looped.model import Block, ModelConfig
from looped.training import curriculum

FILE = Path(__file__).parents[2] / "docs" / "my_exact.py"
METHOD = methods.get("fop-loop-adaptive")
TINY = (
    "--seeds", "0,1", "--steps", "4", "--interval", "1", "--width", "18", "--heads", "2", "--layers", "1",
    "--max-length", "4", "--batch", "4", "--device", "cpu", "--set", "model.bands=2,2",
)  # fmt: skip


@pytest.fixture(scope="module")
def exact() -> dict[str, object]:
    return runpy.run_path(str(FILE))


@pytest.mark.parametrize("name", ["local", "tokens", "two_phases", "together"])
@pytest.mark.parametrize("task", ["parity", "copy", "addition", "binary_sum", "multiplication", "unique_set"])
def test_every_recipe_makes_a_run_of_the_fast_engine(exact, name: str, task: str) -> None:
    config = exact[name](tasks.get(task), METHOD, (0,))
    assert supports(None, config, cuda=True) is None
    if name == "two_phases":
        assert config.family == "uniform"
        assert "mixed" in config.late_family


def test_addition_gets_a_step_for_every_token_of_question_and_answer(exact) -> None:
    addition = tasks.get("addition")
    law = methods.parse_loops(exact["tokens"](addition, METHOD, (0,)).loops)
    for n in (1, 2, 7, 19, 200):
        asked = torch.tensor([addition.question_size(n)])
        assert int(law.first(torch.tensor([n]), asked)) == 3 * n + 2
        assert 3 * n + 2 == addition.question_size(n) + addition.answer_size(n)


def test_hard_questions_come_after_the_curriculum(exact) -> None:
    config = exact["together"](tasks.get("addition"), METHOD, (0,))
    end = config.stage_end(config.max_length)
    assert (curriculum.family(config, end - 1), curriculum.family(config, end)) == (
        "uniform",
        config.late_family,
    )
    assert end < config.steps / 2


def test_shut_gates_let_a_third_of_the_channels_move_and_keep_the_rest(exact) -> None:
    config = ModelConfig(vocab=5, layers=1, heads=2, width=6)
    h = torch.randn(2, 4, 6)
    moved = torch.cat([torch.zeros(2, 1, 2), h[:, :-1, :2]], dim=1)
    expected = torch.cat([moved, h[..., 2:]], dim=-1)
    block = exact["ShiftGate"](config)
    torch.nn.init.constant_(block.gate.bias, -100.0)
    torch.testing.assert_close(block(h), expected)
    stock, shift = Block(config), exact["Shift"](config)
    shift.load_state_dict(stock.state_dict())
    torch.testing.assert_close(shift(h), stock(expected))
    kept = exact["CopyGate"](config)
    torch.nn.init.constant_(kept.gate.bias, -100.0)
    torch.testing.assert_close(kept(h), h)


@pytest.mark.parametrize("block", ["Shift", "CopyGate", "ShiftGate"])
def test_blocks_train_as_replicas(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "--recipe",
        f"{FILE}:together",
        "--block",
        f"{FILE}:{block}",
        "--replicas",
        "2",
        "--hold-out",
        "1",
    ]
    assert main(["train", "copy", *words, *TINY, "--out", "run"]) == 0
    config = runs.load_seed(tmp_path / "run" / "seed-0.safetensors").config
    assert (registry.label(config.block), config.loops, config.family) == (block.lower(), "2q", "uniform")
