"""The page's files: a fixed table, read once at the start. Whatever is not in it does not exist for a visitor.

Nothing else is ever read from the disk on anybody's request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
PAGE = "index.html"


@dataclass(frozen=True)
class File:
    """One file as it is sent."""

    data: bytes
    kind: str
    tag: str  # changes with the contents


def table(folder: Path = FOLDER) -> dict[str, File]:
    """Every file of the page by its path below the folder: `style.css`, `vendor/d3.min.js`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in KINDS:
            data = path.read_bytes()
            tag = '"' + hashlib.sha256(data).hexdigest()[:20] + '"'
            found[path.relative_to(folder).as_posix()] = File(data, KINDS[path.suffix], tag)
    return found
