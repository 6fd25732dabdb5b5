"""Hostile files: code that must not run, tricks around the rules, and programs that would never end.

Each is the text of a file after `HEADER`. `RUN` stands for an expression that would create the trap file. `# <-` marks
the line of a broken rule, which is one of `rules`; without a mark, the whole file is refused in a sentence.
"""

from typing import NamedTuple

HEADER = "from looped.rasp import *\nfrom looped.vocab import Vocab\nimport numpy as np\n"
RUN = "__import__('pathlib').Path(TRAP).touch()"
F = "def f(x):\n    return x\n"


class Hostile(NamedTuple):
    rules: str  # any of these, separated by spaces
    text: str


def program(step: str = "seq", **changes: str) -> str:
    """A file with one program, with some of its parts replaced."""
    parts = {
        "before": "",
        "prepare": "row",
        "readout": "seq",
        "times": "lambda n: n",
        "size": "lambda n: n",
        "example": "'1 0 1'",
        "vocab": "Vocab(('0', '1'))",
        "loops": "",
    } | changes
    loops = parts["loops"] or f"(Loop(step, {parts['times']}),)"
    return (
        f"{parts['before']}\n"
        f"def prepare(row):\n    return {{'seq': {parts['prepare']}}}\n"
        f"def step(seq, row):\n    return {{'seq': {step}}}\n"
        f"def readout(seq, row):\n    return {parts['readout']}\n"
        f"P = Program('p', {parts['vocab']}, prepare, {loops}, readout, {parts['size']}, {parts['example']})\n"
    )


