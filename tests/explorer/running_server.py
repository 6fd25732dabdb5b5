"""What the tests know of the server they share."""

from __future__ import annotations

from dataclasses import dataclass

from looped.explorer.app import Explorer
from looped.explorer.security import Token


@dataclass(frozen=True)
class Running:
    """A server of this process."""

    url: str
    port: int
    explorer: Explorer
    token: Token

    @property
    def page(self) -> str:
        """The address that is printed."""
        return f"{self.url}?token={self.token.text}"

    @property
    def cookie(self) -> str:
        return f"{self.token.cookie}={self.token.text}"
