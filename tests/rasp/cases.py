"""Small programs, legal and illegal, each judged by running it and by `looped check`.

A case is the text of a file. In an illegal one, `# <-` marks the line that breaks the rule. `runtime` says
that the run itself refuses it, with no source to read: what the sequences' own rules must catch.
"""

from typing import NamedTuple

HEADER = "from looped.rasp import *\nfrom looped.vocab import Vocab\nimport numpy as np\n"

LOOPED = """
def prepare(row):
    return {{"seq": row, "at": indices(row), "number": full(row, 0)}}

{step}

def readout(seq):
    return seq

PROGRAM = Program(
    name="case", vocab=Vocab(("0", "1")), prepare=prepare, loops=(Loop(step, times=lambda n: n),),
    readout=readout, answer_size=lambda n: n, example="1 0 1",
)
"""


class Illegal(NamedTuple):
    rule: str
    text: str
    runtime: bool = True


def looped(step: str) -> str:
    return LOOPED.format(step=step)


def line_of(text: str) -> int:
    """The marked line's number in the file."""
    return next(i for i, line in enumerate((HEADER + text).splitlines(), 1) if "# <-" in line)


ILLEGAL: dict[str, Illegal] = {
    # --- control flow
    "if on a sequence": Illegal(
        "control-flow", "def f(x):\n    if x == 1:  # <-\n        return x\n    return x"
    ),
    "if on an order of indices": Illegal(
        "control-flow", "def f(x):\n    if indices(x) > 2:  # <-\n        x = x + 1\n    return x"
    ),
    "while on a sequence": Illegal(
        "control-flow", "def f(x):\n    while x == 1:  # <-\n        x = shift_right(x, 1)\n    return x"
    ),
    "for over a sequence": Illegal(
        "control-flow", "def f(x):\n    for v in x:  # <-\n        x = x + v\n    return x"
    ),
    "for over a range": Illegal(
        "control-flow",
        "def f(x):\n    for i in range(3):  # <-\n        x = shift_right(x, 1)\n    return x",
        runtime=False,
    ),
    "and": Illegal("control-flow", "def f(x):\n    return (x == 1) and (x == 0)  # <-"),
    "or": Illegal("control-flow", "def f(x):\n    return (x == 1) or (x == 0)  # <-"),
    "not": Illegal("control-flow", "def f(x):\n    return not x  # <-"),
    "conditional expression": Illegal("control-flow", "def f(x):\n    return x if x == 1 else x + 1  # <-"),
    "chained comparison": Illegal("control-flow", "def f(x):\n    return 0 < x < 2  # <-"),
    "comprehension": Illegal("control-flow", "def f(x):\n    y = [v + 1 for v in x]  # <-\n    return x"),
    "assert": Illegal("control-flow", "def f(x):\n    assert x == 1  # <-\n    return x"),
    "match": Illegal(
        "control-flow",
        "def f(x):\n    match x:  # <-\n        case _:\n            return x + 1",
        runtime=False,
    ),
    "try": Illegal(
        "control-flow",
        "def f(x):\n    try:  # <-\n        return x\n    except ValueError:\n        return x + 1",
        runtime=False,
    ),
    # --- looking inside
    "index": Illegal("indexing", "def f(x):\n    return full(x, 1) + x[0]  # <-"),
    "slice": Illegal("indexing", "def f(x):\n    return x[1:]  # <-"),
    "assign to a position": Illegal("indexing", "def f(x):\n    x[0] = 1  # <-\n    return x"),
    "in": Illegal("indexing", "def f(x):\n    return full(x, 1 in x)  # <-"),
    "unpack": Illegal("indexing", "def f(x):\n    return full(x, max(x))  # <-"),
    "sum": Illegal("indexing", "def f(x):\n    return full(x, sum(x))  # <-"),
    "int of a sequence": Illegal("indexing", "def f(x):\n    return full(x, int(x))  # <-"),
    "list of a sequence": Illegal("indexing", "def f(x):\n    y = list(x)  # <-\n    return x"),
    # --- indices
    "index plus index": Illegal("index-arithmetic", "def f(x):\n    return indices(x) + indices(x)  # <-"),
    "index minus index": Illegal("index-arithmetic", "def f(x):\n    return indices(x) - firsts(x, x)  # <-"),
    "index times index": Illegal("index-arithmetic", "def f(x):\n    return indices(x) * indices(x)  # <-"),
    "index plus two": Illegal(
        "index-arithmetic", "def f(x):\n    return index_select(x, indices(x) + 2)  # <-"
    ),
    "index minus two": Illegal(
        "index-arithmetic", "def f(x):\n    return index_select(x, indices(x) - 2)  # <-"
    ),
    "one minus index": Illegal("index-arithmetic", "def f(x):\n    return 1 - indices(x)  # <-"),
    "minus index": Illegal("index-arithmetic", "def f(x):\n    return -indices(x)  # <-"),
    "index halved": Illegal("index-arithmetic", "def f(x):\n    return indices(x) // 2  # <-"),
    "index modulo two": Illegal("index-arithmetic", "def f(x):\n    return indices(x) % 2  # <-"),
    "index times two": Illegal("index-arithmetic", "def f(x):\n    return 2 * indices(x)  # <-"),
    "bit of an index": Illegal("index-arithmetic", "def f(x):\n    return indices(x) & 1  # <-"),
    "count modulo two": Illegal("index-arithmetic", "def f(x):\n    return cumsum(x) % 2  # <-"),
    "mean of indices": Illegal("index-arithmetic", "def f(x):\n    return kqv(x, x, indices(x), leq)  # <-"),
    "index arithmetic in a predicate": Illegal(
        "index-arithmetic",
        "def f(x):\n    return kqv(indices(x), indices(x), x, lambda k, q: k + k == q)  # <-",
    ),
    "index arithmetic through a helper": Illegal(
        "index-arithmetic", "def twice(i):\n    return i + i  # <-\n\ndef f(x):\n    return twice(indices(x))"
    ),
    "index arithmetic through the state": Illegal(
        "index-arithmetic", looped("def step(seq, at):\n    return {'at': at + 2}  # <-")
    ),
    # --- an index into a token
    "index plus token": Illegal("index-to-token", "def f(x):\n    return x + indices(x)  # <-"),
    "token minus index": Illegal("index-to-token", "def f(x):\n    return x - indices(x)  # <-"),
    "index times bool": Illegal("index-to-token", "def f(x):\n    return indices(x) * (x == 1)  # <-"),
    "tok_map of an index": Illegal(
        "index-to-token", "def f(x):\n    return tok_map(indices(x), lambda i: i % 2)  # <-"
    ),
    "seq_map of an index": Illegal(
        "index-to-token", "def f(x):\n    return seq_map(x, indices(x), lambda a, i: a + i)  # <-"
    ),
    "index plus true": Illegal("index-to-token", "def f(x):\n    return indices(x) + True  # <-"),
    "index or token": Illegal("index-to-token", "def f(x):\n    return where(x == 1, indices(x), x)  # <-"),
    "token as an address": Illegal("index-to-token", "def f(x):\n    return index_select(x, x)  # <-"),
    "token compared with an index": Illegal("index-to-token", "def f(x):\n    return x == indices(x)  # <-"),
    "index in the output": Illegal(
        "index-to-token",
        looped("def step(seq):\n    return {'seq': seq}").replace(
            "def readout(seq):\n    return seq", "def readout(at):  # <-\n    return at"
        ),
    ),
    "variable that becomes an index": Illegal(
        "index-to-token", looped("def step(seq, at):  # <-\n    return {'seq': at}")
    ),
    # --- causality
    "select to the right": Illegal(
        "causality", "def f(x):\n    return sel_width(select(x, x, equals, causal=False))  # <-"
    ),
    "select to the right, positional": Illegal(
        "causality", "def f(x):\n    return aggregate(select(x, x, leq, False), x)  # <-"
    ),
    "shift to the left": Illegal("causality", "def f(x):\n    return shift_right(x, -1)  # <-"),
    # --- steps
    "step number as a parameter": Illegal(
        "step-varies", looped("def step(seq, i):  # <-\n    return {'seq': seq + i}")
    ),
    "step number as a default": Illegal(
        "step-varies", looped("def step(seq, i=0):  # <-\n    return {'seq': seq + i}")
    ),
    "length in a step": Illegal(
        "step-varies", looped("def step(seq):\n    return {'seq': shift_right(seq, len(seq))}  # <-")
    ),
    "step number from a global": Illegal(
        "hidden-state",
        looped(
            "COUNT = 0\ndef step(seq):\n    global COUNT  # <-\n    COUNT += 1\n"
            "    return {'seq': seq * 1 + COUNT}"
        ),
        runtime=False,
    ),
    "step made for one length": Illegal(
        "hidden-state",
        looped(
            "def make(n):\n    def step(seq):  # <-\n        return {'seq': shift_right(seq, n)}\n"
            "    return step\nstep = make(2)"
        ),
    ),
    "step number from a list": Illegal(
        "hidden-state",
        looped("LOG = []\ndef step(seq):\n    LOG.append(1)  # <-\n    return {'seq': shift_right(seq, 1)}"),
        runtime=False,
    ),
    # --- recursion
    "recursion": Illegal("recursion", "def f(x):\n    return f(shift_right(x, 1))  # <-", runtime=False),
    "mutual recursion": Illegal(
        "recursion", "def f(x):\n    return g(x)\n\ndef g(x):\n    return f(x)  # <-", runtime=False
    ),
    "recursion in a scalar function": Illegal(
        "recursion",
        "def g(a):\n    return 0 if a < 1 else g(a - 1)  # <-\n\ndef f(x):\n    return tok_map(x, g)",
        runtime=False,
    ),
    # --- numpy and the rest of Python
    "np.cumsum": Illegal("numpy", "def f(x):\n    return np.cumsum(x)  # <-"),
    "np.array": Illegal("numpy", "def f(x):\n    y = np.array(x)  # <-\n    return x"),
    "np.add": Illegal("numpy", "def f(x):\n    return np.add(x, 1)  # <-"),
    "np.sort": Illegal("numpy", "def f(x):\n    return np.sort(x)  # <-"),
    "the array inside": Illegal(
        "hidden-state", "def f(x):\n    y = x._data  # <-\n    return x", runtime=False
    ),
    "unwrap": Illegal("unknown-name", "def f(x):\n    y = unwrap(x)  # <-\n    return x", runtime=False),
    "getattr": Illegal(
        "hidden-state", "def f(x):\n    y = getattr(x, '_data')  # <-\n    return x", runtime=False
    ),
    "eval": Illegal("hidden-state", "def f(x):\n    return eval('x + 1')  # <-", runtime=False),
    "import inside": Illegal("unknown-name", "def f(x):\n    import math  # <-\n    return x", runtime=False),
    "lambda over a sequence": Illegal(
        "hidden-state", "def f(x):\n    y = x + 1\n    return tok_map(x, lambda a: y)  # <-", runtime=False
    ),
    # --- precision
    "constant without bound": Illegal("precision", "def f(x):\n    return full(x, 100000)  # <-"),
    "constant of a choice without bound": Illegal(
        "precision", "def f(x):\n    return where(x == 1, 100000, x)  # <-"
    ),
    "token without bound": Illegal("precision", "def f(x):\n    return (x + 200) * 200 * 200  # <-"),
}