# --- code that must not run ---------------------------------------------------------------------------------
CODE: dict[str, Hostile] = {
    "a builtin shadowed by an assignment": Hostile(
        "hidden-state", f"bool = exec  # <-\ndef f(x):\n    return tok_map(x, lambda a: bool({RUN!r}))\n"
    ),
    "a builtin shadowed by an import": Hostile(
        "hidden-state", f"from numpy.testing import measure as int  # <-\nK = int({RUN!r})\n" + F
    ),
    "a builtin shadowed by a function": Hostile("hidden-state", "def max(x):  # <-\n    return x\n" + F),
    "a call of an imported name": Hostile(
        "hidden-state", f"from numpy.testing import measure\nK = measure({RUN!r})  # <-\n" + F
    ),
    "a comprehension target with an attribute": Hostile(
        "hidden-state", "K = [0 for Vocab.id in (1, 2)]  # <-\n" + F
    ),
    "a comprehension target with an index": Hostile(
        "hidden-state", "L = [0]\nK = [0 for L[0] in (1, 2)]  # <-\n" + F
    ),
    "the condition of a comprehension": Hostile(
        "hidden-state", f"K = [0 for i in (1, 2) if {RUN}]  # <-\n" + F
    ),
    "the source of a comprehension": Hostile("hidden-state", f"K = [0 for i in [{RUN}]]  # <-\n" + F),
    "else of the main block": Hostile(
        "hidden-state", f"if __name__ == '__main__':  # <-\n    pass\nelse:\n    {RUN}\n" + F
    ),
    "elif of the main block": Hostile(
        "hidden-state", f"if __name__ == '__main__':  # <-\n    pass\nelif True:\n    {RUN}\n" + F
    ),
    "the test of the main block": Hostile(
        "hidden-state", f"if __name__ == '__main__' or {RUN}:  # <-\n    pass\n" + F
    ),
    "another main block": Hostile("hidden-state", f"if '__main__' == __name__:  # <-\n    {RUN}\n" + F),
    "the receiver of a method": Hostile("hidden-state", f"K = exec({RUN!r}).id('0')  # <-\n" + F),
    "a method of the receiver": Hostile("hidden-state", "K = Vocab(('0',)).id.__call__('0')  # <-\n" + F),
    "keywords of bit_length": Hostile(
        "hidden-state", f"def f(x):\n    return tok_map(x, lambda a: a.bit_length(b={RUN}))  # <-\n"
    ),
    "the receiver of bit_length": Hostile(
        "hidden-state unknown-name",
        f"def f(x):\n    return tok_map(x, lambda a: ({RUN}).bit_length())  # <-\n",
    ),
    "import os": Hostile("unknown-name", "import os  # <-\nos.system('touch ' + TRAP)\n" + F),
    "an operation shadowed by an import": Hostile(
        "unknown-name",
        "from os import system as shift_right  # <-\ndef f(x):\n    return shift_right(x, 1)\n",
    ),
    "a relative import": Hostile("unknown-name", "from . import trap  # <-\n" + F),
    "everything of numpy": Hostile("hidden-state", f"from numpy import *\nK = fromfile({RUN})  # <-\n" + F),
    "a decorator": Hostile("hidden-state", f"@{RUN}  # <-\ndef f(x):\n    return x\n"),
    "a default": Hostile("hidden-state", f"def f(x, y={RUN}):  # <-\n    return x\n"),
    "a default after a number": Hostile("hidden-state", f"def f(x, y=1, z={RUN}):  # <-\n    return x\n"),
    "the default of a lambda": Hostile(
        "hidden-state", f"def f(x):\n    return tok_map(x, lambda a, b={RUN}: a)  # <-\n"
    ),
    "a keyword-only default": Hostile("hidden-state", f"def f(x, *, y={RUN}):  # <-\n    return x\n"),
    "an annotation": Hostile("hidden-state", f"def f(x: {RUN}):  # <-\n    return x\n"),
    "a returned annotation": Hostile("hidden-state", f"def f(x) -> {RUN}:  # <-\n    return x\n"),
    "an annotated name": Hostile("hidden-state", f"K: {RUN} = 1  # <-\n" + F),
    "a local annotation": Hostile("hidden-state", f"def f(x):\n    y: {RUN} = x  # <-\n    return y\n"),
    "a class": Hostile("hidden-state", f"class A:  # <-\n    {RUN}\n" + F),
    "a with block": Hostile("hidden-state", f"with {RUN}:  # <-\n    pass\n" + F),
    "a try block": Hostile("hidden-state", f"try:  # <-\n    {RUN}\nexcept Exception:\n    pass\n" + F),
    "an expression": Hostile("hidden-state", f"{RUN}  # <-\n" + F),
    "an assertion": Hostile("hidden-state", f"assert {RUN}  # <-\n" + F),
    "an f-string": Hostile("hidden-state", 'K = f"""{' + RUN + '}"""  # <-\n' + F),
    "a format in an f-string": Hostile("hidden-state", "K = f'{1:>{2}}'  # <-\n" + F),
    "a walrus": Hostile("hidden-state", f"K = (y := {RUN})  # <-\n" + F),
    "a subscript": Hostile("hidden-state", f"K = [{RUN}][0]  # <-\n" + F),
    "the builtins": Hostile("hidden-state", f"K = __builtins__.exec({RUN!r})  # <-\n" + F),
    "the subclasses of object": Hostile(
        "hidden-state", "K = ().__class__.__base__.__subclasses__()  # <-\n" + F
    ),
    "the globals of a method": Hostile("hidden-state", "K = Vocab.__init__.__globals__  # <-\n" + F),
    "a patched class": Hostile("hidden-state", "Program.__post_init__ = print  # <-\n" + F),
    "a patched limit": Hostile(
        "hidden-state", "import looped.rasp.core as c\nc.MEAN_LIMIT = 10 ** 9  # <-\n" + F
    ),
    "a patched operation": Hostile(
        "hidden-state", "import looped.rasp\nlooped.rasp.core.kqv = 3  # <-\n" + F
    ),
    "the checker called": Hostile(
        "hidden-state", "from looped.rasp import lint\nK = lint.check_file('/etc/passwd')  # <-\n" + F
    ),
    "exec in a predicate": Hostile("unknown-name", "def f(x):\n    return kqv(x, x, x, exec)  # <-\n"),
    "eval as a function of tokens": Hostile("unknown-name", "def f(x):\n    return tok_map(x, eval)  # <-\n"),
    "print in a function": Hostile("hidden-state", "def f(x):\n    print(x)  # <-\n    return x\n"),
    "a file of numpy": Hostile("numpy", "def f(x):\n    np.save('trap', x)  # <-\n    return x\n"),
    "a function of times that runs code": Hostile("hidden-state", program(times=f"lambda n: {RUN}  # <-\n")),
    "a private field of Program": Hostile(
        "hidden-state", program().replace("'1 0 1')", "'1 0 1', _signatures={})  # <-")
    ),
    "a star in a call": Hostile("hidden-state", f"K = Vocab(*{RUN})  # <-\n" + F),
    "a starred value": Hostile("hidden-state", "K = *(1, 2),\nL = [*'ab', *exec]  # <-\n" + F),
    "a branch that no trial takes": Hostile(
        "hidden-state", f"def f(x):\n    return tok_map(x, lambda a: {RUN} if a > 40 else a)  # <-\n"
    ),
    "code in a branch of a function of numbers": Hostile(
        "hidden-state",
        f"def g(a):\n    if a > 1000:\n        exec({RUN!r})  # <-\n    return a\n\n"
        "def f(x):\n    return tok_map(x, g)\n",
    ),
}

