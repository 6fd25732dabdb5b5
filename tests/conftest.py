"""What every test may rely on: one torch thread, repeatable hypothesis examples, the command in-process.

Without a GPU, Triton's kernels are interpreted: it looks where they are declared, so before `looped` is imported.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from looped import registry
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


@pytest.fixture(autouse=True)
def _own_parts_are_forgotten() -> Iterator[None]:
    """A part that a test names from a file or registers is not known to the tests after it."""
    tables = [table for kind in registry.KINDS.values() for table in (kind.known, kind.files, kind.used)]
    before = [copy.copy(table) for table in tables]
    words = set(registry.KINDS)
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)  # type: ignore[arg-type]
    for word in registry.KINDS.keys() - words:  # a kind whose module the test was the first to import
        for table in (registry.KINDS[word].known, registry.KINDS[word].files, registry.KINDS[word].used):
            table.clear()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Runs `looped WORDS…` in this process."""

    def run(*words: object) -> Finished:
        capsys.readouterr()  # what came before belongs to somebody else
        code = main([str(word) for word in words])
        return Finished(code, *capsys.readouterr())

    return run
