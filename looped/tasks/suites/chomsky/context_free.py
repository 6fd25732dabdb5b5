"""The context-free tasks: a finite state and a stack are enough.

Expressions have no product, so the value of one is the sum of its digits, each with a sign: an odd number of minus
signs before it or before a bracket around it makes it negative. The sampler counts these signs, the oracle takes the
expression apart.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from looped.tasks import distributions as draws
from looped.tasks.distributions import BITS, UNIFORM, Flags, Ids, Sizes, compacted, mirrored, uniform, within
from looped.tasks.suites.chomsky.regular import DIGITS, LOCAL, MODULUS, ChomskyTask, OneTokenTask

POP, PUSH0, PUSH1 = "POP", "PUSH0", "PUSH1"
UNKNOWN, EQUALS = "x", "="


class ReverseString(ChomskyTask):
    """The bits backwards."""

    symbols = BITS
    example = "0111"
    # The first bit has 2n - 1 places to go, two at a step: with n steps what is learned does not hold past training.
    block = replace(LOCAL, loops="2q", max_length=14, steps=1_500, interval=60, batch=16, padding_loss="own")

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """Each row turned round."""
        return mirrored(question, lengths), lengths

    def answer(self, question: list[str]) -> list[str]:
        """Turned round."""
        return question[::-1]


class StackManipulation(ChomskyTask):
    """What is left of a stack of bits (bottom first) after POP, PUSH0, PUSH1: top first."""

    symbols = (*BITS, POP, PUSH0, PUSH1)
    families = (UNIFORM, "mixed", "pops")
    ended = True
    example = "0 1 1 0 PUSH1 POP POP"

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """A stack of 1 to n - 1 bits, then actions: `pops` are POP only, `mixed` has its own share of each."""
        rows, pop = len(lengths), self.vocab.id(POP)
        bits = 1 + draws.drawn_below((lengths - 1).clamp(min=1), generator)[:, None]
        stack = uniform(rows, size, generator)
        actions = draws.draw_symbols("mixed" if family == "mixed" else UNIFORM, rows, size, generator, 3)
        actions = torch.zeros_like(actions) if family == "pops" else actions
        return torch.where(torch.arange(size, device=lengths.device) < bits, stack, actions + pop)

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """A bit stays if the stack is never again as low as before it was pushed."""
        inside, pop = within(lengths, question.shape[1]), self.vocab.id(POP)
        pushes, pops = inside & (question != pop), inside & (question == pop)
        height = (pushes.long() - pops.long()).cumsum(1)
        lowest_after = height.flip(1).cummin(1).values.flip(1)
        stays = pushes & (lowest_after >= height)
        bits = torch.where(question > pop, question - self.vocab.id(PUSH0), question)
        left = compacted(bits, stays, question.shape[1], 0)
        return mirrored(left, stays.sum(1)), stays.sum(1)

    def answer(self, question: list[str]) -> list[str]:
        """Does what it is told."""
        stack: list[str] = []
        for token in question:
            if token != POP:
                stack.append(token.removeprefix("PUSH"))
            elif stack:
                stack.pop()
        return stack[::-1]

    def check(self, question: list[str]) -> None:
        """The bits come first."""
        actions = [token not in BITS for token in question]
        if actions != sorted(actions):
            raise self.refused("the stack comes before the actions")

    def parse(self, text: str) -> list[str]:
        """Words; `PUSH 1` will do for `PUSH1`."""
        return super().parse(text.upper().replace("PUSH ", "PUSH"))


class ModularArithmeticBrackets(OneTokenTask):
    """The value modulo 5 of an expression with +, -, unary - and brackets around every pair."""

    symbols = (*DIGITS, "+", "-", "(", ")")
    families = (UNIFORM, "deep", "minus")
    example = "((1-4)+(-2))"

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Expressions of these lengths; `deep` ones have one long side, `minus` only that sign."""
        return draw_expressions(family, lengths, size, generator, self.vocab.encode("+-()"))

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """The digits with their signs, summed."""
        digits = torch.where(question < MODULUS, question, 0)
        return (digits * self.signs(question)).sum(1) % MODULUS

    def signs(self, question: Ids) -> Ids:
        """1 or -1 where a digit stands: by the minus signs before it and before each open bracket around it."""
        minus, opening, closing = (self.vocab.id(token) for token in "-()")
        is_minus = (question == minus).long()
        one = pad(is_minus, (1, 0))[:, :-1]  # `-` before this place, and `--`
        turns = one + one * pad(is_minus, (2, 0))[:, :-2]
        opened, closed = question == opening, question == closing
        turned = torch.where(opened, turns, 0)
        partner = _partners(opened, closed)
        undone = torch.where(closed, turned.gather(1, partner), 0)
        return 1 - 2 * ((turns + (turned - undone).cumsum(1)) % 2)

    def answer(self, question: list[str]) -> list[str]:
        """Takes the expression apart."""
        return [str(self.value(question)[1] % 5)]

    def check(self, question: list[str]) -> None:
        """One whole expression."""
        self.value(question)

    def value(self, question: list[str]) -> tuple[int, int]:
        """A whole expression as a·x + b: (a, b); reads tokens once, with a stack of open brackets."""
        waiting: list[tuple[int, int] | str] = []
        for token in question:
            if token in (*DIGITS, UNKNOWN):
                item = (1, 0) if token == UNKNOWN else (0, int(token))
                if waiting[-1:] == ["-"] and (len(waiting) == 1 or isinstance(waiting[-2], str)):
                    waiting.pop()
                    item = (-item[0], -item[1])
                waiting.append(item)
            elif token == ")":
                at = max((i for i, part in enumerate(waiting) if part == "("), default=-1)
                combined = _combined(waiting[at + 1 :])
                if at < 0 or combined is None:
                    raise self.refused(
                        "a pair of brackets holds one expression, or two with a sign between them"
                    )
                waiting[at:] = [combined]
            else:
                waiting.append(token)
        if len(waiting) != 1 or isinstance(waiting[0], str):
            raise self.refused("the whole is one expression, with brackets around every pair")
        return waiting[0]