# --- tricks around the rules --------------------------------------------------------------------------------
PARITY_BY_MEAN = """def ratio(a):
    return (30000 // a) % 2 if a else 0

def f(x):
    first = where(indices(x) == 0, 30000, 0)
    share = kqv(x, full(x, 1), first, equals)  # <-
    return tok_map(share, ratio)
"""
RULES: dict[str, Hostile] = {
    "text formatting": Hostile("indexing", "def f(x):\n    return full(x, '%s' % (x,))  # <-\n"),
    "an f-string of a sequence": Hostile("indexing", "def f(x):\n    return full(x, f'{x}')  # <-\n"),
    "str.format": Hostile("hidden-state", "def f(x):\n    return full(x, '{0}'.format(x))  # <-\n"),
    "str of a sequence": Hostile("indexing", "def f(x):\n    return full(x, str(x))  # <-\n"),
    "hash of a sequence": Hostile("indexing", "def f(x):\n    return full(x, hash(x))  # <-\n"),
    "dict keys": Hostile("hidden-state", "def f(x):\n    return {x: 1}  # <-\n"),
    "a nested dict": Hostile("hidden-state", "def f(x):\n    return {'a': {'b': x}}  # <-\n"),
    "a comparison of tuples": Hostile("indexing", "def f(x):\n    return full(x, (x, 1) == (x, 2))  # <-\n"),
    "a comparison of lists": Hostile("indexing", "def f(x):\n    return full(x, [x] == [x])  # <-\n"),
    "a sequence in a tuple": Hostile(
        "indexing control-flow", "def f(x):\n    return full(x, x in (x,))  # <-\n"
    ),
    "a dict compared": Hostile("hidden-state", "def f(x):\n    return full(x, {'a': x} == {'a': x})  # <-\n"),
    "dict with a mapping": Hostile("hidden-state", "def f(x):\n    return dict(**x)  # <-\n"),
    "a mutable default": Hostile("hidden-state", "def f(x, log=[]):  # <-\n    return x\n"),
    "an attribute of a function": Hostile("hidden-state", "def f(x):\n    f.n = 1  # <-\n    return x\n"),
    "an augmented global": Hostile("hidden-state", "K = 0\ndef f(x):\n    K += 1  # <-\n    return x + K\n"),
    "a name read before it is assigned": Hostile(
        "hidden-state", "K = 0\ndef f(x):\n    y = x + K  # <-\n    K = 1\n    return y + K\n"
    ),
    "an import over a function": Hostile(
        "hidden-state",
        "def mode_of(x):\n    return x\n\nfull = 3\nfrom looped.rasp.core import *  # <-\n" + F,
    ),
    "a captured sequence": Hostile("hidden-state", "def f(x):\n    return tok_map(x, lambda a: x)  # <-\n"),
    "a mean of 30,000s": Hostile("mean-range", PARITY_BY_MEAN),
    "a mean of 30,000s by aggregate": Hostile(
        "mean-range",
        "def f(x):\n    v = (x == x) * 30000\n    return aggregate(select(x, x, leq), v)  # <-\n",
    ),
    "a mean of 65": Hostile("mean-range", "def f(x):\n    return kqv(x, x, full(x, 65), equals)  # <-\n"),
    "a mean that one symbol makes large": Hostile(
        "mean-range", "def f(x):\n    return kqv(x, x, where(x == 7, 30000, 0), leq)  # <-\n"
    ),
    "a mean that a symbol of the vocabulary makes large": Hostile(
        "mean-range",
        program(
            "seq",
            vocab="Vocab(('0', '1', 'a', 'b'))",
            prepare="kqv(row, row, where(row == 3, 9000, 0), leq)  # <-\n",
        ),
    ),
    "a mean after many steps": Hostile(
        "mean-range", program("kqv(row, row, seq, leq) * 9 + 9  # <-\n", times="lambda n: 9")
    ),
    "a step that the example never does": Hostile(
        "index-arithmetic",
        program("where(indices(row) + 2 == 1, seq, row)  # <-\n", times="lambda n: 0 if n < 100 else n"),
    ),
    "an index through a tuple": Hostile(
        "index-to-token",
        "def g(x):\n    return x, indices(x)\n\ndef f(x):\n    a, b = g(x)\n    return a + b  # <-\n",
    ),
    "an index through a default": Hostile(
        "index-to-token", "def f(x):\n    return tok_map(where(x == 1, indices(x), 0), abs)  # <-\n"
    ),
    "a count through max": Hostile(
        "index-to-token", "def f(x):\n    return seq_map(cumsum(x), x, max)  # <-\n"
    ),
    "a count through a predicate": Hostile(
        "index-arithmetic", "def f(x):\n    return kqv(cumsum(x), x, x, lambda k, q: k % 2 == 0)  # <-\n"
    ),
    "a branch in a predicate of indices": Hostile(
        "control-flow",
        "def f(x):\n    return kqv(indices(x), indices(x), x, lambda k, q: True if k < q else False)  # <-\n",
    ),
    "min in a predicate of indices": Hostile(
        "argument control-flow indexing",
        "def f(x):\n    return kqv(indices(x), indices(x), x, lambda k, q: min(k, q) == 0)  # <-\n",
    ),
    "an operation on numbers": Hostile(
        "unknown-name", "def f(x):\n    return tok_map(x, lambda a: shift_right(a, 1))  # <-\n"
    ),
    "a selector added": Hostile("argument", "def f(x):\n    return select(x, x, equals) + 1  # <-\n"),
    "too many arguments": Hostile("argument", "def f(x):\n    return shift_right(x, 1, 0, 0)  # <-\n"),
    "an unknown keyword": Hostile("argument", "def f(x):\n    return shift_right(x, count=1)  # <-\n"),
    "a float": Hostile("argument", "def f(x):\n    return x + 0.5  # <-\n"),
    "a mutual recursion of numbers": Hostile(
        "recursion",
        "def g(a):\n    return h(a)\n\ndef h(a):\n    return g(a)  # <-\n\ndef f(x):\n    return tok_map(x, g)\n",
    ),
    "a recursion through another name": Hostile(
        "recursion", "def f(x):\n    return again(x)  # <-\n\nagain = f\n"
    ),
    "a recursion through a lambda": Hostile(
        "recursion", "g = lambda a: g(a)  # <-\ndef f(x):\n    return tok_map(x, g)\n"
    ),
}

