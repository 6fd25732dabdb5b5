"""Do a model's states hold the program's variables? A linear probe for each variable after each step.

The interpreter says what each variable is at every position after step t; a linear map from the model's state after
step t is fitted to that on half of the rows, and tried on the others. Beside its accuracy stand what the input token
alone gives away and three controls: the same fit from the embedded input, from the states of fresh weights, and to the
variables of another row. Only positions count at which a variable is not the same in all rows.

Shapes: R rows, L positions, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from looped.errors import InputError
from looped.fast.stacked import StackedTransformer
from looped.model.seeds import SeedModel, SeedWeights
from looped.rasp.attention import Array
from looped.rasp.program import Program, read_out, unroll
from looped.rasp.sequence import unwrap

Rows = Int[Tensor, "R L"]
States = Float[Tensor, "R L D"]
RIDGE = 1e-6  # keeps the maps finite where classes can be told apart without a mistake
ROUNDS = 60  # of the fit, which has converged by then
IDLE = 1e-12  # share of the largest variance below which a direction of the state counts as none
MOST_CLASSES = 256
UNTRAINED = 0  # seed of the fresh weights


@dataclass(frozen=True)
class Decoded:
    """How often one variable is read right from the states after one step, on rows the probe has not seen."""

    variable: str
    step: int
    accuracy: float
    from_token: float  # what the input token alone gives away
    from_input: float | None = None  # the controls, where they were asked for
    untrained: float | None = None
    shuffled: float | None = None


def probe(
    program: Program,
    model: SeedModel,
    weights: SeedWeights,
    rows: Rows,
    steps: int,
    controls: bool = False,
    answer_only: bool = False,
) -> list[Decoded]:
    """Fit a probe for every variable after each of the first steps; half of the rows fit, the other half test.

    With `answer_only`, only positions count from the end of the question on, where the answer is read.
    """
    if len(rows) < 2:
        raise InputError(f"a probe needs at least 2 rows, one to fit and one to test, not {len(rows)}")
    plain = rows.cpu().numpy()
    sizes = {program.sizes(row.tolist()) for row in plain}
    if len(sizes) != 1:
        raise InputError("a probe takes rows whose questions have equal sizes")
    first = plain[0].tolist().index(program.vocab.eoq) if answer_only else 0
    states = unroll(program, plain, sizes.pop())
    next(states)  # before the first step there is no state of the model
    found: list[Decoded] = []
    after = _states(model, weights, rows, steps)
    if controls:
        with torch.no_grad():
            embedded = model.embed(weights, rows[None])[0]
            untrained = StackedTransformer(model.config)
            fresh = untrained.prepare(untrained.layout.initialise([UNTRAINED], rows.device))
        aimless = _states(untrained, fresh, rows, steps)
    for i, (h, (step, _, state)) in enumerate(zip(after, states, strict=False)):
        for name, value in state.items():
            truth = np.broadcast_to(unwrap(value).astype(np.int64), plain.shape)
            open_ = first + _open(truth[:, first:])
            truth = truth[:, open_]
            wanted = torch.from_numpy(truth)
            fits = {"accuracy": (h, wanted)}
            if controls:
                fits |= {"from_input": (embedded, wanted), "untrained": (aimless[i], wanted)}
                fits["shuffled"] = h, wanted.roll(1, 0)  # rows are drawn alike: any other's variables will do
            rates = {field: _linear(state[:, open_], values) for field, (state, values) in fits.items()}
            found.append(Decoded(name, step, from_token=_from_token(plain[:, open_], truth), **rates))
    return found


@dataclass(frozen=True)
class Spoken:
    """What a model would say if its loop ended after one step, where the answers of rows differ."""

    step: int
    as_program: float  # share of tokens that the program would say after that step too
    as_answer: float  # share of tokens that are the answer's
    begun: float  # share of the answer that is right from its beginning to the first mistake


def spoken(program: Program, model: SeedModel, weights: SeedWeights, rows: Rows, steps: int) -> list[Spoken]:
    """Compare what is read out after each of the first steps with the program's output and with the answer."""
    plain = rows.cpu().numpy()
    start = plain[0].tolist().index(program.vocab.eoq)
    states = [state for _, _, state in unroll(program, plain, program.sizes(plain[0].tolist()))]
    outputs = [unwrap(read_out(program, state, plain)).astype(np.int64)[:, start:] for state in states]
    open_ = _open(outputs[-1])
    found: list[Spoken] = []
    for step, h in enumerate(_states(model, weights, rows, steps), 1):
        with torch.no_grad():
            said = model.readout(weights, h[None, :, start:].contiguous())[0].argmax(-1).cpu().numpy()
        right = said[:, open_] == outputs[-1][:, open_]
        alike = said[:, open_] == outputs[min(step, len(outputs) - 1)][:, open_]
        found.append(Spoken(step, float(alike.mean()), float(right.mean()), float(right.cumprod(1).mean())))
    return found


def _open(truth: Array) -> Array:
    """The positions at which a variable differs between rows; all of them where it differs nowhere."""
    found = np.flatnonzero((truth != truth[:1]).any(0))
    return found if len(found) else np.arange(truth.shape[1])


def _states(model: SeedModel, weights: SeedWeights, rows: Rows, steps: int) -> list[States]:
    """The states after each step, not finite ones made so."""
    with torch.no_grad():
        return [h[0].nan_to_num() for h in model.unroll(weights, rows[None], steps)]


def _linear(h: States, truth: Rows) -> float:
    """Accuracy on the second half of the rows of a logistic regression, fitted on the first."""
    half = len(h) // 2
    classes, codes = np.unique(truth.cpu().numpy(), return_inverse=True)
    if len(classes) > MOST_CLASSES:
        raise InputError(f"a probe tells at most {MOST_CLASSES} values apart, not {len(classes)}")
    wanted = torch.from_numpy(codes.reshape(truth.shape)).to(h.device)
    fit, test = h[:half].flatten(0, 1).double(), h[half:].flatten(0, 1).double()
    center, whiten = fit.mean(0), _whitening(fit)
    fit, test = (F.pad((x - center) @ whiten, (0, 1), value=1.0).to(h.dtype) for x in (fit, test))
    maps = _regression(fit, wanted[:half].flatten(), len(classes))
    return float(((test @ maps).argmax(-1) == wanted[half:].flatten()).double().mean())


def _whitening(x: Float[Tensor, "N D"]) -> Float[Tensor, "D E"]:
    """A linear map after which all directions vary alike, so that the fit converges soon; it reads no less."""
    variance, directions = torch.linalg.eigh(torch.cov(x.T, correction=0).reshape(x.shape[1], -1))
    kept = variance > IDLE * variance.max().clamp(min=IDLE)
    whitening: Tensor = directions[:, kept] / variance[kept].sqrt()
    return whitening


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
