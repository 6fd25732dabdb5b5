# ruff: noqa: F403, F405 - a file of the language, which takes all of its names
"""Programs for fourteen of the fifteen tasks of the Chomsky suite; docs/chomsky.md says why the square root has none.

Three need one step and no more, multiplication takes 2n, all others n. `>` is the end-of-question token below, "its
place" the position where it stands: the first of the answer. The table at the end has all that a `Program` says.
"""

from looped.rasp import *
from looped.vocab import Vocab

BITS = Vocab(("0", "1"))
EOQ, EOS = BITS.eoq, BITS.eos


# --- even pairs: T = 1 ---------------------------------------------------------------------------------------
# The number of changes is odd exactly if the last bit is not the first.
def prepare_pairs(row: Seq) -> State:
    """No answer yet."""
    return {"answer": full(row, 0)}


def step_pairs(row: Seq) -> State:
    """Whether the first bit differs from the one before."""
    return {"answer": where(index_select(row, full(row, 0)) == shift_right(row, 1), 0, 1)}


def read_one_bit(answer: Seq, row: Seq) -> Seq:
    """The answer at the place of `>`, `#` after it."""
    return where(row == EOQ, answer, EOS)


# --- parity check: T = n -------------------------------------------------------------------------------------
# As `parity`: the bits travel to the right, and every position keeps the exclusive or of what came by.
def prepare_parity(row: Seq) -> State:
    """The bits of the question, zeros after it, and an empty answer."""
    return {"seq": mask(row, ~has_seen(row, full(row, EOQ))), "answer": full(row, 0)}


def step_parity(seq: Seq, answer: Seq) -> State:
    """Every bit moves on by one and is taken into the answer where it arrives."""
    seq = shift_right(seq, 1)
    return {"seq": seq, "answer": answer ^ seq}


# --- cycle navigation: T = n ---------------------------------------------------------------------------------
# The same with sums modulo 5: a move is 4 (left), 0 (stay) or 1 (right).
MOVES = Vocab(("0", "1", "2", "3", "4", "L", "S", "R"))
LEFT, RIGHT = MOVES.id("L"), MOVES.id("R")
MOVES_EOQ, MOVES_EOS = MOVES.eoq, MOVES.eos


def prepare_cycle(row: Seq) -> State:
    """The moves as numbers, and place 0."""
    return {"seq": tok_map(row, lambda v: 4 if v == LEFT else int(v == RIGHT)), "answer": full(row, 0)}


def step_cycle(seq: Seq, answer: Seq) -> State:
    """Every move goes on by one and is made where it arrives."""
    seq = shift_right(seq, 1)
    return {"seq": seq, "answer": (answer + seq) % 5}


def read_cycle(answer: Seq, row: Seq) -> Seq:
    """The place, `#` after it."""
    return where(row == MOVES_EOQ, answer, MOVES_EOS)


# --- modular arithmetic: T = n -------------------------------------------------------------------------------
# Tokens travel to the right and pass `>` from the last to the first. Digits are multiplied into `term`; a sign ends
# the term that stands after it in the question, which is added to `total` or taken from it. Ones come in behind.
SIGNS = Vocab(("0", "1", "2", "3", "4", "+", "-", "×"))
PLUS, MINUS = SIGNS.id("+"), SIGNS.id("-")
SIGNS_EOQ, SIGNS_EOS = SIGNS.eoq, SIGNS.eos


def times(term: int, token: int) -> int:
    """The term after a token."""
    return term * token % 5 if token < 5 else 1 if token in (PLUS, MINUS) else term


def share(term: int, token: int) -> int:
    """What a token adds to the total."""
    return term if token == PLUS else -term % 5 if token == MINUS else 0


def prepare_modular(row: Seq) -> State:
    """The question and ones after it; an empty product, an empty sum."""
    seq = where(has_seen(row, full(row, SIGNS_EOQ)), 1, row)
    return {"seq": seq, "term": full(row, 1), "total": full(row, 0)}


