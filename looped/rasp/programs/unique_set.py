"""Unique set: the different symbols, in the order in which they first occur.

    question   1 4 2 2 4 3 > # # # # #
    answer     * * * * * * 1 4 2 3 # #

At the start every symbol that stood before becomes a hole. Then, n times: while there is a hole, all that
lies left of the first one moves to the right by one position and so closes it; all right of it waits. When
no hole is left, everything moves, as in copy. Each step either closes a hole or moves the rest: with d holes
that is d steps and n - d steps, and then the first symbol stands at the end-of-question token, the others
close behind. From there on nothing moves any more, by the same sign as in copy.

    1 4 4 > #  →  1 4 ○ # #  →  · 1 4 # #  →  · · 1 4 #  →  · · · 1 4
"""

from looped.rasp import Seq, full, has_seen, seen, shift_right, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(tuple(str(i) for i in range(50)))
EOQ, EOS = VOCAB.eoq, VOCAB.eos
HOLE = -2


def prepare(row: Seq) -> State:
    """The question with holes for what stood before, and `#` from its end on."""
    again = has_seen(shift_right(row, 1, BLANK), row)
    return {"seq": where(has_seen(row, full(row, EOQ)), EOS, where(again, HOLE, row))}


def step(seq: Seq, row: Seq) -> State:
    """Closes the first hole, or moves everything on by one, unless all has arrived."""
    incoming = shift_right(seq, 1, BLANK)
    waits = shift_right(seen(seq == HOLE), 1)
    arrived = seen((row == EOQ) & (incoming == BLANK))
    return {"seq": where(waits | arrived, seq, incoming)}


def readout(seq: Seq) -> Seq:
    """The row as it stands; blanks lie before the end of the question, where nothing is read."""
    return where(seq < 0, EOS, seq)


UNIQUE_SET = Program(
    name="unique_set",
    vocab=VOCAB,
    prepare=prepare,
    loops=(Loop(step, times=lambda n: n),),
    readout=readout,
    answer_size=lambda n: n,
    example="1 4 2 2 4 3",
    tokens=("seq",),
)
