"""Check the project's prose: words that STYLE calls private, spelling, and terms used before they are defined.

    python -m scripts.prose        prints `file:line: what is wrong` and exits with 1, or prints nothing

It reads README, CONTRIBUTING and `docs/` (not `docs/log.md`: old entries keep their words), and of `looped`,
`benchmarks` and `scripts` the docstrings, help texts and `InputError` sentences. Code, between fences or
backticks, may use any word. On the pages of `FIRST` a term of the glossary must be a link to the glossary
or to its own page, or in emphasis where the page itself defines it, the first time it is used.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("looped", "benchmarks", "scripts")
FIRST = ("README.md", "docs/index.md")  # what a new reader sees first
EXCLUDED = ("docs/log.md",)

PER = (
    "seed|task|line|length|problem|question|row|token|position|place|batch|run|command|file|step|stage|launch"
)
COUNTED = (
    r"one|\d[\d,.]* \w*s|ms|(?:problem|sample|second|digit|graph|file|launche|operation|byte)s"
    r"|(?:one|two) (?:row|object|token|bit|digit|position|line)|a (?:line|column|panel|field|graph|row)"
)
# what may not be written → what to write
WORDS = {
    r"seats?": "row capacity",
    r"ladders?|climb\w*": "length sweep",
    r"rungs?": "evaluation length",
    r"tall(?:y|ies)": "partial counts",
    r"famil(?:y|ies)": "input distribution",
    r"shel(?:f|ves)": "registry",
    r"parcels?": "batch",
    r"sittings?": "session",
    r"desks?": "queue folder",
    r"steady": "gradient-growth clip",
    r"dwell\w*": "steps per stage",
    r"trailing": "loss-on-padding mode, or the # after the answer",
    r"surpris\w+": "NLL of the argmax",
    r"bystanders?": "no-op run folder",
    r"gauges?": "timing",
    r"anatomy": "profile",
    r"living": "allocated",
    r"(?:the|a|that|each|its|their|whose|every|of|end-of-\w+) marks?": "end-of-question token, or halting head",
    r"(?:some|no|every)body|whoever": "the reader, the user, or the passive",
    r"newcomer\w*": "new user",
    r"mercy|blow|riddles?": "plain words",
    rf"(?:{COUNTED}) an? (?:{PER})": "per, or for each",
}
BANNED = [
    (re.compile(rf"(?<![-\"/.])\b(?:{word})\b(?![=_])", re.I), instead) for word, instead in WORDS.items()
]
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
ELSEWHERE = re.compile(r"\[[^\]]*\]\(https?:[^)]*\)")  # a link to another site: its words are not ours
NOT_PROSE = re.compile(r"^\s*\$ .*$|<!--.*?-->|``.*?``|`[^`\n]*`|(?<=\])\([^)]*\)|https?://\S+", re.M | re.S)
DEFINITION = re.compile(
    r"\*[^*\n]+\*|\[[^\]]*\]\([^):]*\.md[^):]*\)"
)  # emphasis, or a link to a page of ours


@dataclass(frozen=True)
class Text:
    """A piece of prose, and where it begins."""

    path: str
    line: int
    text: str


def prose_of(text: str) -> str:
    """The text with everything that is not prose blanked out; lines stay where they are."""
    for pattern in (FENCE, NOT_PROSE):
        text = pattern.sub(_blanked, text)
    return text


def _blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def pages(root: Path = ROOT) -> Iterator[Text]:
    """README, CONTRIBUTING and the documentation."""
    for path in (root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))):
        name = path.relative_to(root).as_posix()
        if name not in EXCLUDED:
            yield Text(name, 1, path.read_text(encoding="utf-8"))


def sentences_of_code(source: str, name: str) -> Iterator[Text]:
    """Docstrings, the help below a field, summaries of commands and the sentences of `InputError`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)) as where):
                yield Text(name, where.lineno, text)
            case ast.Call(func=ast.Name(id="InputError" | "Option" | "Positional")):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield Text(name, part.lineno, part.value)
            case ast.AnnAssign(target=ast.Name(id="COMMANDS"), value=ast.Dict(values=rows)):
                for part in (part for row in rows for part in ast.walk(row)):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield Text(name, part.lineno, part.value)


def code(root: Path = ROOT) -> Iterator[Text]:
    """All prose of the Python files."""
    for path in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        yield from sentences_of_code(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())


def banned(piece: Text) -> Iterator[str]:
    """`file:line: "ladder": write length sweep`."""
    text = prose_of(piece.text)
    for pattern, instead in BANNED:
        for match in pattern.finditer(text):
            line = piece.line + text.count("\n", 0, match.start())
            yield f'{piece.path}:{line}: "{" ".join(match[0].split())}": write {instead}'


def terms_of(glossary: str) -> dict[str, str]:
    """Term → heading: `### Full-output prediction (FOP)` gives both names."""
    found: dict[str, str] = {}
    for heading in re.findall(r"^### (.+)$", prose_of(glossary), flags=re.M):
        match = re.fullmatch(r"(.*?)(?: \(([A-Z]+)\))?", heading)
        assert match is not None
        found |= {name: heading for name in match.groups() if name}
    return found


def undefined(page: Text, terms: dict[str, str]) -> Iterator[str]:
    """Terms whose first use on a page is neither a link to a page of ours nor in emphasis."""
    text = page.text
    for pattern in (FENCE, ELSEWHERE, re.compile(r"<!--.*?-->|`[^`\n]*`|!\[[^\]]*\]\([^)]*\)", re.S)):
        text = pattern.sub(_blanked, text)
    defined = [match.span() for match in DEFINITION.finditer(text)]
    shown = re.sub(r"(?<=\])\([^)]*\)", lambda match: " " * len(match[0]), text)
    for term in terms:
        spelled = re.escape(term).replace(r"\ ", r"\s+")
        match = re.search(rf"(?<![\w-]){spelled}s?(?![\w-])", shown, re.I if not term.isupper() else 0)
        if match and not any(first <= match.start() < last for first, last in defined):
            line = text.count("\n", 0, match.start()) + 1
            yield f'{page.path}:{line}: "{term}" is used before it is defined: link it to the glossary'


def misspelled(root: Path = ROOT) -> list[str]:
    """What codespell finds in pages and code."""
    names = ["README.md", "CONTRIBUTING.md", "docs", "Makefile", *CODE]
    command = [
        sys.executable,
        "-m",
        "codespell_lib",
        "--skip=*/vendor/*",
        "--ignore-words-list=notin",
        *names,
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines() if done.returncode else []


def problems(root: Path = ROOT) -> Iterator[str]:
    """All that is wrong, in the order of the files."""
    terms = terms_of((root / "docs" / "glossary.md").read_text(encoding="utf-8"))
    for piece in (*pages(root), *code(root)):
        yield from banned(piece)
        if piece.path in FIRST:
            yield from undefined(piece, terms)
    yield from misspelled(root)


def main() -> int:
    """Print every problem; 1 if there is one."""
    found = list(problems())
    print("\n".join(found), end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
