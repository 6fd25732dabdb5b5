"""`python -m looped.zoo`: what is shipped; `python -m looped.zoo add RUN --name NAME`: one more.

    python -m looped.zoo add runs/copy-fast --name copy-fast --results results/copy-fast.json --half
    python -m looped.zoo add copy.safetensors --name copy-fast --results copy.json --history runs/copy-fast

`--seed auto` (the default) takes the seed with the lowest mean training loss over the last tenth of its run, and the
card says so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from looped.errors import InputError
from looped.zoo.listing import zoo


def main(words: Sequence[str] | None = None) -> int:
    """Lists or adds; 2 is bad input."""
    args = _parser().parse_args(words)
    if args.action != "add":
        print(zoo())
        return 0
    from looped.experiments.plan import parse_lengths  # torch, which a list does not need
    from looped.zoo.adding import Order, add

    try:
        lengths = tuple(parse_lengths(args.lengths)) if args.lengths else ()
        order = Order(
            args.run, args.name, tuple(args.results), args.seed, args.history, args.half, lengths, args.samples,
            args.device, args.trained_on,
        )  # fmt: skip
        card = add(order)
    except (InputError, OSError) as error:
        print(f"looped: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    held = card.holds_to()
    print(
        f"{card.name}: seed {card.seed}, {card.chosen}; {card.stored_why}; holds to {held}; {len(card.rows)} rows"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m looped.zoo", description="The shipped models.")
    actions = parser.add_subparsers(dest="action")
    actions.add_parser("list", help="what is shipped (the default)")
    one = actions.add_parser("add", help="put a trained run's seed among the shipped models")
    one.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or one seed's checkpoint")
    one.add_argument("--name", required=True, help="TASK-RECIPE, such as addition-fast")
    one.add_argument(
        "--results", type=Path, nargs="*", default=[], help="what `looped evaluate --out` wrote of it"
    )
    one.add_argument(
        "--seed", default="auto", help="auto: the lowest training loss over the last tenth; or a number"
    )
    one.add_argument("--history", type=Path, help="the run's folder, for a checkpoint that lies elsewhere")
    one.add_argument("--half", action="store_true", help="numbers of 16 bits, if accuracies stay equal")
    one.add_argument("--lengths", help="to measure, or to compare both precisions at: 20,40")
    one.add_argument("--samples", type=int, default=256, help="problems a length")
    one.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    one.add_argument("--trained-on", help="the device it was trained on")
    return parser


if __name__ == "__main__":
    sys.exit(main())
