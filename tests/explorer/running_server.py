"""What the tests know of the server they share."""

from __future__ import annotations

from dataclasses import dataclass

from looped.explorer.app import Explorer


@dataclass(frozen=True)
class Running:
    """A server of this process."""

    url: str
    port: int
    explorer: Explorer
