"""Going on with a run on a GPU: captured steps, generators and all. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from looped import runs
from looped.training.trainer import Cadence, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
OFTEN = Cadence(report_steps=7, evaluate_steps=20, save_steps=5, samples=16)


@pytest.mark.parametrize("lengths", ["stratified", "iid"])
def test_going_on_ends_where_an_unbroken_run_ends(tiny, tmp_path: Path, lengths: str) -> None:
    model = {"width": 64, "heads": 4, "layers": 2}
    config = tiny(model=model, steps=60, batch=16, lengths=lengths, ema=0.9)
    train(config, tmp_path / "whole", "cuda", cadence=OFTEN)
    for steps in (8, 12, 15, 99):
        left = iter(range(steps))
        train(
            config,
            tmp_path / "broken",
            "cuda",
            cadence=OFTEN,
            stop=lambda left=left: next(left, None) is None,
        )
    for one, other in zip(*(runs.seed_files(tmp_path / name) for name in ("whole", "broken")), strict=True):
        torch.testing.assert_close(runs.load_seed(one).row, runs.load_seed(other).row, rtol=1e-2, atol=1e-3)
    losses = [
        [row["loss"] for row in runs.read_metrics(tmp_path / name) if row["kind"] == "training"]
        for name in ("whole", "broken")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.02), "the same problems in the same order"
