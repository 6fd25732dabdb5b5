"""Programs on one string of symbols: parity, copy, binary sum and unique set. Each loops one step n times."""

from looped.rasp import Seq, full, has_seen, mask, seen, shift_right, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

BITS = Vocab(("0", "1"))
EOQ, EOS = BITS.eoq, BITS.eos


# --- parity --------------------------------------------------------------------------------------------------
#
#     question   1 1 0 1 > # # #
#     answer     * * * * 1 # # #
#
# The bits travel to the right, one position per step, and every position keeps the exclusive or of all that has
# come by. After n steps the n bits have passed the end-of-question token, one after the other, so the parity
# stands there. Zeros come in behind them: further steps change nothing.
def prepare_parity(row: Seq) -> State:
    """The bits of the question, zeros after it, and an empty answer."""
    return {"seq": mask(row, ~has_seen(row, full(row, EOQ))), "answer": full(row, 0)}


def step_parity(seq: Seq, answer: Seq) -> State:
    """Every bit moves on by one and is taken into the answer where it arrives."""
    seq = shift_right(seq, 1)
    return {"seq": seq, "answer": answer ^ seq}


def read_parity(answer: Seq, row: Seq) -> Seq:
    """The answer up to the end-of-question token, `#` after it."""
    after = shift_right(has_seen(row, full(row, EOQ)), 1)
    return where(after, EOS, answer)


PARITY = Program(
    name="parity",
    vocab=BITS,
    prepare=prepare_parity,
    loops=(Loop(step_parity, times=lambda n: n),),
    readout=read_parity,
    answer_size=lambda n: 1,
    example="1 1 0 1",
)


# --- copy ----------------------------------------------------------------------------------------------------
#
#     question   1 0 1 > # # # #
#     answer     * * * 1 0 1 # #
#
# The whole row travels to the right, one position per step, with the end-of-question token written as `#`. After n
# steps the first symbol stands where that token was and the others follow it. Blanks come in from the left; the
# first one about to enter its place means that all symbols are past it, and from there on nothing moves any more. So
# the answer holds, however many more steps are done.
def prepare_copy(row: Seq) -> State:
    """The question, and `#` from its end on."""
    return {"seq": where(has_seen(row, full(row, EOQ)), EOS, row)}


def step_copy(seq: Seq, row: Seq) -> State:
    """Everything moves on by one, unless all symbols have arrived."""
    incoming = shift_right(seq, 1, BLANK)
    arrived = seen((row == EOQ) & (incoming == BLANK))
    return {"seq": where(arrived, seq, incoming)}


def read_copy(seq: Seq) -> Seq:
    """The row as it stands; its blanks lie before the end of the question, where nothing is read."""
    return where(seq == BLANK, EOS, seq)


COPY = Program(
    name="copy",
    vocab=BITS,
    prepare=prepare_copy,
    loops=(Loop(step_copy, times=lambda n: n),),
    readout=read_copy,
    answer_size=lambda n: n,
    example="1 0 1",
    tokens=("seq",),
)


# --- binary sum ----------------------------------------------------------------------------------------------
#
#     question   1 0 1 1 > # # # #
#     answer     * * * * 1 1 # # #      three ones, least significant digit first
#
# The bits travel to the right as in parity, and each is counted when it reaches the end-of-question token. The
# counter stands at that token and right of it, one digit per position, at first all `#`: no digit yet. A one that
# arrives flips every digit up to and including the first that is not a one (a carry runs through the ones in a
# single step, since each position sees whether only ones lie before it), and a `#` flipped becomes a 1. A
# counter only grows, so it never has a digit too many: no zeros at the end, and none at all for no ones.
# Zeros come in behind the bits: further steps change nothing.
def prepare_sum(row: Seq) -> State:
    """The bits of the question, zeros after it, and a counter without digits."""
    return {"seq": mask(row, ~has_seen(row, full(row, EOQ))), "count": full(row, EOS)}


def step_sum(seq: Seq, count: Seq, row: Seq) -> State:
    """Every bit moves on by one, and the one that reaches the end-of-question token is counted."""
    seq = shift_right(seq, 1)
    one_arrives = seen((row == EOQ) & (seq == 1))
    in_counter = has_seen(row, full(row, EOQ))
    stopped = shift_right(seen(in_counter & (count != 1)), 1)
    return {"seq": seq, "count": where(one_arrives & ~stopped, where(count == 1, 0, 1), count)}


def read_sum(count: Seq) -> Seq:
    """The counter is the answer."""
    return count


BINARY_SUM = Program(
    name="binary_sum",
    vocab=BITS,
    prepare=prepare_sum,
    loops=(Loop(step_sum, times=lambda n: n),),
    readout=read_sum,
    answer_size=lambda n: n.bit_length(),
    example="1 0 1 1",
    tokens=("count",),
)


# --- unique set ----------------------------------------------------------------------------------------------
#
#     question   1 4 2 2 4 3 > # # # # #
#     answer     * * * * * * 1 4 2 3 # #
#
# At the start every symbol that stood before becomes a hole. Then, n times: while there is a hole, all that
# lies left of the first one moves to the right by one position and so closes it; all right of it waits. When
# no hole is left, everything moves, as in copy. Each step either closes a hole or moves the rest: with d holes
# that is d steps and n - d steps, and then the first symbol stands at the end-of-question token, the others
# close behind. From there on nothing moves any more, by the same sign as in copy.
#
#     1 4 4 > #  →  1 4 ○ # #  →  · 1 4 # #  →  · · 1 4 #  →  · · · 1 4
SYMBOLS = Vocab(tuple(str(i) for i in range(50)))
SET_EOQ, SET_EOS = SYMBOLS.eoq, SYMBOLS.eos
HOLE = -2


def prepare_set(row: Seq) -> State:
    """The question with holes for what stood before, and `#` from its end on."""
    again = has_seen(shift_right(row, 1, BLANK), row)
    return {"seq": where(has_seen(row, full(row, SET_EOQ)), SET_EOS, where(again, HOLE, row))}


def step_set(seq: Seq, row: Seq) -> State:
    """Closes the first hole, or moves everything on by one, unless all has arrived."""
    incoming = shift_right(seq, 1, BLANK)
    waits = shift_right(seen(seq == HOLE), 1)
    arrived = seen((row == SET_EOQ) & (incoming == BLANK))
    return {"seq": where(waits | arrived, seq, incoming)}


def read_set(seq: Seq) -> Seq:
    """The row as it stands; blanks lie before the end of the question, where nothing is read."""
    return where(seq < 0, SET_EOS, seq)


UNIQUE_SET = Program(
    name="unique_set",
    vocab=SYMBOLS,
    prepare=prepare_set,
    loops=(Loop(step_set, times=lambda n: n),),
    readout=read_set,
    answer_size=lambda n: n,
    example="1 4 2 2 4 3",
    tokens=("seq",),
)