def step_modular(seq: Seq, term: Seq, total: Seq) -> State:
    """Everything moves on by one; the token that arrives is taken into account."""
    seq = shift_right(seq, 1, 1)
    return {
        "seq": seq,
        "term": seq_map(term, seq, times),
        "total": (total + seq_map(term, seq, share)) % 5,
    }


def read_modular(term: Seq, total: Seq, row: Seq) -> Seq:
    """The sum and the first term."""
    return where(row == SIGNS_EOQ, (total + term) % 5, SIGNS_EOS)


# --- reverse string: T = n -----------------------------------------------------------------------------------
# The bits move on by two and the first free place of the answer by one: each bit meets its place.
def prepare_reverse(row: Seq) -> State:
    """The bits, one position on already, and no answer yet."""
    bits = where(has_seen(row, full(row, EOQ)), BLANK, row)
    return {"seq": shift_right(bits, 1, BLANK), "answer": full(row, BLANK)}


def step_reverse(seq: Seq, answer: Seq, row: Seq) -> State:
    """The next bit from the right is put in the next place from the left."""
    next_place = (answer == BLANK) & ((row == EOQ) | (shift_right(answer, 1, BLANK) != BLANK))
    return {"answer": where(next_place, seq, answer), "seq": shift_right(seq, 2, BLANK)}


def read_filled(answer: Seq) -> Seq:
    """The places that are filled, `#` after them."""
    return where(answer == BLANK, EOS, answer)


# --- stack manipulation: T = n -------------------------------------------------------------------------------
# Bits, those of PUSH too, travel to the right; every POP stands still and takes the first bit that comes by, which
# is the top of the stack that it stands for. What is left arrives at `>` from the top down and fills the answer.
STACK = Vocab(("0", "1", "POP", "PUSH0", "PUSH1"))
POP, PUSH0 = STACK.id("POP"), STACK.id("PUSH0")
STACK_EOQ, STACK_EOS = STACK.eoq, STACK.eos


def prepare_stack(row: Seq) -> State:
    """The bits, where POP stands, and no answer yet."""
    bits = tok_map(row, lambda v: v if v < POP else v - PUSH0 if PUSH0 <= v < STACK_EOQ else BLANK)
    return {"seq": bits, "pop": row == POP, "answer": full(row, BLANK)}


def step_stack(seq: Seq, pop: Seq, answer: Seq, row: Seq) -> State:
    """Every bit moves on by one; a POP takes it, or the next free place if it has arrived."""
    moved = shift_right(seq, 1, BLANK)
    taken = pop & (moved != BLANK)
    seq = where(taken, BLANK, moved)
    zero, one = seen((row == STACK_EOQ) & (seq == 0)), seen((row == STACK_EOQ) & (seq == 1))
    next_place = (answer == BLANK) & ((row == STACK_EOQ) | (shift_right(answer, 1, BLANK) != BLANK))
    answer = where(next_place & zero, 0, where(next_place & one, 1, answer))
    return {"seq": seq, "pop": pop & ~taken, "answer": answer}


def read_stack(answer: Seq) -> Seq:
    """The places that are filled, `#` after them."""
    return where(answer == BLANK, STACK_EOS, answer)


# --- brackets: T = n -----------------------------------------------------------------------------------------
# A digit is an expression; a closing bracket becomes one, with a value and the place where it starts, once what is
# in it is known. What stands before an expression is one position before its start: so a bracket finds its sign and
# its other half however long they are. Every step closes one more level, and there are fewer than n.
MATHS = Vocab(("0", "1", "2", "3", "4", "+", "-", "(", ")"))
OPEN, CLOSE = MATHS.id("("), MATHS.id(")")
MATHS_EOQ, MATHS_EOS = MATHS.eoq, MATHS.eos


def negative(row: Seq) -> Seq:
    """Whether the token before is a minus sign that belongs to this place alone: after `(`, a sign or nothing."""
    return (shift_right(row, 1, BLANK) == MINUS) & tok_map(
        shift_right(row, 2, BLANK), lambda v: v in (BLANK, PLUS, MINUS, OPEN)
    )


