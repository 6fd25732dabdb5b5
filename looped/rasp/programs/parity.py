"""Parity: whether the number of ones is odd.

    question   1 1 0 1 > # # #
    answer     * * * * 1 # # #

The bits travel to the right, one position per step, and every position keeps the exclusive or of all that has
come by. After n steps the n bits have passed the end-of-question token, one after the other, so the parity
stands there. Zeros come in behind them: further steps change nothing.
"""

from looped.rasp import Seq, full, has_seen, mask, shift_right, where
from looped.rasp.program import Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(("0", "1"))
EOQ, EOS = VOCAB.eoq, VOCAB.eos


def prepare(row: Seq) -> State:
    """The bits of the question, zeros after it, and an empty answer."""
    return {"seq": mask(row, ~has_seen(row, full(row, EOQ))), "answer": full(row, 0)}


def step(seq: Seq, answer: Seq) -> State:
    """Every bit moves on by one and is taken into the answer where it arrives."""
    seq = shift_right(seq, 1)
    return {"seq": seq, "answer": answer ^ seq}


def readout(answer: Seq, row: Seq) -> Seq:
    """The answer up to the end-of-question token, `#` after it."""
    after = shift_right(has_seen(row, full(row, EOQ)), 1)
    return where(after, EOS, answer)


PARITY = Program(
    name="parity",
    vocab=VOCAB,
    prepare=prepare,
    loops=(Loop(step, times=lambda n: n),),
    readout=readout,
    answer_size=lambda n: 1,
    example="1 1 0 1",
)
