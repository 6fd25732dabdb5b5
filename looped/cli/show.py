"""What there is to see: `looped figure` draws files of results, `looped explore` serves a page that shows the loop.

$ looped figure results/parity.json results/copy.json --out accuracy.svg
wrote accuracy.svg
$ looped explore --model runs/copy-fop-loop-adaptive-quick
the explorer is at http://127.0.0.1:8642/?token=vSxS6VpLhVEKP0Q8xRCBcDIYkUoZ4ZC0 (Ctrl-C ends it)

Drawing needs no model and no torch, so what needs them is imported where it is used.
"""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from looped.cli.arguments import Option, OwnPart, Positional
from looped.errors import InputError
from looped.output import note, print_json


@dataclass(frozen=True)
class FigureArgs:
    """Draw results: accuracy by length or loop step, a run's training, a length sweep, or learned halting."""

    results: Annotated[tuple[Path, ...], Positional("RESULTS…")]
    """Files of rows, as `looped evaluate --out` writes them; for --kind training, a run's metrics.jsonl."""
    out: Annotated[Path, Option("FILE.svg")]
    """Where to write: .svg, .png or .pdf."""
    kind: Literal["auto", "length", "step", "training", "ladder", "halting"] = "auto"
    """What lies across: the length, the loop step, or the gradient step; auto asks the rows. `ladder`: a length sweep;
    halting: learned halting, from the rows of `looped discover`."""
    title: str = ""
    """Above the figure."""
    stop: Annotated[tuple[str, ...], Option("RULE…")] = ()
    """Only rows of these stopping rules."""
    json: bool = False
    """Print what was drawn as one JSON object."""


def run_figure(args: FigureArgs) -> int:
    """Read, draw, write."""
    from looped import figures  # matplotlib takes a second to load

    if not args.results:
        raise InputError("looped figure needs a file of results to draw")
    kind = args.kind
    sweeps = figures.read_length_sweeps(args.results) if kind == "ladder" else None
    if kind == "auto":
        with contextlib.suppress(InputError):  # then they are something else
            sweeps = figures.read_length_sweeps(args.results)
    if sweeps is not None:
        kind, rows, figure = "ladder", sweeps, figures.length_sweep(sweeps, args.title)
    elif kind == "training" or (kind == "auto" and {path.name for path in args.results} == {"metrics.jsonl"}):
        rows = [row for path in args.results for row in figures.read_metrics(path)]
        kind, figure = "training", figures.training(rows, args.title)
    else:
        rows, trained = figures.read_rows(args.results)
        if args.stop:
            rows = [row for row in rows if row.get("stop") in args.stop]
            if not rows:
                raise InputError(f"there are no rows of the stopping rules {', '.join(args.stop)}")
        if kind == "auto":
            kind = "step" if "step" in rows[0] else "length"
            kind = "halting" if all(map(figures.is_halting, rows)) else kind
        if kind == "step":
            figure = figures.by_step(rows, args.title)
        else:
            draw = figures.halting if kind == "halting" else figures.accuracy_by_length
            figure = draw(rows, trained, args.title)
    figures.save(figure, args.out)
    if args.json:
        print_json({"out": str(args.out), "kind": kind, "rows": len(rows)})
    note(f"wrote {args.out}")
    return 0


@dataclass(frozen=True)
class ExploreArgs:
    """Serve the explorer on this machine's loopback address and open it in a browser, or write it as a static site."""

    export_models: Annotated[tuple[str, ...], Positional("MODEL…")] = ()
    """With --export: shipped names, run folders or checkpoints; without any, the shipped `long` models."""
    export: Annotated[Path | None, Option("DIR")] = None
    """Write a site into this new folder that computes in the visitor's browser, and serve nothing."""
    port: Annotated[int | None, Option("NUMBER", default="")] = None
    """The port; by default 8642, or any free one if that is taken."""
    no_open: bool = False
    """Do not open the page in a browser."""
    no_token: bool = False
    """Let every user of this machine use the explorer: no token in its address."""
    model: Annotated[tuple[Path, ...], Option("PATH…")] = ()
    """Models besides the shipped and the compiled ones: checkpoints, run folders, published models, what
    `looped compile` wrote."""
    task: OwnPart = ()
    """A task of your own that models given were trained on."""
    method: OwnPart = ()
    """A method of your own that models given were trained by."""
    block: OwnPart = ()
    """A block of your own that models given were trained with."""
    stop: OwnPart = ()
    """A stopping rule of your own, to be shown beside the others."""
    json: bool = False
    """Print the address and the models' names as one JSON object."""


def run_explore(args: ExploreArgs) -> int:
    """Serve until Ctrl-C."""
    if args.export is not None:
        return _export(args, args.export)
    if args.export_models:
        how = "a model to be served is given with --model"
        raise InputError(f"{args.export_models[0]} needs --export DIR; {how}")
    from looped.explorer import app, queries
    from looped.explorer.app import Explorer
    from looped.explorer.security import Token
    from looped.registry import NamedParts, resolve

    given = NamedParts(task=args.task, method=args.method, block=args.block)
    stops = [resolve("stopping rule", name) for name in args.stop]
    bound = app.listen(args.port)  # a complaint about the port comes before models are read
    with bound:
        registry = queries.all_models(args.model)
        given.check()
        for problem in registry.problems:
            note(f"left out: {problem}")

        token = None if args.no_token else Token(bound.getsockname()[1])
        url = app.address(bound, token.text if token else "")

        def ready() -> None:
            if args.json:
                print_json({"url": url, "models": list(registry)})
            else:
                print(f"the explorer is at {url} (Ctrl-C ends it)")
            sys.stdout.flush()  # a reader of a pipe waits for it

        page = "" if args.no_open else app.address(bound, token.once() if token else "")
        app.serve(Explorer(registry, stops=stops).app(token), bound, page, ready)
    return 0


def _export(args: ExploreArgs, folder: Path) -> int:
    """Write the site, and say how large it is."""
    for name in ("port", "no_open", "no_token", "stop"):
        if getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')} is for serving: leave it out beside --export")
    from looped.explorer import export
    from looped.registry import NamedParts

    given = NamedParts(task=args.task, method=args.method, block=args.block)
    registry = export.chosen_models([*args.export_models, *map(str, args.model)])
    given.check()
    sizes = export.write(folder, registry)
    size = sum(sizes.values())
    if args.json:
        print_json({"folder": str(folder), "bytes": size, "files": sizes})
    else:
        models = "1 model" if len(registry) == 1 else f"{len(registry)} models"
        print(f"{folder} holds a site of {models}, {size / 1e6:.1f} MB; any web server shows it: "
              f"python -m http.server -d {folder}")  # fmt: skip
    return 0
