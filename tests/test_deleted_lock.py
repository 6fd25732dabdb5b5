"""Two starts of one run whose lock was deleted by hand: one of them stops, and no line of the metrics is doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from looped import runs
from looped.errors import InputError
from looped.runs import Run
from looped.training.recipes import make

CONFIG = make("copy", "fop-loop-adaptive", "quick", (0,))


def test_the_start_that_lost_the_folder_stops_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run(folder, CONFIG) as first:
        first.log([{"step": 1}])
        (folder / "lock").unlink()
        with Run(folder, CONFIG) as second:
            second.rewind(0)
            second.log([{"step": 1}])
            for write in (
                lambda: first.log([{"step": 2}]),
                lambda: first.save_state({"x": torch.zeros(1)}, {}),
            ):
                with pytest.raises(InputError, match="another start has taken the run over"):
                    write()
            second.log([{"step": 2}])
    assert runs.read_metrics(folder) == [{"step": 1}, {"step": 2}]
    assert not (folder / runs.STATE).exists()


def test_a_lock_that_is_only_deleted_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run(folder, CONFIG) as first:
        (folder / "lock").unlink()
        first.log([{"step": 1}])
        with pytest.raises(InputError, match="another process is training"):
            Run(folder, CONFIG)