def _combined(inner: list[tuple[int, int] | str]) -> tuple[int, int] | None:
    """What stands between a pair of brackets as one expression; None where it is none."""
    match inner:
        case [(int(a), int(b))]:
            return a, b
        case [(int(a), int(b)), "+" | "-" as sign, (int(c), int(d))]:
            return (a + c, b + d) if sign == "+" else (a - c, b - d)
    return None


class SolveEquation(ModularArithmeticBrackets):
    """The digit x in an expression with brackets that has the value after `=`, modulo 5."""

    symbols = (*DIGITS, "+", "-", "(", ")", UNKNOWN, EQUALS)
    example = "((1-x)+(-2))=0"

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Expressions two tokens shorter with their values, x in the place of a digit; zeros where n < 3."""
        shorter = (lengths - 2).clamp(min=1)
        expression = super().draw(family, shorter, size, generator)
        expression = torch.where(within(shorter, size), expression, self.vocab.eos)
        places = torch.arange(size, device=lengths.device)
        start = draws.drawn_below(shorter, generator)[:, None]
        distance = torch.where(expression < MODULUS, (places - start) % shorter[:, None], size)
        value = super().classes(expression, shorter)[:, None]
        hidden = torch.where(places == distance.argmin(1, keepdim=True), self.vocab.id(UNKNOWN), expression)
        ended = torch.where(places == shorter[:, None], self.vocab.id(EQUALS), hidden)
        ended = torch.where(places == shorter[:, None] + 1, value, ended)
        return torch.where(lengths[:, None] < 3, 0, ended)

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """What is missing to the value, with the sign of x; 0 where there is no x."""
        places, signs = torch.arange(question.shape[1], device=question.device), self.signs(question)
        last = (places == lengths[:, None] - 1).long()
        digits = torch.where(question < MODULUS, question, 0)
        missing = (digits * last).sum(1) - (digits * signs * (1 - last)).sum(1)
        return (missing * (signs * (question == self.vocab.id(UNKNOWN))).sum(1)) % MODULUS

    def answer(self, question: list[str]) -> list[str]:
        """Tries all five."""
        if len(question) < 3:
            return ["0"]
        a, b = self.value(question[:-2])
        return [digit for digit in DIGITS if (a * int(digit) + b - int(question[-1])) % 5 == 0]

    def check(self, question: list[str]) -> None:
        """An expression with one x, `=` and a digit; or one or two zeros."""
        if len(question) < 3:
            if set(question) != {"0"}:
                raise self.refused("a question of one or two tokens is 0 or 00")
            return
        if question[-2] != EQUALS or question[-1] not in DIGITS or question.count(UNKNOWN) != 1:
            raise self.refused("an equation has one x before `=` and a digit after it")
        if EQUALS in question[:-2]:
            raise self.refused("an equation has one `=`")
        self.value(question[:-2])


def draw_expressions(family: str, lengths: Sizes, size: int, generator: Generator, ids: list[int]) -> Ids:
    """Random expressions: every span of 5 or more becomes `( left sign right )`, all spans of a level at once.

    A span is kept where it begins: `spans[p]` is its length. No place begins two spans that are split, so that one draw
    a place is enough.
    """
    plus, minus, opening, closing = ids
    rows, device = len(lengths), lengths.device
    places = torch.arange(size, device=device)
    sign = torch.full((rows, size), minus, device=device)
    if family != "minus":
        sign = plus + uniform(rows, size, generator)
    u = torch.rand(rows, size, generator=generator, device=device, dtype=torch.float64)
    tokens = uniform(rows, size, generator, MODULUS)
    spans = torch.where(places == 0, lengths[:, None], 0)
    whole = torch.zeros_like(spans)  # lengths of those that were split

    def left_of(spans: Ids) -> Ids:
        choices = (spans - 4).clamp(min=1)
        if family == "deep":  # one token on one side
            return torch.where(u < 0.5, 1, choices)
        return torch.minimum((u * choices).long(), choices - 1) + 1

    for _ in range((size - 1) // 4):
        splits, left = spans >= 5, left_of(spans)
        whole = torch.where(splits, spans, whole)
        starts = torch.cat([(places + 1).expand_as(left), places + 2 + left], 1)
        target = torch.where(splits.repeat(1, 2), starts, size)
        parts = torch.cat([left, spans - 3 - left], 1)
        spans = pad(torch.where(splits, 0, spans), (0, 1)).scatter(1, target, parts)[:, :size]
    splits = whole > 0
    tokens = _put(tokens, splits, places, torch.full_like(tokens, opening))
    tokens = _put(tokens, splits, places + 1 + left_of(whole), sign)
    tokens = _put(tokens, splits, places + whole - 1, torch.full_like(tokens, closing))
    bracketed, negative = spans >= 3, (spans == 2) | (spans == 4)
    tokens = _put(tokens, bracketed, places, torch.full_like(tokens, opening))
    tokens = _put(tokens, bracketed, places + spans - 1, torch.full_like(tokens, closing))
    return _put(tokens, negative, places + bracketed.long(), torch.full_like(tokens, minus))


def _put(values: Ids, where: Flags, at: Tensor, what: Ids) -> Ids:
    """`values` with `what` put at the places `at`, one for every place of `where`; a spare column takes the rest."""
    size = values.shape[1]
    target = torch.where(where, at.expand_as(values), size)
    return pad(values, (0, 1)).scatter(1, target, what)[:, :size]


def _partners(opened: Flags, closed: Flags) -> Ids:
    """For every closing bracket where its opening one stands; anything elsewhere.

    Sorted by depth, then by place, brackets of one depth take turns: each closing one follows its own.
    """
    size = opened.shape[1]
    places = torch.arange(size, device=opened.device)
    depth = opened.long().cumsum(1) - closed.long().cumsum(1) + closed.long()
    key = torch.where(opened | closed, depth, size + 1) * size + places
    order = key.argsort(1)
    before = pad(order, (1, 0))[:, :-1]
    return torch.zeros_like(order).scatter(1, order, before)
