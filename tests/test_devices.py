"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from looped import devices
from looped.errors import InputError


def test_a_numbered_device_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert devices.pick("cuda:1") == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]
    assert devices.find("cuda:0") == torch.device("cuda:0")
    assert devices.pick("cuda") == torch.device("cuda")
    assert devices.pick("cpu") == torch.device("cpu")
    assert len(current) == 1, "whoever only looks, or names no number, changes nothing"


@pytest.mark.parametrize("name", ["cuda:2", "cuda:", "cuda:x", "cuda:-1", "gpu", "", "cuda:1:1"])
def test_what_is_not_there_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="device"):
        devices.pick(name)
