"""Which device to compute on, by name. Knows nothing of what is computed."""

from __future__ import annotations

import platform

import torch

from looped.errors import InputError


def pick(name: str) -> torch.device:
    """The device a person means, to compute on: a numbered one becomes the current one.

    Kernels and graphs go to the current device, whatever device their tensors are on.
    """
    device = find(name)
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def find(name: str) -> torch.device:
    """The device a person means by `auto`, `cpu`, `cuda` or `cuda:1`; raises if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or (":" in name and not number.isdecimal()):
        raise InputError(f"unknown device {name[:40]!r}; the devices are auto, cpu, cuda and cuda:N")
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        raise InputError(f"there is no device {name[:40]!r} here: {count or 'no'} CUDA devices were found")
    return torch.device(name)


def describe(device: torch.device | str) -> str:
    """The device as people know it: `NVIDIA H200`, `cpu (x86_64, 2 threads)`."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.device(device).type} ({platform.machine()}, {torch.get_num_threads()} threads)"
