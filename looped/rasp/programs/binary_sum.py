"""Binary sum: how many ones there are, in binary, least significant digit first.

    question   1 0 1 1 > # # # #
    answer     * * * * 1 1 # # #      three ones

The bits travel to the right as in parity, and each is counted when it reaches the end-of-question token. The
counter stands at that token and right of it, one digit per position, at first all `#`: no digit yet. A one that
arrives flips every digit up to and including the first that is not a one (a carry runs through the ones in a
single step, since each position sees whether only ones lie before it), and a `#` flipped becomes a 1. A
counter only grows, so it never has a digit too many: no zeros at the end, and none at all for no ones.
Zeros come in behind the bits: further steps change nothing.
"""

from looped.rasp import Seq, full, has_seen, mask, seen, shift_right, where
from looped.rasp.program import Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(("0", "1"))
EOQ, EOS = VOCAB.eoq, VOCAB.eos


def prepare(row: Seq) -> State:
    """The bits of the question, zeros after it, and a counter without digits."""
    return {"seq": mask(row, ~has_seen(row, full(row, EOQ))), "count": full(row, EOS)}


def step(seq: Seq, count: Seq, row: Seq) -> State:
    """Every bit moves on by one, and the one that reaches the end-of-question token is counted."""
    seq = shift_right(seq, 1)
    one_arrives = seen((row == EOQ) & (seq == 1))
    in_counter = has_seen(row, full(row, EOQ))
    stopped = shift_right(seen(in_counter & (count != 1)), 1)
    return {"seq": seq, "count": where(one_arrives & ~stopped, where(count == 1, 0, 1), count)}


def readout(count: Seq) -> Seq:
    """The counter is the answer."""
    return count


BINARY_SUM = Program(
    name="binary_sum",
    vocab=VOCAB,
    prepare=prepare,
    loops=(Loop(step, times=lambda n: n),),
    readout=readout,
    answer_size=lambda n: n.bit_length(),
    example="1 0 1 1",
    tokens=("count",),
)
