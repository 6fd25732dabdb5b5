"""Memory does not grow with the loop, beyond the states that training keeps; counted tensor by tensor."""

from __future__ import annotations

import pytest

from benchmarks import memory
from looped.errors import InputError


@pytest.fixture(scope="module")
def measured() -> memory.Measured:
    return memory.measure(device="cpu", steps=40, length=12, width=16, batch=4)


def test_checkpointed_training_grows_by_the_kept_states_alone(measured: memory.Measured) -> None:
    whole, few, many = measured["training"]
    assert (few["loops"], many["loops"]) == (4, 40)
    assert measured["within"]
    assert measured["ratio"] == many["beyond_states_bytes"] / few["beyond_states_bytes"] <= 1.05
    assert whole["peak_bytes"] > 1.3 * few["peak_bytes"], "keeping all costs more than recomputing"


def test_answering_needs_the_same_whatever_the_number_of_steps(measured: memory.Measured) -> None:
    few, many = measured["answering"]
    assert (few["loops"], many["loops"]) == (5, 40)
    assert measured["answering_ratio"] == many["peak_bytes"] / few["peak_bytes"] == pytest.approx(1, abs=0.01)


def test_training_without_checkpoints_would_be_noticed() -> None:
    config = memory.last_stage("copy", 1, length=6, width=16, batch=4)
    rows = [
        memory._training(config, memory.devices.pick("cpu"), memory.torch.float32, loops, checkpointing=False)
        for loops in (2, 20)
    ]
    assert rows[1]["beyond_states_bytes"] > memory.ALLOWED * rows[0]["beyond_states_bytes"]


def test_steps_come_in_tens() -> None:
    with pytest.raises(InputError, match="steps must be a multiple of 10, not 25"):
        memory.measure(device="cpu", steps=25)
