"""Legal forms of a file: everything that the grammar lists, and what an earlier checker refused.

A form is the whole text of a file; `{prepare}`, `{step}` and `{readout}` stand for three plain functions.
"""

HEAD = "from looped.rasp import *\nfrom looped.vocab import Vocab\n"
FUNCTIONS = """
def prepare(row):
    return {"seq": row}

def step(seq, row):
    return {"seq": shift_right(seq, 1) ^ row}

def readout(seq):
    return seq
"""
BASE = HEAD + FUNCTIONS + "\nVOCAB = Vocab(('0', '1'))\n"


def made(name: str = "p", **changes: str) -> str:
    fields = {
        "name": f"'{name}'",
        "vocab": "VOCAB",
        "prepare": "prepare",
        "loops": "(Loop(step, times=lambda n: n),)",
        "readout": "readout",
        "answer_size": "lambda n: n",
        "example": "'1 0 1'",
    } | changes
    return "Program(" + ", ".join(f"{key}={value}" for key, value in fields.items()) + ")"


def function(body: str, before: str = "") -> str:
    return f"{HEAD}{before}\ndef f(x):\n    return {body}\n"


FORMS: dict[str, str] = {
    # --- refused by an earlier checker
    "an annotated program": BASE + f"P: Program = {made()}\n",
    "an annotated program with dots": "import looped.rasp as rl\n" + BASE + f"P: rl.Program = {made()}\n",
    "a list of programs": BASE + f"PROGRAMS = [{made('p')}, {made('q')}]\n",
    "an annotated list of programs": BASE + f"PROGRAMS: list[Program] = [{made('p')}, {made('q')}]\n",
    "a tuple of programs": BASE + f"PROGRAMS = ({made('p')}, {made('q')})\n",
    "a dict of programs": BASE + f"PROGRAMS = {{'p': {made('p')}, 'q': {made('q')}}}\n",
    "a byte-order mark": "\ufeff" + BASE + f"P = {made()}\n",
    "a constant by min": function("x + K", "K = min(3, 5)"),
    "a constant by max": function("x + K", "A, B = 2, 3\nK = max(A, B)"),
    "a constant by max of a tuple": function("x + K", "K = max((2, 3, 1))"),
    "a constant by len": function("x + K", "VOCAB = Vocab(('0', '1'))\nK = len(VOCAB)"),
    "a constant by len of a tuple": function("x + K", "NAMES = ('a', 'b')\nK = len(NAMES) - 1"),
    "a constant by abs and int": function("x + K", "K = abs(-3) + int('4')"),
    "a constant by sum": function("x + K", "K = sum((1, 2, 3))"),
    "a lambda of the module": function("tok_map(x, double)", "double = lambda a: 2 * a"),
    "a lambda of the module as a predicate": function("kqv(x, x, x, near)", "near = lambda k, q: k + 1 >= q"),
    "a lambda of the module for times": BASE
    + "times = lambda n: n\n"
    + f"P = {made(loops='(Loop(step, times),)')}\n",
    "a lambda of the module for sizes": BASE
    + "size = lambda n: n + 1\n"
    + f"P = {made(answer_size='size')}\n",
    "a dotted import": "import looped.rasp\n\ndef f(x):\n    return looped.rasp.shift_right(x, 1)\n",
    "two dotted imports": (
        "import looped.rasp.core\nimport looped.rasp.library\n\n"
        "def f(x):\n    return looped.rasp.library.where(x == 1, looped.rasp.core.full(x, 2), 0)\n"
    ),
    "a dotted vocabulary": "import looped.vocab\n"
    + BASE.replace("Vocab((", "looped.vocab.Vocab((")
    + f"P = {made()}\n",
    "a dotted program": "import looped.rasp\n" + BASE + "P = looped.rasp." + made() + "\n",
    "a dotted predicate": "import looped.rasp as r\n\ndef f(x):\n    return r.kqv(x, x, x, r.leq)\n",
    # --- imports
    "a module under another name": "from looped import rasp as rl\n\ndef f(x):\n    return rl.seen(x == 1)\n",
    "a module of the package": "from looped.rasp import library\n\ndef f(x):\n    return library.cumsum(x == 1) > 2\n",
    "names under other names": "from looped.rasp.library import seen as was\n\ndef f(x):\n    return was(x == 1)\n",
    "imports for types": (
        "from __future__ import annotations\nfrom typing import Any\nfrom collections.abc import Callable\n"
        "from looped.rasp import Seq, full\n\ndef f(x: Seq) -> Seq | Any:\n    return full(x, 1)\n"
    ),
    "imports for the main block": (
        "from looped.rasp import run, seq, unwrap\nfrom looped.rasp.trace import trace\n"
        + BASE
        + f"P = {made()}\nif __name__ == '__main__':\n    import os\n    print(trace(P, [0]), os)\n"
    ),
    "an unused numpy": "import numpy as np\n" + BASE + f"P = {made()}\n",
    # --- module level
    "a vocabulary by comprehension": HEAD
    + FUNCTIONS
    + "VOCAB = Vocab(tuple(str(i) for i in range(12) if i != 3))\n"
    + f"P = {made(example=chr(39) + '1 0' + chr(39))}\n",
    "a vocabulary by f-string": HEAD
    + FUNCTIONS
    + "VOCAB = Vocab(tuple(f'{a}{b}' for a in 'xy' for b in (0, 1)))\n"
    + f"P = {made(example=chr(39) + 'x0 y1' + chr(39))}\n",
    "a vocabulary by sums": HEAD
    + FUNCTIONS
    + "BITS = ('0',) + ('1',)\nVOCAB = Vocab((*BITS, '+'))\n"
    + f"P = {made()}\n",
    "ids of a vocabulary": function(
        "x + ONE + E", "V = Vocab(('0', '1'))\nONE, E = V.id('1'), V.eos\nZ, O = V.encode('01')"
    ),
    "fields of a vocabulary": function("x + K", "V = Vocab(('0', '1'))\nK = len(V.symbols) + len(V.names)"),
    "arithmetic of constants": function("x + K", "K = (2 ** 4 - 1) % 7 + (1 << 2) // 3"),
    "negative constants": function("where(x == 1, HOLE, x)", "HOLE = -2"),
    "a boolean constant": function("x == FLAG", "FLAG = True"),
    "two names for one number": function("x + A + B", "A = B = 2"),
    "an annotation without a value": function("x + 1", "K: int"),
    "text and pass": function("x + 1", "'notes'\npass"),
    "an alias of a function": HEAD + "def g(x):\n    return x + 1\n\nh = g\n\ndef f(x):\n    return h(x)\n",
    "a name of the library for an own function": HEAD
    + "def mode(x):\n    return x + 1\n\ndef f(x):\n    return mode(x)\n",
    # --- programs
    "positional fields": BASE
    + "P = Program('p', VOCAB, prepare, (Loop(step, lambda n: n),), readout, lambda n: n, '1 0')\n",
    "loops in a list": BASE + f"P = {made(loops='[Loop(step, times=lambda n: n)]')}\n",
    "no loop": BASE + f"P = {made(loops='()')}\n",
    "loops in loops": BASE + f"P = {made(loops='(Loop((step, Loop(step, lambda n: 2)), lambda n: n),)')}\n",
    "a tuple of loops by name": BASE
    + "LOOPS = (Loop(step, lambda n: n), Loop(step, lambda n: 1))\n"
    + f"P = {made(loops='LOOPS')}\n",
    "times by a function": BASE
    + "def times(n):\n    half = n // 2\n    return half + 1\n"
    + f"P = {made(loops='(Loop(step, times),)')}\n",
    "times by bit_length": BASE + f"P = {made(loops='(Loop(step, lambda n: n.bit_length()),)')}\n",
    "a loop that an example never does": BASE
    + f"P = {made(loops='(Loop(step, lambda n: max(0, n - 9)),)')}\n",
    "many steps": BASE + f"P = {made(loops='(Loop(step, lambda n: 5000 * n),)')}\n",
    "separators and tokens": HEAD
    + FUNCTIONS
    + "VOCAB = Vocab(('0', '1', '+'))\n"
    + made(
        example="'1 0 + 1 1'",
        separators="('+',)",
        tokens="('seq',)",
        loops="(Loop(step, lambda n, m: n + m),)",
        answer_size="lambda n, m: n",
    ).join(["P = ", "\n"]),
    "a state by name": BASE.replace('return {"seq": row}', "state = {'seq': row}\n    return state")
    + f"P = {made()}\n",
    # --- functions of numbers
    "a choice": function("tok_map(x, lambda a: 1 if a > 0 else -1)"),
    "chained and combined": function("tok_map(x, lambda a: 0 <= a < 2 and not a == 1 or a > 5)"),
    "in a tuple": function("tok_map(x, lambda a: a in (0, 2) or a not in (1, K))", "K = 4"),
    "branches and locals": HEAD
    + (
        "def g(a: int) -> int:\n    '''Sign.'''\n    if a > 0:\n        sign = 1\n    elif a < 0:\n        sign = -1\n"
        "    else:\n        return 0\n    sign *= 2\n    return sign\n\ndef f(x):\n    return tok_map(x, g)\n"
    ),
    "two values": HEAD
    + "def g(a):\n    q, r = divmod(a, 3)\n    return q + r\n\ndef f(x):\n    return tok_map(x, g)\n",
    "a function that calls another": HEAD
    + (
        "def h(a, b=2):\n    if a:\n        return b\n    return a\n\ndef g(a):\n    return h(a) + h(a, 1)\n\n"
        "def f(x):\n    return tok_map(x, g)\n"
    ),
    "a function with an if that only others call": HEAD
    + (
        "def inner(a):\n    return 1 if a else 0\n\ndef outer(k, q):\n    return inner(k) == inner(q)\n\n"
        "def f(x):\n    return kqv(x, x, x, outer)\n"
    ),
    "min and abs as functions": function("seq_map(x, tok_map(x, abs), min)"),
    "a constant predicate": function("kqv(x, x, x, lambda k, q: True, reduction='max')"),
    "powers and shifts": function("tok_map(x, lambda a: (a + 1) ** 2 - (a << 1) >> 1)"),
    # --- straight-line code
    "keywords": function("kqv(k=x, q=x, v=x, pred=leq, default=1, reduction='min')"),
    "positional reduction": function("aggregate(select(x, x, equals), x, 0, 'max')"),
    "keyword-only helper": HEAD
    + "def g(x, *, n=1):\n    return shift_right(x, n)\n\ndef f(x):\n    return g(x, n=2)\n",
    "two returned sequences": HEAD
    + "def g(x):\n    return x, x + 1\n\ndef f(x):\n    a, b = g(x)\n    c = d = a\n    return b + c + d\n",
    "names of Python's functions": HEAD
    + "def f(sum):\n    max = sum + 1\n    list = max * 2\n    return list\n",
    "a mean of 64": function("kqv(x, x, where(x == 1, 64, -64), leq)"),
    "a selector by name": HEAD
    + "def f(x):\n    s = select(x, x, leq)\n    return where(sel_width(s) > 1, aggregate(s, x), x)\n",
    "two programs in one file": HEAD + "def f(x):\n    return x\n\ndef g(x):\n    return x + 1\n",
}
