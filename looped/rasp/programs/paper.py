"""The programs of the paper's six tasks, and long multiplication.

Four work on one string of symbols and loop one step n times; three on two binary numbers with a sign between them.
The table at the end has all that a `Program` says.
"""

from looped.rasp import Seq, cumsum, equals, full, has_seen, kqv, mask, seen, shift_right, tok_map, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

BITS = Vocab(("0", "1"))
EOQ, EOS = BITS.eoq, BITS.eos
SUMS, PRODUCTS = Vocab(("0", "1", "+")), Vocab(("0", "1", "×"))
PLUS, TIMES = SUMS.id("+"), PRODUCTS.id("×")
SIGNED_EOQ, SIGNED_EOS = SUMS.eoq, SUMS.eos  # both vocabularies have the same


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
    past_question = has_seen(row, full(row, SIGNED_EOQ))
    in_first = ~past_plus
    in_second = past_plus & ~past_question & (row != PLUS)
    # The k-th digit of the second number looks for the k-th of the first; 0 is no digit's number.
    rank_first = mask(cumsum(in_first), in_first)
    rank_second = mask(cumsum(in_second), in_second)
    carry = mask(kqv(rank_first, rank_second, row, equals), in_second)
    digits = where(in_second, row, where(past_question, SIGNED_EOS, BLANK))
    return {"digits": where(row == PLUS, 0, digits), "carry": carry}


def step_addition(digits: Seq, carry: Seq, row: Seq) -> State:
    """Adds every carry to its digit and moves the digits on, unless the sum has arrived."""
    arrived = seen((row == SIGNED_EOQ) & (shift_right(digits, 1, BLANK) == BLANK))
    moved = shift_right(where(carry == 1, 1 - digits, digits), 1, BLANK)
    return {"digits": where(arrived, digits, moved), "carry": carry & (digits == 1)}


def read_addition(digits: Seq) -> Seq:
    """The digits as they stand; blanks lie before the end of the question, where nothing is read."""
    return where(digits == BLANK, SIGNED_EOS, digits)


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
    in_second = past_times & ~has_seen(row, full(row, SIGNED_EOQ)) & (row != TIMES)
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
    next_place = (total == BLANK) & ((row == SIGNED_EOQ) | (before != BLANK))
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
    ending = where(first_after, carry % 2, where(second_after, carry_of_carry, SIGNED_EOS))
    return where(written, total % 2, ending)


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
    in_second = past_times & ~has_seen(row, full(row, SIGNED_EOQ)) & (row != TIMES)
    return {
        "first": where(past_times, 0, row),
        "second": shift_right(where(in_second, row, BLANK), 1, BLANK),
        "turned": full(row, BLANK),
        "sum": full(row, 0),
        "carry": full(row, 0),
    }


def turn(second: Seq, turned: Seq, row: Seq) -> State:
    """The next digit from the right is put in the next place from the left."""
    next_place = (turned == BLANK) & ((row == SIGNED_EOQ) | (shift_right(turned, 1, BLANK) != BLANK))
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
    after_question = has_seen(row, full(row, SIGNED_EOQ))
    digits = cumsum(~after_question & (row != TIMES))
    return where(cumsum(after_question) <= digits, sum, SIGNED_EOS)


# --- the programs ----------------------------------------------------------------------------------------------
def one(n: int) -> int:
    """One step, or an answer of one token."""
    return 1


def same(n: int) -> int:
    """As many steps, or as long an answer, as the question has tokens."""
    return n


# name, vocabulary, prepare, loops with their T, read-out, size of the answer, example
PROGRAMS = (
    Program("parity", BITS, prepare_parity, (Loop(step_parity, same),), read_parity, one, "1 1 0 1"),
    Program("copy", BITS, prepare_copy, (Loop(step_copy, same),), read_copy, same, "1 0 1", tokens=("seq",)),
    Program(
        "addition", SUMS, prepare_addition, (Loop(step_addition, lambda n, m: n + 1),), read_addition,
        lambda n, m: n + 1, "1 0 + 1 1", separators=("+",), tokens=("digits",),
    ),
    Program(
        "binary_sum", BITS, prepare_sum, (Loop(step_sum, same),), read_sum, lambda n: n.bit_length(),
        "1 0 1 1", tokens=("count",),
    ),
    Program(
        "multiplication", PRODUCTS, prepare_product, (Loop(step_product, lambda n1, n2: n1 * n2),),
        read_product, lambda n1, n2: n1 + n2, "1 1 × 1 0 1", separators=("×",),
    ),
    Program(
        "unique_set", SYMBOLS, prepare_set, (Loop(step_set, same),), read_set, same, "1 4 2 2 4 3",
        tokens=("seq",),
    ),
    Program(
        "long_multiplication", PRODUCTS, prepare_long, (
            Loop(turn, lambda n1, n2: n2),
            Loop(collect, lambda n1, n2: n1),
            Loop(carry_on, lambda n1, n2: n1 + n2),
        ),
        read_long, lambda n1, n2: n1 + n2, "1 1 0 × 1 0 1", separators=("×",),
    ),
)  # fmt: skip
