"""Results, traces and weights of the shipped and of 300 random programs are those of the recorded file."""

from __future__ import annotations

import json
from pathlib import Path

import fingerprints
import pytest

GOLDEN = json.loads(fingerprints.FILE.read_text(encoding="utf-8"))
QUICK = 25  # random programs of the ordinary test run


@pytest.mark.parametrize("interpreted", [True, False])
def test_the_shipped_programs(interpreted: bool) -> None:
    assert fingerprints.shipped(interpreted) == GOLDEN["shipped"]


def test_random_programs(tmp_path: Path) -> None:
    assert [fingerprints.drawn(tmp_path, seed) for seed in range(QUICK)] == GOLDEN["random"][:QUICK]


def test_random_programs_as_python(tmp_path: Path) -> None:
    found = [fingerprints.drawn(tmp_path, seed, interpreted=False) for seed in range(10)]
    assert found == GOLDEN["random"][:10]


@pytest.mark.slow
def test_all_random_programs(tmp_path: Path) -> None:
    rest = range(QUICK, fingerprints.RANDOM)
    assert [fingerprints.drawn(tmp_path, seed) for seed in rest] == GOLDEN["random"][QUICK:]
