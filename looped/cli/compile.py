"""`looped compile`: an n-RASP-L program into the weights of a looped Transformer.

$ looped compile parity --out p.safetensors
parity: 1 layer a step and 3 before the loop, width 16, 4 heads, 8805 parameters (235 not zero)
exact in float64 on rows of up to 4096 tokens (16 of 53 bits)
wrote p.safetensors
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from looped import checkpoints
from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json
from looped.compiler.compiled import LONGEST, MOST_WIDTH, CompiledCard, compile_program
from looped.errors import InputError
from looped.rasp import programs


@dataclass(frozen=True)
class CompileArgs:
    """Turn an n-RASP-L program into the weights of a looped Transformer that does exactly the same."""

    program: Annotated[str, Positional()]
    """A task's name, long_multiplication, or a FILE.py with a Program."""
    out: Annotated[Path | None, Option("FILE.safetensors", default="")] = None
    """Where to write the model; without it, only its sizes are told."""
    name: Annotated[str | None, Option(default="")] = None
    """Which program of a file with several."""
    max_length: int = LONGEST
    """Tokens of the longest row it has to take."""
    max_width: int = MOST_WIDTH
    """The widest state allowed."""
    picture: Annotated[Path | None, Option("FILE.svg", default="")] = None
    """Also draw the matrices of a step, and the state after every step of the program's example."""
    json: bool = False
    """One JSON object."""


def run(args: CompileArgs) -> int:
    """Compile, write, print the sizes."""
    for option, path in (("--out", args.out), ("--picture", args.picture)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise InputError(f"{option} must name a file in a folder that exists, not {path}")
        if path is not None:
            checkpoints.check_plain(path)
    if args.out is not None and args.picture is not None and args.out.absolute() == args.picture.absolute():
        raise InputError(f"--out and --picture are two files, not both {args.out}")
    if args.picture is not None and args.picture.suffix != ".svg":
        raise InputError(f"a picture's name ends in .svg, not {args.picture.suffix or 'nothing'!r}")
    if not 2 <= args.max_length <= LONGEST:
        raise InputError(f"--max-length must be between 2 and {LONGEST}, not {args.max_length}")
    program = programs.find(args.program, args.name)
    compiled = compile_program(program, args.max_length, args.max_width)
    if args.out is not None:
        compiled.save(args.out)
    if args.picture is not None:
        from looped.compiler.picture import draw

        draw(program, compiled, args.picture)
    if args.json:
        print_json(asdict(compiled.card))
    else:
        print(sizes(compiled.card))
    for path in (args.out, args.picture):
        if path is not None:
            note(f"wrote {path}")
    return 0


def sizes(card: CompiledCard) -> str:
    """A card in two lines."""
    layers = f"{card.layers} layer{'s' if card.layers > 1 else ''} a step and {card.before} before the loop"
    return (
        f"{card.program}: {layers}, width {card.width}, {card.heads} heads, "
        f"{card.parameters} parameters ({card.nonzero} not zero)\n"
        f"exact in {card.precision} on rows of up to {card.max_length} tokens ({card.bits:.0f} of 53 bits)"
    )
