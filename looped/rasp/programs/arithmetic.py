"""Programs on two binary numbers with a sign between them: addition and two multiplications."""

from looped.rasp import Seq, cumsum, equals, full, has_seen, kqv, mask, seen, shift_right, tok_map, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

SUMS, PRODUCTS = Vocab(("0", "1", "+")), Vocab(("0", "1", "×"))
PLUS, TIMES = SUMS.id("+"), PRODUCTS.id("×")
EOQ, EOS = SUMS.eoq, SUMS.eos  # both vocabularies have the same


# --- addition ------------------------------------------------------------------------------------------------
#
#     question   1 0 + 1 1 > # # # #
#     answer     * * * * * 1 0 1 # #
#
# First the digits of the first number are put under those of the second (the k-th digit finds the k-th), with a
# zero before them for the carry out. Then, n + 1 times: every place writes down the exclusive or of its digit
# and its carry, the digits move one position to the right, and the carries stay. So each carry comes to lie
# under the next higher digit, where it belongs. After n + 1 steps no carry can be left, and the sum has moved
# on by n + 1 positions, which takes its first digit to the end-of-question token.
#
#     1 0 + 1 1      digits  ·  ·  0  1  1  #  #  #         after 1 step   ·  ·  ·  0  0  1  #  #
#                    carry   0  0  0  1  0  0  0  0                        0  0  0  1  0  0  0  0
#
# The blanks that come in from the left tell when the sum has arrived, as in copy, and then it stays.
# (The paper's listing has no such sign: it is right after n + 1 steps, wrong after n and after n + 2.)
def prepare_addition(row: Seq) -> State:
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


def step_addition(digits: Seq, carry: Seq, row: Seq) -> State:
    """Adds every carry to its digit and moves the digits on, unless the sum has arrived."""
    arrived = seen((row == EOQ) & (shift_right(digits, 1, BLANK) == BLANK))
    moved = shift_right(where(carry == 1, 1 - digits, digits), 1, BLANK)
    return {"digits": where(arrived, digits, moved), "carry": carry & (digits == 1)}


def read_addition(digits: Seq) -> Seq:
    """The digits as they stand; blanks lie before the end of the question, where nothing is read."""
    return where(digits == BLANK, EOS, digits)


ADDITION = Program(
    name="addition",
    vocab=SUMS,
    prepare=prepare_addition,
    loops=(Loop(step_addition, times=lambda n, m: n + 1),),
    readout=read_addition,
    answer_size=lambda n, m: n + 1,
    example="1 0 + 1 1",
    separators=("+",),
    tokens=("digits",),
)


# --- multiplication by one or two digits ---------------------------------------------------------------------
#
#     question   1 1 × 1 1 0 > # # # # #
#     answer     * * * * * * 0 1 0 0 1 #      3 × 6 = 18
#
# As by hand, from the right: take the next digit of the second factor, times the first factor (0 to 3), plus
# what is carried; note the last binary digit, carry the rest. The next digit to take stands one further left
# each time and the next to write one further right, so the second factor moves two positions a step and each
# digit meets its place: the first place without a sum whose left neighbour has one, beginning at the
# end-of-question token. A place keeps the whole sum (0 to 5), from which its neighbour reads the carry. When all
# digits are written, the last carry makes the last one or two digits (as many as the first factor has).
#
# That takes n steps; the other n of a two-digit factor's 2 · n find no digit to take, and change nothing.
def carried(total: int) -> int:
    """What a place's sum hands on."""
    return 0 if total == BLANK else total // 2


def prepare_product(row: Seq) -> State:
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


def step_product(digit: Seq, total: Seq, factor: Seq, row: Seq) -> State:
    """One digit is multiplied where its place is, and the second factor moves on by two."""
    before = shift_right(total, 1, BLANK)
    next_place = (total == BLANK) & ((row == EOQ) | (before != BLANK))
    value = where(digit == 1, factor, 0) + tok_map(before, carried)
    total = where(next_place & (digit != BLANK), value, total)
    return {"digit": shift_right(digit, 2, BLANK), "total": total}


