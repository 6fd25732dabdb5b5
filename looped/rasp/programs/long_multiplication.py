"""Long multiplication: two binary numbers of any lengths, the product least significant digit first.

    question   1 1 0 × 1 0 1 > # # # # # #
    answer     * * * * * * * 0 1 1 1 1 0 #      6 × 5 = 30

Three loops follow each other, each as long as another part of the problem asks for:

1. turn (n2 steps). The second factor is turned round into the places of the answer. It moves two positions a
   step, so that its digits meet the places from the end-of-question token on in the order last to first.
2. collect (n1 steps). The digits of the first factor pass the sign ×, last one first. Each that is a one adds
   the turned factor to the sum; then that factor moves on by one place. Nothing is carried through: of the
   three digits in a place (sum, carry, factor) their exclusive or stays, their majority is the next carry.
3. carry (n1 + n2 steps). Sum and carry are added in the same way until no carry is left.

No single loop will do with these steps: what `collect` does at its first step needs the whole of `turn`.
"""

from looped.rasp import Seq, cumsum, full, has_seen, seen, shift_right, where
from looped.rasp.program import BLANK, Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(("0", "1", "×"))
TIMES = VOCAB.id("×")
EOQ, EOS = VOCAB.eoq, VOCAB.eos


def prepare(row: Seq) -> State:
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


def readout(sum: Seq, row: Seq) -> Seq:
    """As many places as both factors have digits, `#` after them."""
    after_question = has_seen(row, full(row, EOQ))
    digits = cumsum(~after_question & (row != TIMES))
    return where(cumsum(after_question) <= digits, sum, EOS)


LONG_MULTIPLICATION = Program(
    name="long_multiplication",
    vocab=VOCAB,
    prepare=prepare,
    loops=(
        Loop(turn, times=lambda n1, n2: n2),
        Loop(collect, times=lambda n1, n2: n1),
        Loop(carry_on, times=lambda n1, n2: n1 + n2),
    ),
    readout=readout,
    answer_size=lambda n1, n2: n1 + n2,
    example="1 1 0 × 1 0 1",
    separators=("×",),
)
