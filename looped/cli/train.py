"""`looped train`: trains a method on a task into a run's folder; the same command again goes on.

$ looped train copy --recipe quick --seeds 0,1
training in runs/copy-fop-loop-adaptive-quick
…
finished after 1000 of 1000 steps; wrote runs/copy-fop-loop-adaptive-quick
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from looped import devices, registry
from looped.cli import display
from looped.cli.arguments import Option, Positional
from looped.cli.cost import seconds
from looped.cli.output import note, print_json
from looped.errors import InputError
from looped.experiments import queue
from looped.training import cost, recipes
from looped.training.config import TrainConfig
from looped.training.cost import estimate
from looped.training.engine import Backend
from looped.training.interrupt import Interrupt
from looped.training.progress import Listener, TrackerName, tracked
from looped.training.trainer import Cadence, Summary, train

# options that set one field of the configuration, where that has another name
LONG = {name: f"model.{name}" for name in ("width", "heads", "layers", "bands", "positions", "embedding_std")}
SHORT = ("seeds", "steps", "interval", "lr", "batch", "max_length", "ema", "backprop")

LONG_S = 120.0  # a run on a CPU that takes longer is told of the quick recipe
LOOK_S = 0.25  # seconds between two looks for a request of `looped cancel`


def _setting(metavar: str) -> Option:
    """An option that changes a field of the recipe's configuration, as text; empty where it is not given."""
    return Option(metavar, default="(default: the recipe's)")


Int = Annotated[str, _setting("N")]
Float = Annotated[str, _setting("NUMBER")]
List = Annotated[str, _setting("A,B,…")]


@dataclass(frozen=True)
class TrainArgs:
    """Train a model. The same command again goes on where the last one ended, however it ended."""

    task: Annotated[str, Positional("TASK")]
    """The task's name, of those that `looped tasks` lists; or FILE.py:Name for one of your own."""
    method: str = "fop-loop-adaptive"
    """The paper's method fop-loop-adaptive; its baselines fop-loop-adaptive-wo, fop-loop-fixed, fop, fop-pause, ntp,
    ntp-pause, ntp-loop; or two systems that it only names, ut and pondernet; or FILE.py:Name."""
    recipe: str = "fast"
    """quick (a minute on a CPU), long (small models that hold far past their training length), fast (the paper's model
    with fewer gradient steps) paper (its settings), or FILE.py:Name."""
    seeds: Annotated[str, Option("A,B,…")] = "0,1,2,3,4"
    """Seeds, trained side by side as one computation."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    out: Annotated[Path | None, Option("DIR", default="(default: runs/TASK-METHOD-RECIPE)")] = None
    """The run's folder."""
    time_limit: Annotated[float, Option("SECONDS", default="(default: none)")] = math.inf
    """Stop cleanly after this many seconds, to go on later."""
    save_every: Annotated[float, Option("SECONDS")] = 60.0
    """Seconds between two checkpoints."""
    track: Annotated[TrackerName | None, Option("[trackio|tensorboard]", bare="trackio")] = None
    """Also pass the numbers on to a tracker: trackio, or tensorboard, whose files are in the run's folder."""
    json: bool = False
    """Print a summary as one JSON object."""
    steps: Int = ""
    """Gradient steps."""
    interval: Int = ""
    """Gradient steps between two increases of the maximum length."""
    lr: List = ""
    """Peak learning rate, one or one for each seed."""
    batch: Int = ""
    """Problems per gradient step."""
    max_length: Int = ""
    """Longest training length."""
    ema: Float = ""
    """Decay of the average of the weights; 0 for none."""
    backprop: Int = ""
    """Loop steps the gradient flows through; 0 for all."""
    checkpointing: bool = False
    """Recompute instead of remembering, so that memory hardly grows with the loop."""
    width: Int = ""
    """Size of the model's state."""
    heads: Int = ""
    """Attention heads."""
    layers: Int = ""
    """Layers of the block; of the whole model for methods without a loop."""
    bands: List = ""
    """How many positions each of the first heads sees, itself included; further heads see all."""
    positions: Annotated[str, _setting("KIND")] = ""
    """none, start, rotary, alibi, learned or randomised."""
    embedding_std: Float = ""
    """Initial scale of the token embedding."""
    init: Annotated[str, Option("START")] = "random"
    """random; or compiled, the task's n-RASP-L program as weights; or compiled:1e-3, those with so much noise each."""
    block: Annotated[str, Option("FILE.py:Name", default="(default: the stock block)")] = ""
    """A block of your own in the place of the stock one; the plain engine trains it."""
    backend: Backend = "auto"
    """The engine: auto takes the fast one where it can, otherwise the plain one; plain; fast."""
    set: Annotated[tuple[str, ...], Option("KEY=VALUE", repeat=True)] = ()
    """Any field of the configuration: --set warmup=100 --set model.init_std=0.01."""


