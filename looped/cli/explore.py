"""`looped explore`: a page on this machine on which one asks a model a question and watches its loop.

$ looped explore --model runs/copy-fop-loop-adaptive-quick
the explorer is at http://127.0.0.1:8642/?token=vSxS6VpLhVEKP0Q8xRCBcDIYkUoZ4ZC0 (Ctrl-C ends it)
$ looped explore --export public copy-long runs/copy-fop-loop-adaptive-quick
public holds a site of 2 models, 4.7 MB; any web server shows it: python -m http.server -d public
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from looped.cli.arguments import Option, OwnPart, Positional
from looped.cli.output import note, print_json
from looped.errors import InputError
from looped.registry import NamedParts, resolve


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


def run(args: ExploreArgs) -> int:
    """Serve until Ctrl-C."""
    # Threads of one product wait this long (some 50 µs) for each other before they sleep: waking them up costs a wide
    # model a third of its time, and spinning for longer slows all other processes. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    if args.export is not None:
        return _export(args, args.export)
    if args.export_models:
        raise InputError(
            f"{args.export_models[0]} needs --export DIR; a model to be served is given with --model"
        )
    from looped.explorer import app, models
    from looped.explorer.app import Explorer
    from looped.explorer.security import Token

    given = NamedParts(task=args.task, method=args.method, block=args.block)
    stops = [resolve("stopping rule", name) for name in args.stop]
    bound = app.listen(args.port)  # a complaint about the port comes before models are read
    with bound:
        registry = models.all_models(args.model)
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
