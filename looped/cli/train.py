"""`looped train`: trains a method on a task into a run's folder; `looped cost`: what that will take.

$ looped train copy --recipe quick --seeds 0,1
training in runs/copy-fop-loop-adaptive-quick
…
finished after 1000 of 1000 steps; wrote runs/copy-fop-loop-adaptive-quick
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_origin, get_type_hints

from looped import devices, registry
from looped.cli.arguments import Option, Positional
from looped.errors import InputError
from looped.experiments import queue
from looped.output import note, print_json, print_table, rich_table
from looped.serial import to_json
from looped.training import cost, recipes
from looped.training.config import TrainConfig
from looped.training.cost import Cost, estimate
from looped.training.interrupt import Interrupt
from looped.training.progress import Lines, Listener, Report, TrackerName, clock, tracked
from looped.training.trainer import Backend, Cadence, train

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

LONG_S = 120.0  # a run on a CPU that takes longer is told of the quick recipe


@dataclass(frozen=True)
class Setting(Option):
    """An option that sets the recipe's field of the same name, as text; empty where it is not given."""

    default: str | None = "(default: the recipe's)"
    of_model: bool = False  # a field of `model`


Int = Annotated[str, Setting("N")]
Float = Annotated[str, Setting("NUMBER")]
List = Annotated[str, Setting("A,B,…")]
ModelInt = Annotated[str, Setting("N", of_model=True)]


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
    with fewer gradient steps), paper (its settings), chomsky (for the Chomsky suite), or FILE.py:Name."""
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
    width: ModelInt = ""
    """Size of the model's state."""
    heads: ModelInt = ""
    """Attention heads."""
    layers: ModelInt = ""
    """Layers of the block; of the whole model for methods without a loop."""
    bands: Annotated[str, Setting("A,B,…", of_model=True)] = ""
    """How many positions each of the first heads sees, itself included; further heads see all."""
    positions: Annotated[str, Setting("KIND", of_model=True)] = ""
    """none, start, rotary, alibi, learned or randomised."""
    embedding_std: Annotated[str, Setting("NUMBER", of_model=True)] = ""
    """Initial scale of the token embedding."""
    replicas: Int = ""
    """Models of each seed; the best on held-out lengths is chosen, which selection.json records. See docs/length.md."""
    hold_out: Int = ""
    """So many of the longest training lengths, on which replicas are judged and not trained."""
    refine: Float = ""
    """Share of the steps in which a chosen replica is trained on with all lengths; 0 keeps it as it is."""
    stack: Int = ""
    """The most replicas of all seeds that are trained as one computation; fewer take less memory."""
    keep_replicas: bool = False
    """Keep the weights of all replicas, in population/ in the run's folder."""
    init: Annotated[str, Option("START")] = "random"
    """random; or compiled, the task's n-RASP-L program as weights; or compiled:1e-3, those with so much noise each."""
    block: Annotated[str, Option("FILE.py:Name", default="(default: the stock block)")] = ""
    """A block of your own in the place of the stock one."""
    backend: Backend = "auto"
    """The engine: auto takes the fast one where it can, otherwise the plain one; plain; fast."""
    set: Annotated[tuple[str, ...], Option("KEY=VALUE", repeat=True)] = ()
    """Any field of the configuration: --set warmup=100 --set model.init_std=0.01."""


def run_train(args: TrainArgs) -> int:
    """Train, and say where the result is."""
    config = configuration(args)
    device = devices.pick(args.device)
    if not args.save_every > 0:
        raise InputError(f"--save-every must be above 0 seconds, not {args.save_every:g}")
    folder = args.out or Path("runs") / config.name
    listeners: list[Listener] = [*([Price()] if device.type == "cpu" else []), listener()]
    if args.track:
        listeners.append(tracked(args.track))
    root = folder.absolute().parent
    before = queue.cancel_requested_at(root)  # a request that is older than this process does not count
    with Interrupt() as asked:
        stop = queue.stop_request(asked, lambda: queue.cancel_requested_at(root) not in (None, before))
        summary = train(
            config, folder, device,
            listeners=listeners, stop=stop, time_limit_s=args.time_limit,
            cadence=Cadence(save_seconds=args.save_every), backend=args.backend,
            keep_replicas=args.keep_replicas,
        )  # fmt: skip
    if args.json:
        print_json(asdict(summary))
    again = summary.ending in ("interrupted", "time limit")
    done = f"{summary.ending} after {summary.step} of {summary.steps} steps; wrote {summary.folder}"
    note(done + ("; the same command goes on from there" if again else ""))
    return asked.status or int(summary.ending == "every seed stopped")