RULES |= {
    f"{made} as a part of a program": Hostile(
        "argument", program(loops="()").replace("readout, lambda", f"{made}, lambda") + "\n"
    )
    for made in ("Vocab", "Loop", "seen", "full")
}

# --- programs that would never end --------------------------------------------------------------------------
DOUBLED = "def f0(x):\n    return x\n" + "".join(
    f"def f{i}(x):\n    return f{i - 1}(f{i - 1}(x))\n" for i in range(1, 41)
)
CHAIN = "def f0(x):\n    return x\n" + "".join(
    f"def f{i}(x):\n    return f{i - 1}(x)\n" for i in range(1, 900)
)
SLOW: dict[str, Hostile] = {
    "a while loop": Hostile("hidden-state", "while True:  # <-\n    pass\n" + F),
    "a for loop": Hostile("hidden-state", "for i in range(10 ** 12):  # <-\n    pass\n" + F),
    "a while loop in a function": Hostile("control-flow", "def f(x):\n    while True:  # <-\n        pass\n"),
    "a tower of powers": Hostile("precision", "K = 10 ** 10 ** 10  # <-\n" + F),
    "a power in a function of numbers": Hostile(
        "precision", "def f(x):\n    return tok_map(x, lambda a: (a + 9) ** 10 ** 9)  # <-\n"
    ),
    "a shift": Hostile("precision", "K = 1 << 10 ** 10  # <-\n" + F),
    "a negative power": Hostile("precision", "K = 2 ** -1  # <-\n" + F),
    "a long range": Hostile("budget", "K = tuple(range(10 ** 12))  # <-\n" + F),
    "a long tuple": Hostile("argument", "K = (0,) * 10 ** 12  # <-\n" + F),
    "a long text": Hostile("argument", "K = 'ab' * 10 ** 12  # <-\n" + F),
    "a nested comprehension": Hostile(
        "budget", "R = range(9000)\nK = len([0 for i in R for j in R for k in R])  # <-\n" + F
    ),
    "a comprehension without items": Hostile(
        "budget", "R = range(9000)\nK = len([0 for i in R for j in R if i > 9000])  # <-\n" + F
    ),
    "lists summed": Hostile(
        "argument", "L = [list(range(9000)) for i in (1, 2)]\nK = sum(L, [])  # <-\n" + F
    ),
    "many large tuples": Hostile(
        "budget", "\n".join(f"K{i} = tuple(range(10000))" for i in range(2000)) + "\n" + F
    ),
    "a tree of calls": Hostile("budget", DOUBLED + "def f(x):\n    return f40(x)\n"),
    "a tree of calls of numbers": Hostile(
        "budget",
        DOUBLED.replace("(x):", "(a):").replace("(x)", "(a)").replace("return x", "return a + 1")
        + "def f(x):\n    return tok_map(x, lambda a: f40(a))\n",
    ),
    "a billion steps": Hostile("budget", program(times="lambda n: 10 ** 9")),
    "nested loops": Hostile(
        "budget", program(loops="(" + "Loop((step, " * 12 + "step" + "), lambda n: 10 * n)" * 12 + ",)")
    ),
    "a billion positions": Hostile("budget", program(size="lambda n: 10 ** 9")),
    "a long example": Hostile("budget", program(example="'1 0 ' * 2400")),
    "a long row and all pairs": Hostile(
        "budget",
        program(
            "kqv(indices(row), indices(row), kqv(indices(row), indices(row), seq, lt), leq)",
            size="lambda n: 4000",
        ),
    ),
    "a predicate over many values": Hostile(
        "budget",
        program(
            "seq",
            size="lambda n: 1500",
            prepare="kqv(v(row), v(row), row, lambda k, q: (k * 7 + q * 3) % 11 == (k - q) % 5)",
            before="def v(row):\n    a = row\n"
            + "".join(f"    a = (a * 2 + shift_right(a, {2**i}) * 3 + 1) % 3001\n" for i in range(9))
            + "    return a\n",
        ),
    ),
    "an endless function of sizes": Hostile("precision", program(times="lambda n: n ** n ** n ** 9")),
}

# --- files that cannot be read ------------------------------------------------------------------------------
UNREADABLE: dict[str, str] = {
    "parentheses": "K = " + "(" * 3000 + ")" * 3000 + "\n" + F,
    "signs": "K = " + "-" * 50_000 + "1\n" + F,
    "a long sum": "K = " + "1 + " * 50_000 + "1\n" + F,
    "a deep sum in a function": "def f(x):\n    return " + "x + " * 5_000 + "x\n",
    "a huge number": "K = " + "9" * 200_000 + "\n" + F,
    "a huge file": "# " + "x" * 300_000 + "\n" + F,
    "a null byte": "K = 1\0\n" + F,
    "a long chain of calls": CHAIN + "def f(x):\n    return f899(x)\n",
    "no program": "K = 1\n",
    "many programs": "".join(f"def f{i}(x):\n    return x\n" for i in range(2000)),
}
