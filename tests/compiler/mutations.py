"""Syntax trees of legal programs with random changes: some stay legal, most break a rule. Seeded."""

from __future__ import annotations

import ast
import copy
import random
from pathlib import Path

from random_programs import seeded_text

from looped.rasp import programs
from looped.rasp.lint_rules import function_place

# Expressions that may stand in for another. None of them does harm, should Python ever run it.
EXPRESSIONS = """
row; row + 1; row == 1; -row; ~(row == 1); indices(row); indices(row) + 1; indices(row) + 2; cumsum(row == 1)
row % 2; row // 2; row * 300; row ** 2; row / 2; row << 1; where(row == 1, row, 0); where(row == 1, indices(row), row)
tok_map(row, lambda v: v * v); tok_map(row, lambda v: 1 if v > 1 else 0); tok_map(indices(row), abs); tok_map(row, row)
seq_map(row, row, max); seq_map(row, row, lambda a, b: (a, b)); kqv(row, row, row, leq); kqv(row, row, row * 40, leq)
kqv(row, row, row, lambda k, q: k == q or k > 2); kqv(indices(row), indices(row), row, lambda k, q: k == q - 1)
aggregate(select(row, row, equals), row, 0, 'max'); aggregate(row, row); select(row, row, leq); sel_width(row)
shift_right(row, 1); shift_right(row, -1); shift_right(row, row); shift_right(row); shift_right(row, n=2, default=-1)
has_seen(row, full(row, 1)); has_seen(row, indices(row)); index_select(row, row); index_select(row, indices(row) - 1)
mode(row); argmax(row); maximum(indices(row)); induct(row, row, 1); induct_prev(row, row, -1); firsts(row, row)
full(row, 3); full(row, 100000); mask(row, row == 1, 5); first_true(row == 1); num_prev(row, row); lasts(row, row)
row[0]; row[1:]; row.shape; len(row); str(row); '%s' % row; f'{row}'; (row, 1) == (row, 2); row in (row,); [row]; {row}
row if row else 1; row and row; not row; 0 < row < 2; row is None; (y := row); lambda a: a; [v for v in row]; *row,
{'a': row}; dict(a=row); None; 1.5; 'text'; True; 10 ** 9; 2 ** 70; nothing; nothing(row); max(1, 2); min(row, 1)
prepare(row); readout(row, row); step0(row, row); VOCAB; VOCAB.eos; Program; Loop; BLANK; equals; Seq; print; dict
"""
STATEMENTS = """
row = row + 1; row += 1; row: Seq = row; a, b = row, row; a = b = row; row.x = 1; row[0] = 1; pass; return row
return; global row; del row; import math; assert row; raise ValueError; 'text'; x0 = x1 = row; [a] = row,; a, *b = row,
"""
NUMBERS = (0, 1, -1, 2, 3, 63, 64, 65, 999, 32767, 32768, 2**40, True, False)


def _parsed(text: str) -> list[ast.stmt]:
    return [ast.parse(part.strip()).body[0] for line in text.strip().splitlines() for part in line.split(";")]


_EXPRESSIONS = [node.value for node in _parsed(EXPRESSIONS) if isinstance(node, ast.Expr)]
_STATEMENTS = _parsed(STATEMENTS)


class Change(ast.NodeTransformer):
    """One change at one place of a tree."""

    def __init__(self, generator: random.Random, tree: ast.Module) -> None:
        self.generator = generator
        self.names = sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)})
        nodes = [
            n for n in ast.walk(tree) if isinstance(n, (ast.expr, ast.FunctionDef, ast.operator, ast.cmpop))
        ]
        self.target = self.choose([n for n in nodes if not isinstance(getattr(n, "ctx", None), ast.Store)])

    def choose(self, options: list[ast.AST]) -> ast.AST:
        return options[int(self.generator.random() * len(options))]

    def fresh(self, options: list[ast.AST]) -> ast.AST:
        """A copy, so that no change of this tree is a change of another."""
        return copy.deepcopy(self.choose(options))

    def visit(self, node: ast.AST) -> ast.AST:
        if node is not self.target:
            return super().visit(node)
        if isinstance(node, ast.FunctionDef):
            return self.other_body(node)
        if isinstance(node, ast.operator):
            return self.choose(
                [ast.Add(), ast.Sub(), ast.Mult(), ast.Mod(), ast.FloorDiv(), ast.BitXor(), ast.Pow()]
            )
        if isinstance(node, ast.cmpop):
            return self.choose([ast.Eq(), ast.NotEq(), ast.Lt(), ast.GtE(), ast.In(), ast.Is()])
        if isinstance(node, ast.Constant) and self.generator.random() < 0.7:
            return ast.Constant(NUMBERS[int(self.generator.random() * len(NUMBERS))])
        if isinstance(node, ast.Name) and self.generator.random() < 0.7:
            return ast.Name(self.names[int(self.generator.random() * len(self.names))], ast.Load())
        return self.fresh(list(_EXPRESSIONS))

    def other_body(self, node: ast.FunctionDef) -> ast.AST:
        """Statements swapped, left out, doubled or put in."""
        at = int(self.generator.random() * len(node.body))
        way = int(self.generator.random() * 4)
        if way == 0:
            node.body.insert(at, self.fresh(list(_STATEMENTS)))  # type: ignore[arg-type]
        elif way == 1:
            node.body.insert(at, copy.deepcopy(node.body[at]))
        elif way == 2 and len(node.body) > 1:
            node.body.pop(at)
        else:
            node.body[at], node.body[0] = node.body[0], node.body[at]
        return node


def mutated_text(seed: int) -> str:
    """The text of a legal file after one to three changes of its tree."""
    generator = random.Random(seed)
    text = _shipped(seed // 4) if seed % 4 == 0 else seeded_text(seed)
    tree = ast.parse(text)
    for _ in range(1 + int(generator.random() * 3)):
        tree = Change(generator, tree).visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree))


def _shipped(number: int) -> str:
    """The text of one shipped program: of its file, the statements that it needs."""
    name = sorted(programs.PROGRAMS)[number % len(programs.PROGRAMS)]
    tree = ast.parse(Path(function_place(programs.get(name).prepare)[0]).read_text())
    needed: set[str] = {name.upper()}
    kept: list[ast.stmt] = []
    for node in reversed(tree.body):
        names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
        bound = {part.id for part in names if isinstance(part.ctx, ast.Store)}
        if isinstance(node, ast.ImportFrom) or getattr(node, "name", "") in needed or bound & needed:
            needed |= {part.id for part in names}
            kept.insert(0, node)
    return ast.unparse(ast.Module(kept, []))