def prepare_brackets(row: Seq) -> State:
    """The value of every digit, with its sign, and where it starts."""
    alone = negative(row)
    digit = where(row < 5, row, BLANK)
    value = where(alone, tok_map(digit, lambda v: v if v == BLANK else -v % 5), digit)
    return {"value": value, "start": where(alone, indices(row) - 1, indices(row))}


def step_brackets(value: Seq, start: Seq, row: Seq) -> State:
    """Closing brackets whose content is known."""
    right, before = shift_right(value, 1, BLANK), shift_right(start, 1) - 1
    sign = index_select(row, before, MATHS_EOS)
    left, opening = index_select(value, before - 1, BLANK), index_select(start, before - 1) - 1
    closes = (row == CLOSE) & (value == BLANK) & (right != BLANK)
    alone = closes & (sign == OPEN)
    paired = closes & (left != BLANK) & ((sign == PLUS) | (sign == MINUS))
    both = where(sign == PLUS, seq_map(left, right, lambda a, b: (a + b) % 5), seq_map(left, right, minus))
    return {
        "value": where(alone, right, where(paired, both, value)),
        "start": index_select(indices(row), where(alone, before, where(paired, opening, start))),
    }


def minus(a: int, b: int) -> int:
    """The difference modulo 5."""
    return (a - b) % 5


def read_brackets(value: Seq, row: Seq) -> Seq:
    """The value of the last token, which is that of the whole."""
    whole = shift_right(value, 1, BLANK)
    return where((row == MATHS_EOQ) & (whole != BLANK), whole, MATHS_EOS)


# --- solve equation: T = n -----------------------------------------------------------------------------------
# As brackets, with values a·x + b, where a is -1, 0 or 1 (x stands once): 5 (a + 1) + b, from 0 to 14.
EQUATION = Vocab(("0", "1", "2", "3", "4", "+", "-", "(", ")", "x", "="))
UNKNOWN = EQUATION.id("x")
EQUATION_EOQ, EQUATION_EOS = EQUATION.eoq, EQUATION.eos


