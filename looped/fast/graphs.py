"""CUDA graphs: a gradient step recorded once and replayed, so that launching its kernels costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from looped.training.progress import Readings


def record(
    body: Callable[[], Readings], changing: Sequence[Tensor], generators: Sequence[torch.Generator]
) -> tuple[torch.cuda.CUDAGraph, Readings]:
    """A graph of `body` and the readings that each replay fills; nothing has changed when this returns.

    `changing` are the tensors that the body changes in place, `generators` those that it draws from.
    """
    kept = [tensor.clone() for tensor in changing]
    states = [generator.get_state() for generator in generators]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)
    for tensor, old in zip(changing, kept, strict=True):
        tensor.copy_(old)
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        readings = body()
    return graph, readings
