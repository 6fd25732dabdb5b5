"""Fingerprints of programs: results, traces and compiled weights, as short hashes that a file can keep.

`python tests/compiler/fingerprints.py` writes the file anew; do that only for a change that is meant to change results.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from random_programs import load, seeded_text

from looped.compiler.compiled import assemble
from looped.errors import InputError
from looped.rasp import lint, programs
from looped.rasp.lint_rules import function_place
from looped.rasp.program import Program, run
from looped.rasp.trace import trace

FILE = Path(__file__).with_name("fingerprints.json")
RANDOM = 300


def fingerprint(program: Program, longest: int) -> dict[str, str]:
    """Hashes of what a program does, and of its weights or the rule that refuses them."""
    return {
        "result": _hash(run(program, row).tolist() for row in rows(program)),
        "trace": _hash(
            [entry.step, entry.by, entry.name, entry.values.tolist()]
            for row in rows(program)
            for entry in trace(program, row).entries
        ),
        "weights": _weights(program, longest),
    }


def rows(program: Program) -> list[np.ndarray]:
    """The example, and three questions like it with other symbols."""
    example = program.example.split()
    symbols = [name for name in program.vocab.symbols if name not in program.separators]
    generator = np.random.RandomState(0)  # its numbers are the same in every version of numpy
    found = [program.row(example)]
    for _ in range(3):
        asked = [s if s in program.separators else symbols[generator.randint(len(symbols))] for s in example]
        found.append(program.row(asked, size=len(found[0]) + 2))
    return found


def _weights(program: Program, longest: int) -> str:
    """Of the matrices by name, as the compiler makes them: how a model holds them does not matter."""
    try:
        made = assemble(program, longest)
    except InputError as error:
        return str(error.rule)  # type: ignore[attr-defined]
    named = [
        [name, hashlib.sha256(made.weights[name].tobytes()).hexdigest()] for name in sorted(made.weights)
    ]
    return _hash([named, sorted(made.variables.items())])


def _hash(parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part).encode())
    return digest.hexdigest()[:16]


def shipped(interpreted: bool = True) -> dict[str, dict[str, str]]:
    """Of the shipped programs: from their files by the interpreter, or as Python modules."""
    return {
        name: fingerprint(
            lint.load(function_place(program.prepare)[0], name) if interpreted else program, 256
        )
        for name, program in programs.PROGRAMS.items()
    }


def drawn(folder: Path, seed: int, interpreted: bool = True) -> dict[str, str]:
    """Of a random program: from its file by the interpreter, or as a Python module."""
    file = folder / f"random_{seed}.py"
    program = load(seeded_text(seed), file)
    return fingerprint(lint.load(file) if interpreted else program, 64)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {"shipped": shipped(), "random": [drawn(Path(folder), seed) for seed in range(RANDOM)]}
    lines = [json.dumps(entry) for entry in found["random"]]
    head = json.dumps(found["shipped"], indent=1)
    FILE.write_text(f'{{"shipped": {head},\n"random": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