def negated(v: int) -> int:
    """-(a·x + b)."""
    return v if v == BLANK else 5 * (2 - v // 5) + -v % 5


def added(v: int, w: int) -> int:
    """The sum of two of them; at most one has an x."""
    return BLANK if BLANK in (v, w) else 5 * min(2, max(0, v // 5 + w // 5 - 1)) + (v + w) % 5


def solved(form: int, value: int) -> int:
    """x, from a·x + b = value; 0 where there is no x."""
    return 0 if form == BLANK or value > 4 else (value - form) * (form // 5 - 1) % 5


def prepare_equation(row: Seq) -> State:
    """The value of x and of every digit, with its sign, and where it starts."""
    alone = negative(row)
    form = tok_map(row, lambda v: 5 + v if v < 5 else 10 if v == UNKNOWN else BLANK)
    return {
        "value": where(alone, tok_map(form, negated), form),
        "start": where(alone, indices(row) - 1, indices(row)),
    }


def step_equation(value: Seq, start: Seq, row: Seq) -> State:
    """Closing brackets whose content is known."""
    right, before = shift_right(value, 1, BLANK), shift_right(start, 1) - 1
    sign = index_select(row, before, EQUATION_EOS)
    left, opening = index_select(value, before - 1, BLANK), index_select(start, before - 1) - 1
    closes = (row == CLOSE) & (value == BLANK) & (right != BLANK)
    alone = closes & (sign == OPEN)
    paired = closes & (left != BLANK) & ((sign == PLUS) | (sign == MINUS))
    signed = where(sign == MINUS, tok_map(right, negated), right)
    return {
        "value": where(alone, right, where(paired, seq_map(left, signed, added), value)),
        "start": index_select(indices(row), where(alone, before, where(paired, opening, start))),
    }


def read_equation(value: Seq, row: Seq) -> Seq:
    """What x is, from the expression before `=` and the digit before `>`."""
    x = seq_map(shift_right(value, 3, BLANK), shift_right(row, 1), solved)
    return where(row == EQUATION_EOQ, x, EQUATION_EOS)


# --- duplicate string: T = n ---------------------------------------------------------------------------------
# One copy of the row moves on by one, the other by two: after n steps they stand one after the other.
def prepare_duplicate(row: Seq) -> State:
    """The question twice, and `#` from its end on."""
    bits = where(has_seen(row, full(row, EOQ)), EOS, row)
    return {"once": bits, "twice": bits}


def step_duplicate(once: Seq, twice: Seq, row: Seq) -> State:
    """Both move on, unless all bits have arrived."""
    incoming = shift_right(once, 1, BLANK)
    arrived = seen((row == EOQ) & (incoming == BLANK))
    return {
        "once": where(arrived, once, incoming),
        "twice": where(arrived, twice, shift_right(twice, 2, BLANK)),
    }


def read_duplicate(once: Seq, twice: Seq) -> Seq:
    """The first copy, and the other one where it ends."""
    both = where(once == EOS, twice, once)
    return where(both == BLANK, EOS, both)


# --- missing duplicate: T = n --------------------------------------------------------------------------------
# The row moves on by one a step, a flag by two. When the flag reaches the end of the string, the row has moved by half
# of it: now the missing bit and its other copy lie upon each other, and positions right of both read the copy.
TWICE = Vocab(("0", "1", "_", "-"))
MISSING, FILLER = TWICE.id("_"), TWICE.id("-")
TWICE_EOQ, TWICE_EOS = TWICE.eoq, TWICE.eos


def prepare_missing(row: Seq) -> State:
    """The row, the flag at position 0, and the answer to a question of one token."""
    return {"seq": row, "flag": indices(row) == 0, "answer": full(row, 1)}


def step_missing(seq: Seq, flag: Seq, answer: Seq, row: Seq) -> State:
    """Row and flag move on; if the flag has arrived, the bit upon the missing one is the answer."""
    seq, flag = shift_right(seq, 1, BLANK), shift_right(flag, 2)
    end = (row == FILLER) | ((row == TWICE_EOQ) & ~has_seen(row, full(row, FILLER)))
    zero = seen(((row == MISSING) & (seq == 0)) | ((row == 0) & (seq == MISSING)))
    return {"seq": seq, "flag": flag, "answer": where(seen(end & flag), where(zero, 0, 1), answer)}


def read_missing(answer: Seq, row: Seq) -> Seq:
    """The bit, `#` after it."""
    return where(row == TWICE_EOQ, answer, TWICE_EOS)


# --- odds first: T = n ---------------------------------------------------------------------------------------
# Every place of the answer knows which bit it shows: two further than the place before it, or the first if there is
# none two further. One place more is right after every step.
def prepare_odds(row: Seq) -> State:
    """All places show the first bit."""
    return {"at": mask(indices(row), indices(row) < 0)}


def step_odds(at: Seq, row: Seq) -> State:
    """Two further than the place before; the first place shows the second bit."""
    size, zero = firsts(row, full(row, EOQ)), mask(indices(row), indices(row) < 0)
    further = where(row == EOQ, zero + 1, shift_right(at, 1) + 1 + 1)
    return {"at": index_select(indices(row), where(further < size, further, zero))}


def read_odds(at: Seq, row: Seq) -> Seq:
    """As many places as there are bits."""
    inside = cumsum(has_seen(row, full(row, EOQ))) <= firsts(row, full(row, EOQ))
    return where(inside, index_select(row, at), EOS)


# --- binary addition: T = 1 ----------------------------------------------------------------------------------
# The k-th place of the answer finds the k-th digit of both numbers. The carry into a place was made at the nearest
# place before it that does not merely pass one on: the lowest digit comes first, so all of that lies to the left. The
# sum has as many digits as the longer number without leading zeros, or one more, and that one is a 1.
PLUSSED = Vocab(("0", "1", "+"))
ADD = PLUSSED.id("+")
PLUSSED_EOQ, PLUSSED_EOS = PLUSSED.eoq, PLUSSED.eos


def prepare_sum(row: Seq) -> State:
    """At every place of the answer the digits of both numbers added up, and whether one of them is that long."""
    after, second = has_seen(row, full(row, PLUSSED_EOQ)), has_seen(row, full(row, ADD))
    bit, place, rank = where(row == 1, 1, 0), cumsum(after), cumsum(second)  # the sign has rank 1
    highest = lasts((row == 1) & ~second, full(row, 1))
    longer = (place - 1 <= highest) | (
        place + 1 <= index_select(rank, lasts((row == 1) & second, full(row, 1)))
    )
    first = kqv(where(second | after, 0, indices(row) + 1), place, bit, equals)
    both = first + kqv(where(second & ~after, rank, 0), place + 1, bit, equals)
    return {"both": both, "longer": longer, "answer": full(row, PLUSSED_EOS)}


def step_sum(both: Seq, longer: Seq, row: Seq) -> State:
    """The whole sum."""
    carry = shift_right(lasts(both, full(row, 2)) > lasts(both, full(row, 0)), 1)
    digit = (both + carry) % 2
    return {"answer": where(longer | (row == PLUSSED_EOQ) | (digit == 1), digit, PLUSSED_EOS)}


def read_answer(answer: Seq) -> Seq:
    """As it stands."""
    return answer


# --- binary multiplication: T = 2n ---------------------------------------------------------------------------
# The digits of the first number travel to the right and reach the sign from the highest down. Each doubles what is
# there (all moves on by one) and adds the second number if it is a 1, without carrying: sum and carries are kept apart.
# Then, n times, the carries are added, which makes new ones one place up. `top` marks the highest digit that the
# product surely has: it may have one more, and that is a 1.
TIMED = Vocab(("0", "1", "×"))
TIMES = TIMED.id("×")
TIMED_EOQ, TIMED_EOS = TIMED.eoq, TIMED.eos


def prepare_product(row: Seq) -> State:
    """The digits of both numbers, the second in the places of the answer, and nothing added yet."""
    after, sign = has_seen(row, full(row, TIMED_EOQ)), has_seen(row, full(row, TIMES))
    ones, rank, place = (row == 1) & sign, cumsum(sign), cumsum(after) + 1  # the sign has rank 1
    return {
        "first": where(sign | after, BLANK, row),
        "second": kqv(where(sign & ~after, rank, 0), place, where(ones, 1, 0), equals) == 1,
        "highest": after & (place == index_select(rank, lasts(ones, full(row, 1)))),
        "started": row == BLANK,
        "top": row == BLANK,
        "sum": row == BLANK,
        "carry": row == BLANK,
    }


def step_product(
    first: Seq, second: Seq, highest: Seq, started: Seq, top: Seq, sum: Seq, carry: Seq, row: Seq
) -> State:
    """The digit that reaches the sign doubles what is there, and adds the second number if it is a 1."""
    first = shift_right(first, 1, BLANK)
    one, zero = seen((row == TIMES) & (first == 1)), seen((row == TIMES) & (first == 0))
    low, held, addend = shift_right(sum, 1), shift_right(carry, 1), one & second
    majority = (low & held) | (low & addend) | (held & addend)
    moves = one | zero
    return {
        "first": first,
        "started": started | one,
        "top": where(one & ~started, highest, where(moves, shift_right(top, 1), top)),
        "sum": where(moves, low ^ held ^ addend, sum),
        "carry": where(moves, shift_right(majority, 1), carry),
    }


def step_carries(sum: Seq, carry: Seq) -> State:
    """Adds the carries, which makes new ones one place up."""
    return {"sum": sum ^ carry, "carry": shift_right(sum & carry, 1)}


def read_product(sum: Seq, top: Seq, started: Seq, row: Seq) -> Seq:
    """Up to the highest digit; `0` if there is none, nothing at all for a question of one token."""
    is_zero = ~started | ~seen((row == 1) & has_seen(row, full(row, TIMES)))
    past = is_zero | shift_right(seen(top), 1)
    empty = where((row == TIMED_EOQ) & (indices(row) != 1), 0, TIMED_EOS)
    return where(~past | sum, where(sum, 1, 0), empty)


# --- bucket sort: T = 1 --------------------------------------------------------------------------------------
# The k-th place holds the first symbol s for which at least k symbols are s or smaller.
SYMBOLS = Vocab(("0", "1", "2", "3", "4"))
SYMBOLS_EOQ, SYMBOLS_EOS = SYMBOLS.eoq, SYMBOLS.eos


def prepare_sort(row: Seq) -> State:
    """No answer yet."""
    return {"answer": full(row, SYMBOLS_EOS)}


def step_sort(row: Seq) -> State:
    """The whole row, by counting."""
    place = cumsum(has_seen(row, full(row, SYMBOLS_EOQ)))
    large = where(place <= cumsum(row <= 3), 3, where(place <= cumsum(row <= 4), 4, SYMBOLS_EOS))
    small = where(place <= cumsum(row == 0), 0, where(place <= cumsum(row <= 1), 1, 2))
    return {"answer": where(place <= cumsum(row <= 2), small, large)}


# --- the programs ----------------------------------------------------------------------------------------------
def one(n: int) -> int:
    """One step, or an answer of one token."""
    return 1


def same(n: int) -> int:
    """As many steps, or as long an answer, as the question has tokens."""
    return n


# name, vocabulary, prepare, loops with their T, read-out, size of the answer, example
PROGRAMS = (
    Program("even_pairs", BITS, prepare_pairs, (Loop(step_pairs, one),), read_one_bit, one, "0 1 1 0"),
    Program("parity_check", BITS, prepare_parity, (Loop(step_parity, same),), read_one_bit, one, "1 1 0 1"),
    Program(
        "cycle_navigation", MOVES, prepare_cycle, (Loop(step_cycle, same),), read_cycle, one, "R L S L L",
    ),
    Program(
        "modular_arithmetic", SIGNS, prepare_modular, (Loop(step_modular, same),), read_modular, one,
        "1 + 2 × 3",
    ),
    Program(
        "reverse_string", BITS, prepare_reverse, (Loop(step_reverse, same),), read_filled, same, "0 1 1 1",
        tokens=("seq", "answer"),
    ),
    Program(
        "stack_manipulation", STACK, prepare_stack, (Loop(step_stack, same),), read_stack, same,
        "0 1 1 0 PUSH1 POP POP",
    ),
    Program(
        "modular_arithmetic_brackets", MATHS, prepare_brackets, (Loop(step_brackets, same),), read_brackets,
        one, "( ( 1 - 4 ) + ( - 2 ) )",
    ),
    Program(
        "solve_equation", EQUATION, prepare_equation, (Loop(step_equation, same),), read_equation, one,
        "( ( 1 - x ) + ( - 2 ) ) = 0",
    ),
    Program(
        "duplicate_string", BITS, prepare_duplicate, (Loop(step_duplicate, same),), read_duplicate,
        lambda n: 2 * n, "0 1 1 0", tokens=("once", "twice"),
    ),
    Program(
        "missing_duplicate", TWICE, prepare_missing, (Loop(step_missing, same),), read_missing, one,
        "0 1 1 0 0 _ 1 0",
    ),
    Program("odds_first", BITS, prepare_odds, (Loop(step_odds, same),), read_odds, same, "0 1 1 0 1 0"),
    Program(
        "binary_addition", PLUSSED, prepare_sum, (Loop(step_sum, one),), read_answer, same,
        "0 1 0 0 1 + 0 1 1", tokens=("answer",),
    ),
    Program(
        "binary_multiplication", TIMED, prepare_product, (Loop(step_product, same), Loop(step_carries, same)),
        read_product, same, "0 1 0 0 1 × 0 1 1",
    ),
    Program(
        "bucket_sort", SYMBOLS, prepare_sort, (Loop(step_sort, one),), read_answer, same, "4 2 1 3 0 2 2 1 4",
        tokens=("answer",),
    ),
)  # fmt: skip
