"""Losses and gradient norms of the first gradient steps, six tasks by four recipes, on a CPU in fp32.

`python -m tests.golden.training` records them again. They hold what a restructuring must not change: data, start,
curriculum, loss, gradient and update.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from looped import tasks
from looped.fast.engine import Engine
from looped.training.recipes import RECIPES, make

FILE = Path(__file__).with_name("training.json")
STEPS = 3
CASES = [(task, recipe) for task in tasks.TASKS for recipe in RECIPES]

Recorded = dict[str, dict[str, list[list[float]]]]


def first_steps(task: str, recipe: str) -> dict[str, list[list[float]]]:
    """`loss` and `norm` after each step, a number per seed; rows of up to four symbols."""
    config = make(task, "fop-loop-adaptive", recipe, (0, 3))
    engine = Engine(replace(config, batch=6, max_length=4, start_length=4), "cpu")
    found: dict[str, list[list[float]]] = {"loss": [], "norm": []}
    for _ in range(STEPS):
        readings = engine.step()
        found["loss"].append(readings.loss.tolist())
        found["norm"].append(readings.norm.tolist())
    return found


def main() -> None:
    """Write the file again."""
    found: Recorded = {f"{task} {recipe}": first_steps(task, recipe) for task, recipe in CASES}
    lines = [f"{json.dumps(key)}: {json.dumps(found[key])}" for key in found]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