class Price(Listener):
    """Says what a run on a CPU takes, when it begins."""

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Not where it goes on: the display says what is left."""
        if step == 0:
            note(price(config))


def price(config: TrainConfig) -> str:
    """What the whole run takes on one CPU core, and what is quicker where that is long."""
    core = cost.device("cpu")
    takes = estimate(config, core).seconds
    said = f"looped: the whole run takes about {seconds(takes)} on one CPU core"
    said += ", as `looped cost` estimates it"
    if takes < LONG_S:
        return said
    quick = recipes.make(config.task, config.method, "quick", config.seeds)
    return f"{said}; --recipe quick takes {seconds(estimate(quick, core).seconds)}"


def configuration(args: TrainArgs) -> TrainConfig:
    """What the words ask for: a recipe and what is set beside it."""
    if not args.seeds.strip():
        raise InputError("--seeds must name at least one seed, such as 0,1,2")
    hints = get_type_hints(TrainArgs, include_extras=True).items()
    settings = {name: hint.__metadata__[0] for name, hint in hints if get_origin(hint) is Annotated}
    changes = [f"seeds={args.seeds}"]
    changes += [
        f"{'model.' if each.of_model else ''}{name}={getattr(args, name)}"
        for name, each in settings.items()
        if isinstance(each, Setting) and getattr(args, name)
    ]
    if args.checkpointing:
        changes.append("checkpointing=true")
    config = recipes.from_program(recipes.asked(args.task, args.method, args.recipe), args.init)
    if args.block:
        changes.append(f"block={registry.resolve('block', args.block)}")
    return recipes.with_fields(config, [*changes, *args.set])


@dataclass(frozen=True)
class CostArgs:
    """Say what a run will cost: operations, memory and time, without starting it."""

    task: Annotated[str, Positional("TASK")]
    """The task's name; `looped tasks` lists them."""
    method: str = "fop-loop-adaptive"
    """fop-loop-adaptive, fop-loop-adaptive-wo, fop-loop-fixed, fop, fop-pause, ntp, ntp-pause, ntp-loop, ut or
    pondernet."""
    recipe: str = "fast"
    """quick, long, fast, paper, chomsky or FILE.py:Name."""
    seeds: Annotated[str, Option("A,B,…")] = "0,1,2,3,4"
    """Seeds, trained side by side as one computation."""
    device: str = "h200"
    """h200 (one NVIDIA H200), cpu (one core) or tflops=NUMBER (what whole steps are assumed to reach)."""
    set: Annotated[tuple[str, ...], Option("KEY=VALUE", repeat=True)] = ()
    """Any field of the configuration: --set max_length=1000 --set model.width=512."""
    json: bool = False
    """Print the facts as one JSON object."""


def run_cost(args: CostArgs) -> int:
    """Print what the run costs."""
    on = cost.device(args.device)
    made = recipes.asked(args.task, args.method, args.recipe)
    config = recipes.with_fields(made, [f"seeds={args.seeds}", *args.set])
    found = estimate(config, on)
    if args.json:
        facts = {**asdict(found), "memory_bytes": found.memory_bytes}
        print_json({"device": on.name, "origin": on.origin, **facts, "config": to_json(config)})
        return 0
    seeds = len(config.seeds)
    title = f"{config.task} {config.method} {config.recipe}, {seeds} × {found.parameters:,} parameters, on {on.name}"
    print_table(["quantity", "all seeds", "one seed"], _rows(found, seeds), title)
    note(f"last stage: rows of {found.row_size} positions, up to {found.loop_steps} loop steps; {on.origin}")
    if not found.fits:
        note(
            f"this does not fit {on.memory / 2**30:.0f} GiB: fewer seeds side by side, --set checkpointing=true, "
            "--set backprop=K, or several devices (docs/scale.md)"
        )
    return 0


