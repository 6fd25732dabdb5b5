"""A question in, an answer out: models from names and files, run until a stopping rule says enough.

>>> model = load("addition-compiled")
>>> model.solve("1011+0110")
1011+0110 → 10001 (right; 5 steps by halt; confidence 1.0000)

`load` takes the name of a shipped model, a run's folder, one seed's checkpoint or a compiled model's file. Knows
files, models and tasks; nothing of how a model came to be.
"""

from looped.solve.solver import Answer, Answers, Solver, Step, StepSequence, answer
from looped.solve.sources import load

__all__ = ["Answer", "Answers", "Solver", "Step", "StepSequence", "answer", "load"]
