"""A compiled model as a picture: the matrices of its step, and its state after every step of one question."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure

from looped import checkpoints
from looped.compiler.compiled import Compiled
from looped.model.weights import Layout
from looped.rasp.program import Program

PARTS = ("qkv.weight", "out.weight", "up.weight", "down.weight")
TITLES = ("queries, keys, values", "attention's output", "units", "units' output")
WIDEST = 12  # positions of a question that can be drawn


def draw(program: Program, made: Compiled, path: Path) -> None:
    """Write an SVG with the matrices of the loop's layers and the state of the program's example, step by step."""
    names = _names(made)
    weights = Layout(made.config).to_dict(made.row)
    layers = made.config.layers
    states = _states(program, made)
    figure = Figure(figsize=(11, 2.6 * layers + 0.34 * len(names)), layout="constrained")
    FigureCanvasSVG(figure)
    grid = figure.add_gridspec(layers + 1, 4, height_ratios=[2.6] * layers + [0.34 * len(names)])
    for layer in range(layers):
        for column, part in enumerate(PARTS):
            matrix = weights[f"layers.{layer}.{part}"].numpy()
            axes = figure.add_subplot(grid[layer, column])
            _matrix(axes, matrix, names, rows=column in (0, 2), columns=column in (1, 3))
            axes.set_title(f"layer {layer + 1}: {TITLES[column]}", fontsize=8)
    below = grid[layers, :].subgridspec(1, len(states), wspace=0.06)
    for step, state in enumerate(states):
        axes = figure.add_subplot(below[0, step])
        _state(axes, state, names, program, first=step == 0)
        axes.set_title("before the loop" if step == 0 else f"after step {step}", fontsize=8)
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    checkpoints.write(path, drawn.getvalue())


def _names(made: Compiled) -> dict[int, str]:
    """Entries of the state that have a name, by place."""
    return {place: name.removeprefix("state ") for name, place in (*made.card.others, *made.card.variables)}


def _states(program: Program, made: Compiled) -> list[Any]:
    row = program.row(program.example.split()[:WIDEST])
    steps = program.total(program.sizes(row.tolist()))
    tokens, weights = torch.from_numpy(row)[None, None], made.prepare()
    with torch.inference_mode():
        first = made.model.embed(weights, tokens)
        states = [first, *made.model.unroll(weights, tokens, steps)]
    return [state[0, 0].numpy().T for state in states]


def _matrix(axes: Any, matrix: Any, names: dict[int, str], rows: bool, columns: bool) -> None:
    used = np.flatnonzero(np.abs(matrix).sum(0 if rows else 1))  # idle units and heads are left out
    shown = matrix[:, used] if rows else matrix[used]
    largest = max(float(np.abs(matrix).max()), 1.0)
    axes.imshow(
        shown,
        cmap="RdBu",
        norm=SymLogNorm(0.5, vmin=-largest, vmax=largest),
        aspect="auto",
        interpolation="none",
    )
    axes.tick_params(labelsize=6, length=0)
    axes.set_xticks(list(names) if columns else [], list(names.values()) if columns else [], rotation=90)
    axes.set_yticks(list(names) if rows else [], list(names.values()) if rows else [])


def _state(axes: Any, state: Any, names: dict[int, str], program: Program, first: bool) -> None:
    example = program.vocab.decode(program.row(program.example.split()[:WIDEST]).tolist())
    places = sorted(names)
    values = state[places]
    axes.imshow(
        np.sign(values) * np.log1p(np.abs(values)),
        cmap="Blues",
        aspect="auto",
        vmin=-1,
        vmax=4,
        interpolation="none",
    )
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:g}", ha="center", va="center", fontsize=6)
    axes.tick_params(labelsize=6, length=0)
    axes.set_xticks(range(len(example)), example)
    axes.set_yticks(range(len(places)) if first else [], [names[p] for p in places] if first else [])
