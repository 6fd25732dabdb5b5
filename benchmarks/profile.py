"""What a gradient step spends its time on: kernels by kind, from torch's profiler, on any device."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import Measured, timing

# kind → names of its kernels (CUDA) or operations (CPU); the first that fits counts
KINDS = {
    "attention": r"attention|flash|fmha",
    "products": r"gemm|nvjet|cutlass|cublas|splitk|::(add|b|badd)?b?mm$|::_linear_pointwise$",
    "norms and GELU": r"_norm\b|_norm_|layer_norm|gelu|_boundary_|_input_backward",
    "AdamW": r"adamw",
    "copies": r"memcpy|memset|::copy_$|_copy_|CatArray|::cat$",
}
REST = "rest"


def kind_of(name: str) -> str:
    """`_gelu_backward` belongs to norms and GELU, `nvjet_tst_256x128_64x4` to products."""
    return next((kind for kind, names in KINDS.items() if re.search(names, name, re.IGNORECASE)), REST)


def profile_step(action: Callable[[], object], device: torch.device, calls: int = 2) -> Measured:
    """Milliseconds of one call by kind of kernel, all of them together, and how many were started."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        for _ in range(calls):
            action()
        timing.synchronise(device)
    spent = dict.fromkeys([*KINDS, REST], 0.0)
    launches = 0
    for event in seen.key_averages():
        taken = event.self_device_time_total if cuda else event.self_cpu_time_total
        if taken > 0:
            spent[kind_of(event.key)] += taken / 1e3 / calls
            launches += event.count
    return {"ms": spent, "busy_ms": sum(spent.values()), "launches": launches // calls}