def run(args: TrainArgs) -> int:
    """Train, and say where the result is."""
    config = configuration(args)
    device = devices.pick(args.device)
    if not args.save_every > 0:
        raise InputError(f"--save-every must be above 0 seconds, not {args.save_every:g}")
    folder = args.out or Path("runs") / config.name
    listeners: list[Listener] = [*([Price()] if device.type == "cpu" else []), display.listener()]
    if args.track:
        listeners.append(tracked(args.track))
    with Interrupt() as asked:
        summary = train(
            config, folder, device,
            listeners=listeners, stop=_stop_request(folder, asked), time_limit_s=args.time_limit,
            cadence=Cadence(save_seconds=args.save_every), backend=args.backend,
        )  # fmt: skip
    if args.json:
        print_json(asdict(summary))
    note(ending(summary))
    return asked.status or int(summary.ending == "every seed stopped")


class Price(Listener):
    """Says what a run on a CPU takes, when it begins."""

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Not where it goes on: the display says what is left."""
        if step == 0:
            note(price(config))


def price(config: TrainConfig) -> str:
    """What the whole run takes on one CPU core, and what is quicker where that is long."""
    takes = estimate(config, cost.device("cpu")).seconds
    said = (
        f"looped: the whole run takes about {seconds(takes)} on one CPU core, as `looped cost` estimates it"
    )
    if takes < LONG_S:
        return said
    quick = recipes.make(config.task, config.method, "quick", config.seeds)
    return f"{said}; --recipe quick takes {seconds(estimate(quick, cost.device('cpu')).seconds)}"


def _stop_request(folder: Path, asked: Interrupt) -> Callable[[], bool]:
    """Whether to stop; called after every gradient step, so it looks at the disk only now and then.

    A request of `looped cancel` that is older than this process does not count.
    """
    root = folder.absolute().parent
    before, looked, wanted = queue.cancel_requested_at(root), time.monotonic(), False

    def stop() -> bool:
        nonlocal looked, wanted
        if time.monotonic() - looked > LOOK_S:
            looked = time.monotonic()
            wanted = wanted or queue.cancel_requested_at(root) not in (None, before)
        return wanted or asked()

    return stop


def configuration(args: TrainArgs) -> TrainConfig:
    """What the words ask for: a recipe and what is set beside it."""
    if not args.seeds.strip():
        raise InputError("--seeds must name at least one seed, such as 0,1,2")
    given = {LONG.get(name, name): getattr(args, name) for name in (*SHORT, *LONG)}
    changes = [f"{path}={value}" for path, value in given.items() if value]
    if args.checkpointing:
        changes.append("checkpointing=true")
    config = recipes.from_program(recipes.asked(args.task, args.method, args.recipe), args.init)
    if args.block:
        changes.append(f"block={registry.resolve('block', args.block)}")
    return recipes.with_fields(config, [*changes, *args.set])


def ending(summary: Summary) -> str:
    """How it ended, where the files are, and how to go on."""
    where = f"{summary.ending} after {summary.step} of {summary.steps} steps; wrote {summary.folder}"
    goes_on = summary.ending in ("interrupted", "time limit")
    return where + ("; the same command goes on from there" if goes_on else "")
