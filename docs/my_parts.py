from dataclasses import replace

from looped.evaluation.stopping import OnlineRule
from looped.methods import Method
from looped.training import recipes

eight = Method("fop-loop-8", "fop", loops=8)  # a method: eight loops, whatever the problem


class Sure(OnlineRule):  # a stopping rule: the answer is sure and has stood for a while
    def __init__(self, patience=1):
        self.patience = patience

    def stops(self, now):
        return (now.surprise < 0.01) & (now.unchanged >= self.patience)


def tiny(task, method, seeds):  # a recipe: `quick` in a few steps
    return replace(recipes.quick(task, method, seeds), steps=40, interval=4)
