"""What every test may rely on: one torch thread, repeatable hypothesis examples, the command in-process.

Without a GPU, Triton's kernels are interpreted: it looks where they are declared, so before `looped` is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from looped.cli import main

torch.set_num_threads(1)  # tests run side by side, and a sum must not depend on the number of cores

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile(
    "explore", deadline=None, print_blob=True
)  # HYPOTHESIS_PROFILE=explore: new examples
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


class Finished(NamedTuple):
    """How a command ended: `code, out, err = cli("tasks", "--json")`."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Runs `looped WORDS…` in this process."""

    def run(*words: object) -> Finished:
        capsys.readouterr()  # what came before belongs to somebody else
        code = main([str(word) for word in words])
        return Finished(code, *capsys.readouterr())

    return run
