"""Interpreter and compiled model side by side: every variable after every step, and past the last."""

from __future__ import annotations

import numpy as np
import torch

from looped.compiler.compiled import Compiled
from looped.rasp.attention import Array
from looped.rasp.program import Program, read_out, unroll
from looped.rasp.sequence import unwrap


def assert_equal(program: Program, made: Compiled, rows: Array, overrun: int = 2) -> None:
    """Rows of one shape of question: variables, output, scores and the flag `done`, step by step."""
    sizes = program.sizes(rows[0].tolist())
    total = program.total(sizes)
    states = [state for _, _, state in unroll(program, rows, sizes)]
    weights, model = made.prepare(), made.model
    with torch.inference_mode():
        for t, h in enumerate(model.unroll(weights, torch.from_numpy(rows)[None], total + overrun), 1):
            state = states[min(t, total)]
            decoded = made.decode(h)
            expected = {name: _whole(value, rows) for name, value in state.items()}
            expected["output"] = _whole(read_out(program, state, rows), rows)
            assert decoded.keys() == expected.keys()
            for name, entry in made.card.variables:
                where = f"{program.name}: {name} after step {t} of {total}"
                assert decoded[name][0].numpy().tolist() == expected[name].tolist(), where
                assert np.abs(h[0, ..., entry].numpy() - expected[name]).max() < 1e-6, where
            spoken = np.clip(expected["output"], 0, len(program.vocab) - 1)
            assert (model.readout(weights, h)[0].argmax(-1).numpy() == spoken).all()
            assert ((h[0, :, -1, made.config.halt] == 1) == (t >= total)).all(), (
                f"done at step {t} of {total}"
            )


def _whole(value: object, rows: Array) -> Array:
    return np.broadcast_to(unwrap(value).astype(np.int64), rows.shape)  # type: ignore[arg-type]