def read_product(total: Seq, row: Seq) -> Seq:
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
    vocab=PRODUCTS,
    prepare=prepare_product,
    loops=(Loop(step_product, times=lambda n1, n2: n1 * n2),),
    readout=read_product,
    answer_size=lambda n1, n2: n1 + n2,
    example="1 1 × 1 0 1",
    separators=("×",),
)


# --- multiplication of two long numbers ----------------------------------------------------------------------
#
#     question   1 1 0 × 1 0 1 > # # # # # #
#     answer     * * * * * * * 0 1 1 1 1 0 #      6 × 5 = 30
#
# Three loops follow each other, each as long as another part of the problem asks for:
#
# 1. turn (n2 steps). The second factor is turned round into the places of the answer. It moves two positions a
#    step, so that its digits meet the places from the end-of-question token on in the order last to first.
# 2. collect (n1 steps). The digits of the first factor pass the sign ×, last one first. Each that is a one adds
#    the turned factor to the sum; then that factor moves on by one place. Nothing is carried through: of the
#    three digits in a place (sum, carry, factor) their exclusive or stays, their majority is the next carry.
# 3. carry (n1 + n2 steps). Sum and carry are added in the same way until no carry is left.
#
# No single loop will do with these steps: what `collect` does at its first step needs the whole of `turn`.
def prepare_long(row: Seq) -> State:
    """Both factors on their way, and empty places."""
    past_times = has_seen(row, full(row, TIMES))
    in_second = past_times & ~has_seen(row, full(row, EOQ)) & (row != TIMES)
    return {
        "first": where(past_times, 0, row),
        "second": shift_right(where(in_second, row, BLANK), 1, BLANK),
        "turned": full(row, BLANK),
        "sum": full(row, 0),
        "carry": full(row, 0),
    }


def turn(second: Seq, turned: Seq, row: Seq) -> State:
    """The next digit from the right is put in the next place from the left."""
    next_place = (turned == BLANK) & ((row == EOQ) | (shift_right(turned, 1, BLANK) != BLANK))
    return {"turned": where(next_place, second, turned), "second": shift_right(second, 2, BLANK)}


def collect(first: Seq, turned: Seq, sum: Seq, carry: Seq, row: Seq) -> State:
    """Adds the turned factor if the digit that reaches the sign is a one, and moves it up a place."""
    first = shift_right(first, 1)
    wanted = seen((row == TIMES) & (first == 1))
    addend = where(wanted & (turned == 1), 1, 0)
    majority = (sum & carry) | (sum & addend) | (carry & addend)
    return {
        "first": first,
        "turned": shift_right(turned, 1, BLANK),
        "sum": sum ^ carry ^ addend,
        "carry": shift_right(majority, 1),
    }


def carry_on(sum: Seq, carry: Seq) -> State:
    """Adds the carries, which makes new ones one place up."""
    return {"sum": sum ^ carry, "carry": shift_right(sum & carry, 1)}


def read_long(sum: Seq, row: Seq) -> Seq:
    """As many places as both factors have digits, `#` after them."""
    after_question = has_seen(row, full(row, EOQ))
    digits = cumsum(~after_question & (row != TIMES))
    return where(cumsum(after_question) <= digits, sum, EOS)


LONG_MULTIPLICATION = Program(
    name="long_multiplication",
    vocab=PRODUCTS,
    prepare=prepare_long,
    loops=(
        Loop(turn, times=lambda n1, n2: n2),
        Loop(collect, times=lambda n1, n2: n1),
        Loop(carry_on, times=lambda n1, n2: n1 + n2),
    ),
    readout=read_long,
    answer_size=lambda n1, n2: n1 + n2,
    example="1 1 0 × 1 0 1",
    separators=("×",),
)
