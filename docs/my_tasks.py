import torch

from looped.tasks import Problems, Task
from looped.tasks.distributions import filled, uniform


class DigitSum(Task):  # the least that a task says: its symbols, and the answer to a question
    """The sum of the digits 0, 1 and 2 modulo 3."""

    symbols = "012"

    def answer_size(self, length):
        return 1  # tokens of the longest answer; unless said, as many as the question has

    def solve(self, question):
        return str(sum(map(int, question)) % 3)


class DrawnDigitSum(DigitSum):  # the same with a sampler on tensors, which the fast engine needs on a GPU
    """The sum of the digits 0, 1 and 2 modulo 3, drawn as whole batches."""

    def sample(self, lengths, generator, *, max_length, variants=None, family="uniform"):
        self.check_family(family)
        digits = uniform(len(lengths), max_length, generator, symbols=3)
        return Problems(
            question=filled(digits, lengths, self.vocab.eos),
            question_length=lengths,
            answer=filled(digits, lengths, 0).sum(1, keepdim=True) % 3,
            answer_length=torch.ones_like(lengths),
            length=lengths,
            steps=self.steps(lengths, torch.zeros_like(lengths)),
        )
