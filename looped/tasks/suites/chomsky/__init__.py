"""Fifteen tasks by the Chomsky hierarchy: Delétang et al., Neural Networks and the Chomsky Hierarchy (ICLR 2023).

Models are trained on questions of 1 to 40 tokens and tested on 41 to 500. n is the number of tokens of a question.
Definitions, order of operands and what happens at lengths too short for a problem follow the public code:

| what is open             | here, as there                                                                       |
|--------------------------|--------------------------------------------------------------------------------------|
| modular arithmetic, even n | n - 1 tokens                                                                       |
| brackets                 | lengths 1 to 4 are d, -d, (d), (-d); longer ones (L+R) or (L-R), |L| drawn evenly       |
| solve equation           | x stands for the digit at or after an evenly drawn place; n < 3: only zeros, answer 0  |
| stack manipulation       | 1 to n - 1 bits, drawn evenly, then actions; n = 1: one bit                            |
| missing duplicate        | odd n ends with the filler `-`; n = 1: the question and the answer are 1               |
| odds first               | the second, fourth, … symbol, then the first, third, …                                 |
| addition, multiplication | the sign's place is drawn evenly, numbers are not 0, the answer has no leading zeros    |
| the same, n < 3          | one number and no sign: the sum is the number, the product `0` (n = 1: nothing)         |
| square root              | numbers are not 0                                                                    |

Where an answer's length tells something (stack, addition, multiplication) the public code ends it with a token of its
own and scores it; our `#` is that token (`ChomskyTask.ended`).
"""

from __future__ import annotations

from looped.tasks.base import Task
from looped.tasks.suites.chomsky import context_free, context_sensitive, regular
from looped.tasks.suites.chomsky.regular import ChomskyTask

__all__ = ["TASKS", "ChomskyTask"]

TASKS: dict[str, Task] = {
    kind.name: kind()
    for kind in (
        regular.EvenPairs, regular.ModularArithmetic, regular.ParityCheck, regular.CycleNavigation,
        context_free.StackManipulation, context_free.ReverseString,
        context_free.ModularArithmeticBrackets, context_free.SolveEquation,
        context_sensitive.DuplicateString, context_sensitive.MissingDuplicate, context_sensitive.OddsFirst,
        context_sensitive.BinaryAddition, context_sensitive.BinaryMultiplication,
        context_sensitive.SquareRoot, context_sensitive.BucketSort,
    )
}  # fmt: skip
