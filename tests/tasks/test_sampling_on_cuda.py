"""The samplers inside a CUDA graph, where there is a GPU: nothing synchronises, every replay draws anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from looped import tasks
from looped.tasks import Problems, Task

Agree = Callable[[Task, Problems, int], list[list[str]]]
EVERY = [(name, family) for name, task in tasks.EVERY.items() for family in task.families]
EVERY += [("addition", "mixed+carry+no-carry"), ("unique_set", "mixed+few"), ("square_root", "mixed+squares")]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(("name", "family"), EVERY)
def test_captured_and_replayed(name: str, family: str, agree: Agree) -> None:
    task = tasks.EVERY[name]
    generator = torch.Generator("cuda").manual_seed(0)
    lengths = torch.arange(1, 41, device="cuda")
    variants = torch.randint(0, task.variants, (40,), generator=generator, device="cuda")

    def draw() -> Problems:
        return task.sample(lengths, generator, max_length=40, variants=variants, family=family)

    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        draw()  # also loads the kernels, which cannot be done while capturing
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        captured = draw()
    seen = []
    for _ in range(3):
        graph.replay()
        on_cpu = Problems(**{field: value.cpu() for field, value in vars(captured).items()})
        seen.append(agree(task, on_cpu, 40))
    if family == "uniform":
        assert seen[0] != seen[1] != seen[2]
