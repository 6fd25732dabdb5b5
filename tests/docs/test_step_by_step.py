"""The picture of docs/chomsky.md is drawn from a run: here from one that was hardly trained."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from looped.evaluation import loading
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"


def test_what_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("step_by_step", PICTURES / "step_by_step.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    config = make("parity_check", "fop-loop-adaptive", "chomsky", (0,))
    config = replace(config, steps=2, max_length=3, batch=4, warmup=0)
    train(config, tmp_path / "run", cadence=Cadence(samples=1, longer=False))
    task = loading.load(tmp_path / "run", script.torch.device("cpu")).subject.task
    said, right, halted = script.read_outs(tmp_path / "run", task, "1101")
    assert (len(said), len(said[0])) == (4 + script.AFTER, 2)
    assert task.vocab.decode(right) == ["1", "#"]
    assert all(0 <= share <= 1 for line in said for _, share in line)
    assert 0 <= halted <= len(said)
    monkeypatch.setattr(script, "HERE", tmp_path)
    script.main(str(tmp_path / "run"), "parity_check", "1101")
    assert (tmp_path / "parity_check-trained.svg").stat().st_size > 1000
