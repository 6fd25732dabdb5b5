"""The length ladder: how far past its training length a model is exact, measured without mercy.

    looped bench ladder runs/copy-fop-loop-adaptive-long                 climbs, prints, keeps results/ladder.json
    looped bench ladder --table results/ladder.json                      the table of the README from that file alone
    python -m looped.bench ladder runs/… --limit 500                     the same with torch and little else

A ladder is a row of lengths. **L99** is the longest of them such that at it *and at every shorter one* each seed has
at least 99 % of its whole answers right; L999 asks for 99.9 %. Both are told for the oracle's step count and for each
rule by which the model stops itself, and twice: on uniform inputs, and with the worst of all input families deciding.

    length         20      30      60      100
    seed 0      1.000   1.000    .995    1.000
    seed 1      1.000    .998    .970     .999       L99 = 30 (seed 1 ended it at 60), L999 = 20

    reach.py       L99 and L999 from measured rows
    rung.py        one length and one input family of one model: rows, drift, overrun
    tally.py       the problems of a rung, a handful at a time: a long one can be left off and gone on with
    watch.py       several stopping rules over one pass through the loop
    contenders.py  whose ladder it is: run folders and seed files into models of all their seeds
    record.py      the file: measured once, kept, never measured again
    climb.py       from rung to rung, and when to give up
    table.py       what a person reads, and the README's table
    words.py       the words of the command line, for `looped bench ladder` and for bare machines
"""

from __future__ import annotations

LENGTHS = (20, 30, 40, 60, 100, 200, 500, 1000)  # the training and the paper's length are added
SAMPLES = 2000  # problems a length and family
STEP_SAMPLES = 500  # problems a length that run on to 3·T, for overrun and drift
FLOOR = 0.6  # nobody above it: far below exact, and above what a guess gives on one bit
LEVELS = {"L99": 990, "L999": 999}  # right answers of a thousand, at least
ALL = "all"  # every input family of the task
