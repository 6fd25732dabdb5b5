"""`looped trace` runs an n-RASP-L program and shows every variable; `looped check` names what is illegal in one.

$ looped trace copy 10
copy 10: 2 steps, answer 10

step  variable  1 0 > # #
   0  seq       1 0 # # #
   1  seq       · 1 0 # #
   2  seq       · · 1 0 #
 out            * * 1 0 #

The program of a FILE.py is checked and interpreted; nothing of the file is executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from looped.cli.arguments import Option, Positional
from looped.errors import InputError
from looped.output import print_json
from looped.rasp import programs
from looped.rasp.lint import check_file
from looped.rasp.program import Program
from looped.rasp.trace import Trace, shown_steps, trace

if TYPE_CHECKING:  # models need torch, which the program alone does not
    from looped.solve import Voice

MOST_SHOWN = 2_000_000  # tokens of a model's steps that are all kept
MOST_VALUES = 64_000_000  # of a JSON trace, which is held as a whole


@dataclass(frozen=True)
class TraceArgs:
    """Run an n-RASP-L program on a question and print variable × step."""

    task: Annotated[str, Positional("TASK|FILE.py")]
    """The task's name, long_multiplication (two factors of any length), or a file with a Program."""
    question: Annotated[str, Positional("QUESTION")]
    """As people type it: 1101, 1011+0110, 11*110, "1 4 2 2 4 3"."""
    name: str | None = None
    """Which program of a file with several."""
    model: Annotated[tuple[str, ...], Option("NAME|PATH", default="(repeatable)", repeat=True)] = ()
    """Also a shipped model (fast, copy-fast), a run's folder or a checkpoint, beside the program compiled into weights;
    `compiled` for that alone."""
    device: str = "auto"
    """Of the models: auto, cpu, cuda or cuda:N."""
    json: bool = False
    """One JSON object with every step; a table leaves out the middle of a long one."""


def run_trace(args: TraceArgs) -> int:
    """Trace and print."""
    program, question = read(args.task, args.question, args.name)
    if program.file is not None and args.model:
        raise InputError("--model goes with the program of a task, not of a file; compile the file instead")
    row = program.row(question)
    steps = program.total(program.sizes(row.tolist()))
    if args.json:
        _check_size(program, steps, len(row))
    heard: list[Voice] = []
    if args.model:
        from looped import devices
        from looped.solve import voices

        short = steps * len(row) <= MOST_SHOWN  # all is kept: a model may take more steps than the program
        keep = None if args.json or short else shown_steps(steps)
        heard = voices(program, question, args.model, devices.pick(args.device), keep)
    last = max([steps, *(step for voice in heard for step in voice.outputs)])
    done = trace(program, row, keep=None if args.json else shown_steps(last))
    fact = facts(done, question)
    if args.json:
        models = {"models": [_told(voice, done) for voice in heard[1:]]} if heard else {}
        print_json({**fact, "trace": done.json(), **models})
        return 0
    asked = f"{fact['task']} {_short(str(fact['question']))}"
    print(f"{asked}: {done.steps} steps, answer {_short(str(fact['answer'] or 'empty'))}\n")
    print(done.table(beside=[(voice.name, voice.outputs) for voice in heard]))
    if heard:
        print("", *(_summary(voice, done) for voice in heard[1:]), sep="\n")
    return 0


def read(name: str, text: str, pick: str | None = None) -> tuple[Program, list[str]]:
    """The program of that name, or in that file, and the question's tokens."""
    if name.endswith(".py") or pick is not None:
        program = programs.find(name, pick)
        words = text.split()
        spelled = len(words) != 1 or words[0] in program.vocab.symbols
        return program, words if spelled else list(words[0])

    from looped import tasks  # tasks need torch, which is slow to import and not needed for --help

    plain = name.strip().replace("-", "_")
    if plain in tasks.EVERY:
        return programs.get(plain), tasks.get(plain).parse(text)
    if plain not in programs.PROGRAMS:
        known = ", ".join(programs.PROGRAMS)
        raise InputError(f"unknown task {name[:40]!r}; there are programs for {known} and the Chomsky suite")
    program = programs.get(plain)
    (times,) = program.separators
    question = [times if sign in "*xX" else sign for sign in text if not sign.isspace()]
    most = 2 * tasks.LONGEST
    if set(question) - set(program.vocab.symbols) or not 1 <= len(question) <= most:
        looks = f"a question of {plain} looks like 110*101"
        raise InputError(f"{looks}, with at most {most} signs, not {_short(text)!r}")
    return program, question


def facts(done: Trace, question: list[str]) -> dict[str, object]:
    """What there is to say about a trace before its steps."""
    task = None
    if done.program.file is None:
        from looped import tasks

        task = tasks.EVERY.get(done.program.name)
    gap = " " if any(len(symbol) > 1 for symbol in done.program.vocab.symbols) else ""
    return {
        "task": done.program.name,
        "question": task.format_question(question) if task else gap.join(question),
        "steps": done.steps,
        "answer": task.format_answer(done.answer) if task else gap.join(done.answer),
    }


def _told(voice: Voice, done: Trace) -> dict[str, object]:
    """A model beside the program, as JSON."""
    steps: list[dict[str, object]] = []
    for step, output in voice.outputs.items():
        held = voice.variables.get(step)
        steps.append({"step": step, "output": output} | ({"variables": held} if held else {}))
    right = {"model": voice.name, "answer": voice.answer, "correct": voice.answer == done.answer}
    held_after = {"held": voice.held} if voice.variables else {}
    return {**right, "agreed": voice.agreed, **held_after, "steps": steps}


def _summary(voice: Voice, done: Trace) -> str:
    """`copy-fast: right; it says what the program says after 2 of 2 steps`."""
    right, shown = voice.answer == done.answer, _short(" ".join(voice.answer)) or "empty"
    verdict = "right" if right else f"wrong, {shown}"
    said = f"{voice.name}: {verdict}; it says what the program says after {len(voice.agreed)} of {voice.steps} steps"
    if not voice.variables:
        return said
    return f"{said} and holds the program's variables after {len(voice.held)}"


def _check_size(program: Program, steps: int, width: int) -> None:
    variables = trace(program, program.row(program.example.split()), keep={0}).variables
    if (values := (steps + 1) * width * len(variables)) > MOST_VALUES:
        many = f"the whole trace has {values} values, more than {MOST_VALUES}"
        raise InputError(f"{many}: ask a shorter question, or leave out --json")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:18]}…{text[-18:]}"


@dataclass(frozen=True)
class CheckArgs:
    """Check n-RASP-L programs in a file for legality, naming line and rule; exit 1 if one is broken."""

    file: Annotated[str, Positional("FILE.py")]
    """A Python file of programs; docs/nrasp.md says what may stand in it."""
    json: bool = False
    """One JSON object."""


def run_check(args: CheckArgs) -> int:
    """Check and print."""
    report = check_file(args.file)
    found = report.violations
    if args.json:
        facts = {"file": report.file, "legal": report.legal, "programs": list(report.programs)}
        told = [{"rule": v.rule, "line": v.line, "detail": v.detail} for v in found]
        print_json({**facts, "violations": told})
        return 0 if report.legal else 1
    for violation in found:
        print(violation)
    verdict = f"{len(found)} broken rule{'s' if len(found) > 1 else ''}" if found else "nothing illegal"
    print(f"{report.file}: {verdict} in {', '.join(report.programs) or 'its functions'}")
    return 0 if report.legal else 1
