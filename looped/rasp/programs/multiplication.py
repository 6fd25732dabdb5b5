"""Multiplication: one or two binary digits times n digits, the product least significant digit first.

    question   1 1 × 1 1 0 > # # # # #
    answer     * * * * * * 0 1 0 0 1 #      3 × 6 = 18

As by hand, from the right: take the next digit of the second factor, times the first factor (0 to 3), plus
what is carried; note the last binary digit, carry the rest. The next digit to take stands one further left
each time and the next to write one further right, so the second factor moves two positions a step and each
digit meets its place: the first place without a sum whose left neighbour has one, beginning at the
end-of-question token. A place keeps the whole sum (0 to 5), from which its neighbour reads the carry. When all
digits are written, the last carry makes the last one or two digits (as many as the first factor has).

That takes n steps; the other n of a two-digit factor's 2 · n find no digit to take, and change nothing.
"""

from looped.rasp import Seq, full, has_seen, seen, shift_right, tok_map, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(("0", "1", "×"))
TIMES = VOCAB.id("×")
EOQ, EOS = VOCAB.eoq, VOCAB.eos


def carried(total: int) -> int:
    """What a place's sum hands on."""
    return 0 if total == BLANK else total // 2


def prepare(row: Seq) -> State:
    """The second factor's digits, one position on; no sums yet; the first factor told to all after it."""
    past_times = has_seen(row, full(row, TIMES))
    in_second = past_times & ~has_seen(row, full(row, EOQ)) & (row != TIMES)
    low = seen((row == TIMES) & (shift_right(row, 1) == 1))
    high = seen((row == TIMES) & (shift_right(row, 2) == 1))
    return {
        "digit": shift_right(where(in_second, row, BLANK), 1, BLANK),
        "total": full(row, BLANK),
        "factor": low + 2 * high,
    }


def step(digit: Seq, total: Seq, factor: Seq, row: Seq) -> State:
    """One digit is multiplied where its place is, and the second factor moves on by two."""
    before = shift_right(total, 1, BLANK)
    next_place = (total == BLANK) & ((row == EOQ) | (before != BLANK))
    value = where(digit == 1, factor, 0) + tok_map(before, carried)
    total = where(next_place & (digit != BLANK), value, total)
    return {"digit": shift_right(digit, 2, BLANK), "total": total}


def readout(total: Seq, row: Seq) -> Seq:
    """The last digit of every sum, then the last carry: one digit, or two if the first factor has two."""
    written = total != BLANK
    carry = tok_map(shift_right(total, 1, BLANK), carried)
    carry_of_carry = tok_map(shift_right(total, 2, BLANK), lambda t: 0 if t == BLANK else t // 4)
    two_digits = seen((row == TIMES) & (shift_right(row, 2, BLANK) != BLANK))
    first_after = ~written & shift_right(written, 1)
    second_after = ~written & ~shift_right(written, 1) & shift_right(written, 2) & two_digits
    ending = where(first_after, carry % 2, where(second_after, carry_of_carry, EOS))
    return where(written, total % 2, ending)


MULTIPLICATION = Program(
    name="multiplication",
    vocab=VOCAB,
    prepare=prepare,
    loops=(Loop(step, times=lambda n1, n2: n1 * n2),),
    readout=readout,
    answer_size=lambda n1, n2: n1 + n2,
    example="1 1 × 1 0 1",
    separators=("×",),
)
