"""What the tests know of the server they share."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from looped.explorer.app import Explorer
from looped.explorer.security import Token

SETTLED = "body[data-state=settled]"
PHONE = {"width": 390, "height": 844}
PATIENCE = 60_000  # milliseconds: what is tested is what happens, not how fast on a busy machine


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


def asked(task: str, question: str, **more: object) -> str:
    """The state that an address holds behind its #."""
    pairs = {"task": task, "model": f"{task}-compiled", "q": question, **more}
    return "&".join(f"{name}={quote(str(value))}" for name, value in pairs.items())