def _rows(cost: Cost, seeds: int) -> list[list[str]]:
    rows: list[tuple[str, Callable[[float], str], float]] = [
        ("whole run", seconds, cost.seconds),
        ("a gradient step", seconds, cost.step_seconds),
        ("operations, whole run", "{:.3g} FLOP".format, cost.flops),
        ("operations, a gradient step", "{:.3g} FLOP".format, cost.step_flops),
        ("memory", _bytes, cost.memory_bytes),
        ("  weights and moments", _bytes, cost.weights_bytes),
        ("  tape for backward", _bytes, cost.tape_bytes),
    ]
    return [[name, shown(value), shown(value / seeds)] for name, shown, value in rows]


def seconds(value: float) -> str:
    """A time as people read it: `8.74 ms`, `20.3 s`, `1.7 min`, `3.2 h`, `12.5 days`."""
    units = ((1.0, "ms", 1e-3), (90.0, "s", 1.0), (5400.0, "min", 60.0), (172800.0, "h", 3600.0))
    for limit, unit, size in units:
        if value < limit:
            return f"{value / size:.3g} {unit}"
    return f"{value / 86400:,.4g} days"


def _bytes(value: float) -> str:
    return f"{value / 2**30:.3g} GiB" if value >= 2**28 else f"{value / 2**20:.3g} MiB"


def listener() -> Listener:
    """The live table where stderr is a terminal, plain lines where it is not."""
    if not sys.stderr.isatty():
        return Lines()  # which needs no rich
    from rich.console import Console

    return LiveTable(Console(stderr=True))


class LiveTable(Lines):
    """One row per seed, redrawn in place on stderr; rare events scroll by above it.

    step 600  exact by length  10: 0.853, 15: 0.402, 20: 0.091
    copy · fop-loop-adaptive · quick
    ━━━━━━━━━━━╸━━━━━━━  612/1000  length 10  16.1 steps/s  0:24 left
     seed    loss   exact   exact at 10
        0  0.0213   0.953         0.812
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._live: Live | None = None
        self._config: TrainConfig | None = None
        self._report: Report | None = None

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Draw the empty table."""
        from rich.live import Live

        self._config = config
        self.note(f"training in {folder}" + (f", going on after step {step}" if step else ""))
        self._live = Live(console=self.console, refresh_per_second=4, get_renderable=self._draw)
        self._live.start()

    def report(self, report: Report) -> None:
        """Show it at the next refresh."""
        self._report = report

    def note(self, sentence: str) -> None:
        """A line above the table."""
        self.console.print(sentence, markup=False, highlight=False)

    def end(self) -> None:
        """Leave the last table on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> Group:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        config, report = self._config, self._report
        assert config is not None
        name = Text(f"{config.task} · {config.method} · {config.recipe}")
        if report is None:
            return Group(name, Text("first steps …"))
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=config.steps, completed=report.step, width=30), f"{report.step}/{config.steps}",
            f"length {report.length}", f"{report.steps_per_second:.1f} steps/s", f"{clock(report.seconds_left)} left",
        )  # fmt: skip
        columns = ("seed", "loss", "exact", f"exact at {report.length}", "gradient", "")
        lines = []
        for seed in report.seeds:
            numbers = ((seed.loss, 4), (seed.accuracy, 3), (seed.accuracy_longest, 3), (seed.norm, 3))
            cells = ("–" if value is None else f"{value:.{digits}f}" for value, digits in numbers)
            lines.append([str(seed.seed), *cells, "" if seed.training else "stopped"])
        table = rich_table(columns, lines, right=range(len(columns)), box=None, padding=(0, 2))
        return Group(name, head, table)
