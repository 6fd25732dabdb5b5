"""Draws what a trained model reads out after every loop step: the picture of docs/chomsky.md.

$ python docs/pictures/step_by_step.py runs/reverse_string-fop-loop-adaptive-chomsky reverse_string 0111010010

MODEL is a run's folder (its first seed) or a seed's file. Writes reverse_string-trained.svg beside itself. Each line is
a loop step, each column a place of the answer, the last one the `#` after it. A cell holds the token that is read out
there, and is the darker the surer the model is of the right one; wrong tokens are grey. The arrow: where it halts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from looped import batches, tasks
from looped.evaluation import loading
from looped.evaluation.rollout import Rollout
from looped.figures import FAINT, INK, STYLE, save
from looped.tasks.base import Task
from looped.vocab import Vocab

HERE = Path(__file__).parent
BLUE = (0.0, 0.447, 0.698)  # the first of the house colours
SURE = 0.5  # halted
AFTER = 2  # steps shown past the last one that was asked for


@torch.inference_mode()
def read_outs(model: Path, task: Task, question: str) -> tuple[list[list[tuple[int, float]]], list[int], int]:
    """Token said and probability of the right one, step by place; the right tokens; the step at which it halts."""
    subject = loading.load(model, torch.device("cpu")).subject
    problems = task.problems([task.parse(question)])
    batch = batches.lay_out(problems, task.vocab, int(problems.question_length + problems.answer_length) + 1)
    steps = int(subject.steps(problems.steps, problems.question_length))
    roll = Rollout(subject.model, subject.weights, batch)
    right = batch.targets[0, roll.start :]
    said, halted = [], 0
    for step in range(1, steps + AFTER + 1):
        state = roll.advance()[:1, :, roll.start :].contiguous()
        shares = subject.model.readout(subject.weights, state)[0, 0].float().softmax(-1)
        said.append(
            list(zip(shares.argmax(-1).tolist(), shares[range(len(right)), right].tolist(), strict=True))
        )
        if not halted and roll.halted is not None and float(roll.halted[0, 0]) > SURE:
            halted = step
    return said, right.tolist(), halted


def drawn(
    said: list[list[tuple[int, float]]], right: list[int], halted: int, vocab: Vocab, question: list[str]
) -> Figure:
    """The grid."""
    with matplotlib.rc_context(fname=STYLE):
        wide, tall = len(right), len(said)
        figure = Figure(figsize=(0.27 * (wide + 6), 0.25 * (tall + 2)))
        panel = figure.subplots()
        panel.set(xlim=(-4, wide + 2.4), ylim=(tall + 0.2, -1.5), aspect="equal")
        panel.axis("off")
        panel.text(-0.3, -0.8, "question", fontsize=7, ha="right", va="center", color=FAINT)
        for place, token in enumerate(question):
            panel.text(place + 0.5, -0.8, token, fontsize=8, ha="center", va="center", color=INK)
        for step, line in enumerate(said, 1):
            panel.text(-0.3, step - 0.5, f"step {step}", fontsize=6.5, ha="right", va="center", color=FAINT)
            for place, ((token, share), wanted) in enumerate(zip(line, right, strict=True)):
                face = tuple(1 - 0.55 * share * (1 - part) for part in BLUE)
                corner = (place, step - 1)
                panel.add_patch(Rectangle(corner, 1, 1, facecolor=face, edgecolor="#bbbbbb", linewidth=0.6))
                ink = INK if token == wanted else "#aaaaaa"
                name = vocab.decode([token])[0]
                panel.text(place + 0.5, step - 0.48, name, fontsize=7.5, ha="center", va="center", color=ink)
        if halted:
            panel.text(wide + 0.2, halted - 0.5, "← halts", fontsize=7, va="center", color=INK)
    return figure


def main(model: str, name: str, question: str) -> None:
    """Asks the model and writes the picture."""
    task = tasks.get(name)
    said, right, halted = read_outs(Path(model), task, question)
    figure = drawn(said, right, halted, task.vocab, task.parse(question))
    save(figure, HERE / f"{name}-trained.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
