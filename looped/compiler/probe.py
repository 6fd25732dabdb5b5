"""Do a model's states hold the program's variables? A linear probe for each variable after each step.

The interpreter says what each variable is at every position after step t; a linear map from the model's state after
step t is fitted to that on some rows, and tried on others. Beside its accuracy stands what the input token alone
gives away: the share that is right when every position is given its token's commonest value.

Knows programs and models, not where either comes from. Shapes: R rows, L positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from looped.errors import InputError
from looped.model.loop import LoopedTransformer, Prepared
from looped.rasp.program import Program, unroll
from looped.rasp.sequence import Array, unwrap

RIDGE = 1e-6  # keeps the maps of idle entries at 0
ROUNDS = 200  # of the fit
MOST_CLASSES = 256


@dataclass(frozen=True)
class Decoded:
    """How often one variable is read right from the states after one step, on rows the probe has not seen."""

    variable: str
    step: int
    accuracy: float
    from_token: float  # what the input token alone gives away


def probe(
    program: Program, model: LoopedTransformer, weights: Prepared, rows: Int[Tensor, "R L"], steps: int
) -> list[Decoded]:
    """Probes for every variable after each of the first steps; half of the rows fit, the other half test."""
    if len(rows) < 2:
        raise InputError(f"a probe needs at least 2 rows, one to fit and one to test, not {len(rows)}")
    plain = rows.cpu().numpy()
    sizes = {program.sizes(row.tolist()) for row in plain}
    if len(sizes) != 1:
        raise InputError("a probe takes rows whose questions have equal sizes")
    states = unroll(program, plain, sizes.pop())
    next(states)  # before the first step there is no state of the model
    found: list[Decoded] = []
    with torch.no_grad():
        after = [h[0].double() for h in model.unroll(weights, rows[None], steps)]
    for h, (step, _, state) in zip(after, states, strict=False):
        for name, value in state.items():
            truth = np.broadcast_to(unwrap(value).astype(np.int64), plain.shape).copy()
            accuracy = _linear(h, torch.from_numpy(truth))
            found.append(Decoded(name, step, accuracy, _from_token(plain, truth)))
    return found


def _linear(h: Float[Tensor, "R L D"], truth: Int[Tensor, "R L"]) -> float:
    """Accuracy on the second half of the rows of a logistic regression, fitted on the first."""
    half = len(h) // 2
    classes, codes = np.unique(truth.cpu().numpy(), return_inverse=True)
    if len(classes) > MOST_CLASSES:
        raise InputError(f"a probe tells at most {MOST_CLASSES} values apart, not {len(classes)}")
    wanted = torch.from_numpy(codes.reshape(truth.shape)).to(h.device)
    fit, test = h[:half].flatten(0, 1), h[half:].flatten(0, 1)
    center, scale = fit.mean(0), fit.std(0, correction=0).clamp(min=1e-9)
    fit, test = (F.pad((x - center) / scale, (0, 1), value=1.0) for x in (fit, test))
    maps = _regression(fit, wanted[:half].flatten(), len(classes))
    return float(((test @ maps).argmax(-1) == wanted[half:].flatten()).double().mean())


def _regression(x: Float[Tensor, "N D"], wanted: Int[Tensor, "N"], classes: int) -> Float[Tensor, "D C"]:
    maps = torch.zeros(x.shape[1], classes, dtype=x.dtype, device=x.device, requires_grad=True)
    solver = torch.optim.LBFGS([maps], max_iter=ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ maps, wanted) + RIDGE * maps.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    return maps.detach()


def _from_token(rows: Array, truth: Array) -> float:
    """The same accuracy for the commonest value of each input token."""
    half = len(rows) // 2
    guess = np.zeros_like(truth[half:])
    for token in np.unique(rows):
        seen = truth[:half][rows[:half] == token]
        values, counts = np.unique(seen, return_counts=True)
        guess[rows[half:] == token] = values[counts.argmax()] if len(values) else 0
    return float((guess == truth[half:]).mean())
