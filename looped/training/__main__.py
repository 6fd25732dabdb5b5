"""`python -m looped.training TASK …`: `looped train` for a machine that has torch and little else.

    python -m looped.training copy --recipe fast --set steps=2000 model.width=128 --time-limit 500

The same command again goes on. Prints lines to stderr and the summary as one JSON object to stdout. Over several
devices or nodes, which then compute each gradient step together:

    torchrun --nproc_per_node=8 -m looped.training copy --recipe fast
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from looped import devices, registry
from looped.errors import InputError
from looped.training import engine, recipes
from looped.training.interrupt import Interrupt, mend_streams
from looped.training.progress import Lines
from looped.training.trainer import train


def main(words: Sequence[str] | None = None) -> int:
    """Trains as the words say; the exit status is that of `looped train`."""
    mend_streams()
    args, world = _parser().parse_args(words), engine.World()
    try:
        config = recipes.from_program(recipes.asked(args.task, args.method, args.recipe), args.init)
        block = [f"block={registry.resolve('block', args.block)}"] if args.block else []
        config = recipes.with_fields(config, [f"seeds={args.seeds}", *block, *args.set])
        folder = args.out or Path("runs") / config.name
        world, device = engine.find_world(devices.pick(args.device))
        with Interrupt() as asked:
            summary = train(
                config, folder, device,
                listeners=[Lines()] if world.rank == 0 else [], stop=asked, time_limit_s=args.time_limit, world=world,
                keep_replicas=args.keep_replicas,
            )  # fmt: skip
        world.close()
    except Exception as error:
        told = str(error) if isinstance(error, InputError) else registry.fault(error)
        if told is None:
            raise
        if world.rank == 0:
            print(f"looped: {' '.join(told.split())}", file=sys.stderr)
        return 2
    if world.rank == 0:
        print(json.dumps(asdict(summary)))
    return asked.status or int(summary.ending == "every seed stopped")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m looped.training", description="Train a model.")
    parser.add_argument("task", help="its name, or FILE.py:Name as for method, recipe and block")
    parser.add_argument("--method", default="fop-loop-adaptive")
    parser.add_argument("--recipe", default="fast", help=", ".join(recipes.RECIPES))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--out", type=Path, help="the run's folder; runs/TASK-METHOD-RECIPE unless given")
    parser.add_argument(
        "--init", default="random", metavar="START", help="random, compiled or compiled:NOISE"
    )
    parser.add_argument("--block", default="", metavar="FILE.py:Name", help="the stock block unless given")
    parser.add_argument("--set", nargs="*", default=[], action="extend", metavar="KEY=VALUE")
    parser.add_argument(
        "--keep-replicas", action="store_true", help="of --set replicas=8 hold_out=4: all weights"
    )
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="stop cleanly, to go on later")
    return parser


if __name__ == "__main__":
    sys.exit(main())