LEGAL: dict[str, str] = {
    "identity": "def f(x):\n    return x",
    "constant": "def f(x):\n    return full(x, 3)",
    "arithmetic": "def f(x):\n    return (x + 1) * 2 - x",
    "remainder": "def f(x):\n    return (x + 3) % 2 + x // 2",
    "logic": "def f(x):\n    return (x | 1) ^ (x & 1)",
    "boolean logic": "def f(x):\n    return ~(x == 1) | (x > 0) & (x != 2)",
    "indices": "def f(x):\n    return indices(x)",
    "successor": "def f(x):\n    return indices(x) + 1",
    "predecessor": "def f(x):\n    return index_select(x, indices(x) - 1)",
    "successor of successor": "def f(x):\n    i = indices(x) + 1\n    return i + 1",
    "order of indices": "def f(x):\n    return firsts(x, x) < indices(x)",
    "index against a constant": "def f(x):\n    return indices(x) == 0",
    "index against a full constant": "def f(x):\n    return indices(x) >= full(x, 2)",
    "count against a count": "def f(x):\n    return cumsum(x == 1) <= cumsum(x == 0)",
    "count against an index": "def f(x):\n    return cumsum(x == 1) <= indices(x)",
    "index masked": "def f(x):\n    return mask(indices(x), x == 1, -1)",
    "index either way": "def f(x):\n    return where(x == 1, firsts(x, x), indices(x))",
    "index predicate": "def f(x):\n    return kqv(indices(x), indices(x), x, lambda k, q: k == q - 1)",
    "index order predicate": "def f(x):\n    return kqv(indices(x), indices(x), x, lt, reduction='max')",
    "last index by max": "def f(x):\n    return kqv(x, x, indices(x), equals, default=-1, reduction='max')",
    "shift": "def f(x):\n    return shift_right(x, 2, default=-1)",
    "tok_map": "def f(x):\n    return tok_map(x, lambda a: 3 if a else 5)",
    "tok_map by name": (
        "def g(a):\n    if a > 0:\n        return 1\n    return 2\n\ndef f(x):\n    return tok_map(x, g)"
    ),
    "seq_map": "def f(x):\n    return seq_map(x, shift_right(x, 1), lambda a, b: a if a > b and b else b)",
    "seq_map by built-in": "def f(x):\n    return seq_map(x, shift_right(x, 1), max)",
    "seq_map of indices": "def f(x):\n    return seq_map(indices(x), firsts(x, x), gt)",
    "select and width": "def f(x):\n    return sel_width(select(x, x, equals)) > 1",
    "select, causal said": (
        "def f(x):\n    return aggregate(select(x, x, leq, causal=True), x, reduction='min')"
    ),
    "mean": "def f(x):\n    return kqv(x, x, x, lambda k, q: k >= q)",
    "where with constants": "def f(x):\n    return where(has_seen(x, full(x, 1)), 1, 0)",
    "cumulative extremes": "def f(x):\n    return maximum(x) - minimum(x)",
    "arguments of extremes": "def f(x):\n    return argmax(x) <= argmin(x)",
    "induction": "def f(x):\n    return induct(x, x, 1) + induct_prev(x, x, -1)",
    "mode and last": "def f(x):\n    return mode(x) * 2 + index_select(x, lasts(x, x))",
    "first true": "def f(x):\n    return index_select(x, first_true(x == 1))",
    "number before": "def f(x):\n    return num_prev(x, x) > 1",
    "helper": "def g(x, y):\n    return x ^ y\n\ndef f(x):\n    return g(x, shift_right(x, 1))",
    "helper with a default": (
        "def g(x, n=2):\n    return shift_right(x, n)\n\ndef f(x):\n    return g(x) + g(x, 1)"
    ),
    "helper twice": "def g(x):\n    return x + 1\n\ndef f(x):\n    return g(g(x))",
    "number of the module": "K = 3\n\ndef f(x):\n    return x + K",
    "tuple": "def g(x):\n    return x, x + 1\n\ndef f(x):\n    a, b = g(x)\n    return a + b",
    "qualified names": "import looped.rasp as rl\n\ndef f(x):\n    return rl.shift_right(x, 1)",
    "the module itself": "from looped import rasp\n\ndef f(x):\n    return rasp.full(x, 2) * x",
    "a blank": "def f(x):\n    return shift_right(x, 1, BLANK) == BLANK",
    "annotated": "def f(x: Seq) -> Seq:\n    y: Seq = x + 1\n    y += 1\n    return y",
    "a loop": looped("def step(seq, row):\n    return {'seq': shift_right(seq, 1) ^ row}"),
    "a loop over indices": looped(
        "def step(seq, at):\n    return {'at': at - 1, 'seq': index_select(seq, at)}"
    ),
    "a loop that counts": looped("def step(number, at):\n    return {'number': number + 1}"),
    "a loop with dict()": looped("def step(seq):\n    return dict(seq=shift_right(seq, 1))"),
    "a loop that begins with constants": looped(
        "def step(seq, number):\n    return {'number': where(seq == 1, number, 1) | number}"
    ),
}
