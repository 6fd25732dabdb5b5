"""`looped cost`: what a run will take, from its configuration alone.

$ looped cost copy --device h200
copy fop-loop-adaptive fast, 5 seeds of 1,582,597 parameters, on h200
quantity                    all seeds   one seed
whole run                    1.7 min      20.3 s
…
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json, print_table
from looped.serial import to_json
from looped.training import recipes
from looped.training.cost import Cost, device, estimate


@dataclass(frozen=True)
class CostArgs:
    """Say what a run will cost: operations, memory and time, without starting it."""

    task: Annotated[str, Positional("TASK")]
    """The task's name; `looped tasks` lists them."""
    method: str = "fop-loop-adaptive"
    """fop-loop-adaptive, fop-loop-adaptive-wo, fop-loop-fixed, fop, fop-pause, ntp, ntp-pause, ntp-loop, ut or
    pondernet."""
    recipe: str = "fast"
    """quick, long, fast or paper."""
    seeds: Annotated[str, Option("A,B,…")] = "0,1,2,3,4"
    """Seeds, trained side by side as one computation."""
    device: str = "h200"
    """h200 (one NVIDIA H200), cpu (one core) or tflops=NUMBER (what whole steps are assumed to reach)."""
    set: Annotated[tuple[str, ...], Option("KEY=VALUE", repeat=True)] = ()
    """Any field of the configuration: --set max_length=1000 --set model.width=512."""
    json: bool = False
    """Print the facts as one JSON object."""


def run(args: CostArgs) -> int:
    """Print what the run costs."""
    on = device(args.device)
    made = recipes.asked(args.task, args.method, args.recipe)
    config = recipes.with_fields(made, [f"seeds={args.seeds}", *args.set])
    cost = estimate(config, on)
    if args.json:
        facts = {**asdict(cost), "memory_bytes": cost.memory_bytes}
        print_json({"device": on.name, "origin": on.origin, **facts, "config": to_json(config)})
        return 0
    seeds = len(config.seeds)
    title = f"{config.task} {config.method} {config.recipe}, {seeds} × {cost.parameters:,} parameters, on {on.name}"
    print_table(["quantity", "all seeds", "one seed"], _rows(cost, seeds), title)
    note(f"last stage: rows of {cost.row_size} positions, up to {cost.loop_steps} loop steps; {on.origin}")
    if not cost.fits:
        note(
            f"this does not fit {on.memory / 2**30:.0f} GiB: fewer seeds side by side, --set checkpointing=true, "
            "--set backprop=K, or several devices (docs/scale.md)"
        )
    return 0


def _rows(cost: Cost, seeds: int) -> list[list[str]]:
    rows = [
        ("whole run", seconds(cost.seconds), seconds(cost.seconds / seeds)),
        ("a gradient step", seconds(cost.step_seconds), seconds(cost.step_seconds / seeds)),
        ("operations, whole run", _number(cost.flops), _number(cost.flops / seeds)),
        ("operations, a gradient step", _number(cost.step_flops), _number(cost.step_flops / seeds)),
        ("memory", _bytes(cost.memory_bytes), _bytes(cost.memory_bytes / seeds)),
        ("  weights and moments", _bytes(cost.weights_bytes), _bytes(cost.weights_bytes / seeds)),
        ("  tape for backward", _bytes(cost.tape_bytes), _bytes(cost.tape_bytes / seeds)),
    ]
    return [list(row) for row in rows]


def seconds(value: float) -> str:
    """A time as people read it: `8.74 ms`, `20.3 s`, `1.7 min`, `3.2 h`, `12.5 days`."""
    for limit, unit, size in (
        (1.0, "ms", 1e-3),
        (90.0, "s", 1.0),
        (5400.0, "min", 60.0),
        (172800.0, "h", 3600.0),
    ):
        if value < limit:
            return f"{value / size:.3g} {unit}"
    return f"{value / 86400:,.4g} days"


def _number(value: float) -> str:
    return f"{value:.3g} FLOP"


def _bytes(value: float) -> str:
    return f"{value / 2**30:.3g} GiB" if value >= 2**28 else f"{value / 2**20:.3g} MiB"
