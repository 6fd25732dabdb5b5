"""Addition: two binary numbers of n digits, the sum in n + 1.

    question   1 0 + 1 1 > # # # #
    answer     * * * * * 1 0 1 # #

First the digits of the first number are put under those of the second (the k-th digit finds the k-th), with a
zero before them for the carry out. Then, n + 1 times: every place writes down the exclusive or of its digit
and its carry, the digits move one position to the right, and the carries stay. So each carry comes to lie
under the next higher digit, where it belongs. After n + 1 steps no carry can be left, and the sum has moved
on by n + 1 positions, which takes its first digit to the end-of-question token.

    1 0 + 1 1      digits  ·  ·  0  1  1  #  #  #         after 1 step   ·  ·  ·  0  0  1  #  #
                   carry   0  0  0  1  0  0  0  0                        0  0  0  1  0  0  0  0

The blanks that come in from the left tell when the sum has arrived, as in copy, and then it stays.
(The paper's listing has no such sign: it is right after n + 1 steps, wrong after n and after n + 2.)
"""

from looped.rasp import Seq, cumsum, equals, full, has_seen, kqv, mask, seen, shift_right, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(("0", "1", "+"))
PLUS = VOCAB.id("+")
EOQ, EOS = VOCAB.eoq, VOCAB.eos


def prepare(row: Seq) -> State:
    """The second number's digits with a zero in the place of the sign, and under them the first number's."""
    past_plus = has_seen(row, full(row, PLUS))
    past_question = has_seen(row, full(row, EOQ))
    in_first = ~past_plus
    in_second = past_plus & ~past_question & (row != PLUS)
    # The k-th digit of the second number looks for the k-th of the first; 0 is no digit's number.
    rank_first = mask(cumsum(in_first), in_first)
    rank_second = mask(cumsum(in_second), in_second)
    carry = mask(kqv(rank_first, rank_second, row, equals), in_second)
    digits = where(in_second, row, where(past_question, EOS, BLANK))
    return {"digits": where(row == PLUS, 0, digits), "carry": carry}


def step(digits: Seq, carry: Seq, row: Seq) -> State:
    """Adds every carry to its digit and moves the digits on, unless the sum has arrived."""
    arrived = seen((row == EOQ) & (shift_right(digits, 1, BLANK) == BLANK))
    moved = shift_right(where(carry == 1, 1 - digits, digits), 1, BLANK)
    return {"digits": where(arrived, digits, moved), "carry": carry & (digits == 1)}


def readout(digits: Seq) -> Seq:
    """The digits as they stand; blanks lie before the end of the question, where nothing is read."""
    return where(digits == BLANK, EOS, digits)


ADDITION = Program(
    name="addition",
    vocab=VOCAB,
    prepare=prepare,
    loops=(Loop(step, times=lambda n, m: n + 1),),
    readout=readout,
    answer_size=lambda n, m: n + 1,
    example="1 0 + 1 1",
    separators=("+",),
    tokens=("digits",),
)
