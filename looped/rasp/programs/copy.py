"""Copy: the question again.

    question   1 0 1 > # # # #
    answer     * * * 1 0 1 # #

The whole row travels to the right, one position per step, with the end-of-question token written as `#`. After n
steps the first symbol stands where that token was and the others follow it. Blanks come in from the left; the
first one about to enter its place means that all symbols are past it, and from there on nothing
moves any more. So the answer holds, however many more steps are done.
"""

from looped.rasp import Seq, full, has_seen, seen, shift_right, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(("0", "1"))
EOQ, EOS = VOCAB.eoq, VOCAB.eos


def prepare(row: Seq) -> State:
    """The question, and `#` from its end on."""
    return {"seq": where(has_seen(row, full(row, EOQ)), EOS, row)}


def step(seq: Seq, row: Seq) -> State:
    """Everything moves on by one, unless all symbols have arrived."""
    incoming = shift_right(seq, 1, BLANK)
    arrived = seen((row == EOQ) & (incoming == BLANK))
    return {"seq": where(arrived, seq, incoming)}


def readout(seq: Seq) -> Seq:
    """The row as it stands; its blanks lie before the end of the question, where nothing is read."""
    return where(seq == BLANK, EOS, seq)


COPY = Program(
    name="copy",
    vocab=VOCAB,
    prepare=prepare,
    loops=(Loop(step, times=lambda n: n),),
    readout=readout,
    answer_size=lambda n: n,
    example="1 0 1",
    tokens=("seq",),
)
