"""The length sweep: how far past its training length a model is exact. `looped bench ladder` runs it.

A sweep measures accuracy at a row of lengths. **L99** is the longest of them such that at it *and at every shorter one*
each seed answers at least 99 % of the problems exactly; L999 asks for 99.9 %. Both are given for the oracle's step
count and for each rule by which the model stops itself, and twice: on uniform inputs, and for the worst input
distribution.

    length         20      30      60      100
    seed 0      1.000   1.000    .995    1.000
    seed 1      1.000    .998    .970     .999       L99 = 30 (seed 1 fails at 60), L999 = 20

    measure.py   one length and one input distribution of one model; can be interrupted and resumed
    record.py    the result file, which is never measured twice, and L99 and L999 from its rows
    sweep.py     which models, in which order, and when to give up
"""

from __future__ import annotations

LENGTHS = (20, 30, 40, 60, 100, 200, 500, 1000)  # the training and the paper's length are added
SAMPLES = 2000  # problems per length and input distribution
STEP_SAMPLES = 500  # problems per length that run on to 3·T, for overrun and drift
FLOOR = 0.6  # no seed above it: far below exact, and above what guessing one bit gives
LEVELS = {"L99": 990, "L999": 999}  # right answers of a thousand, at least
ALL = "all"  # every input distribution of the task
