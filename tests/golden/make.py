"""Writes the golden files again: `python -m tests.golden.make`. Look at the difference before you commit it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from golden import HERE, record


def main() -> None:
    """Runs every case, the slow ones too, and writes a file of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        for name, found in record(Path(folder)).items():
            lines = [f"{json.dumps(key)}: {json.dumps(found[key], ensure_ascii=False)}" for key in found]
            (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
