"""From a question to a model that outgrows its training: seven cells, about twenty seconds on one CPU core.

Run it as a script, `python docs/tutorial.py`, or cell by cell in an editor that knows `# %%`. A test runs it as it
stands.
"""

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

import looped
from looped import tasks
from looped.evaluation import rollout, stopping
from looped.evaluation.measure import length_grid, measure
from looped.rasp import programs
from looped.rasp.trace import trace
from looped.training import recipes
from looped.training.progress import Listener
from looped.training.trainer import train

# %% A task: questions, answers, and how many steps lie between
copy = tasks.get("copy")
question = copy.parse("1011")
print(copy.summary, "|", "".join(copy.solve(question)), "| T =", copy.steps_of(question))
assert copy.solve(question) == question

# %% A program: the step that, repeated T times, gives the answer
program = programs.get("copy")
print(trace(program, program.row(question)).table())

# %% The same program as weights of a looped Transformer: nothing is learned, everything is exact
exact = looped.load("copy-compiled")
print(exact)
print(exact.solve(["1011", "0" * 50, "01" * 100]))
for step in exact.steps("1011"):
    print(step)

# %% A model that has to learn its step: trained on up to 10 bits, about ten seconds
recipe = recipes.make("copy", "fop-loop-adaptive", "quick", seeds=(0,))
recipe = replace(recipe, steps=400, interval=30, noise=0.2)  # less of `quick`, with more noise
folder = Path(tempfile.mkdtemp()) / "copy"
summary = train(recipe, folder, "cpu", listeners=[Listener()])
print(f"{summary.ending} after {summary.step} gradient steps")

# %% How far does it hold? Ask at one, two and five times its training length
learned = looped.load(folder)
rows = measure(learned.subject, [10, 20, 50], samples=50, seed=1)
for row in rows:
    print(f"length {row.length}: {row.accuracy:.2f} right after {row.mean_steps:.0f} steps")
assert rows[0].accuracy > 0.9, "it should at least know its training lengths"

# %% When to stop, if nobody tells T? Every rule is a function of one grid of steps
unrolled = length_grid(learned.subject, 10, 50, seed=1, max_steps=20)
for name in ("oracle", "confidence", "threshold", "converged"):
    steps = stopping.get(name).steps(unrolled)
    right = rollout.correct_at(unrolled, steps).float().mean()
    print(f"{name:<11} mean step {steps.float().mean():5.2f}  right {right:.2f}")

# %% Watch it think: the decoded row after each step
for step in learned.steps("110"):
    print(step)
