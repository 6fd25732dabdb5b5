"""`looped train`: trains a method on a task into a run's folder; `looped cost`: what that will take.

$ looped train copy --recipe quick --seeds 0,1
training in runs/copy-fop-loop-adaptive-quick
…
finished after 1000 of 1000 steps; wrote runs/copy-fop-loop-adaptive-quick
$ looped cost copy --device h200
copy fop-loop-adaptive fast, 5 seeds of 1,582,597 parameters, on h200
quantity                    all seeds   one seed
whole run                    1.7 min      20.3 s
…
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from looped import devices, registry
from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json, print_table
from looped.errors import InputError
from looped.evaluation.measure import Row
from looped.experiments import queue
from looped.serial import to_json
from looped.training import cost, recipes
from looped.training.config import TrainConfig
from looped.training.cost import Cost, estimate
from looped.training.engine import Backend
from looped.training.interrupt import Interrupt
from looped.training.progress import Lines, Listener, Report, TrackerName, clock, tracked
from looped.training.trainer import Cadence, Summary, train

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

# options that set one field of the configuration, where that has another name
LONG = {name: f"model.{name}" for name in ("width", "heads", "layers", "bands", "positions", "embedding_std")}
SHORT = (
    "seeds",
    "steps",
    "interval",
    "lr",
    "batch",
    "max_length",
    "ema",
    "backprop",
    "replicas",
    "hold_out",
    "refine",
    "stack",
)

LONG_S = 120.0  # a run on a CPU that takes longer is told of the quick recipe


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
    """A block of your own in the place of the stock one; the plain engine trains it."""
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
    with Interrupt() as asked:
        summary = train(
            config, folder, device,
            listeners=listeners, stop=_stop_request(folder, asked), time_limit_s=args.time_limit,
            cadence=Cadence(save_seconds=args.save_every), backend=args.backend,
            keep_replicas=args.keep_replicas,
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
    """Whether to stop; a request of `looped cancel` that is older than this process does not count."""
    root = folder.absolute().parent
    before = queue.cancel_requested_at(root)
    return queue.stop_request(asked, lambda: queue.cancel_requested_at(root) not in (None, before))


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
        ("operations, whole run", _operations, cost.flops),
        ("operations, a gradient step", _operations, cost.step_flops),
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


def _operations(value: float) -> str:
    return f"{value:.3g} FLOP"


def _bytes(value: float) -> str:
    return f"{value / 2**30:.3g} GiB" if value >= 2**28 else f"{value / 2**20:.3g} MiB"


def listener() -> Listener:
    """The live table where stderr is a terminal, plain lines where it is not."""
    if not sys.stderr.isatty():
        return Lines()  # which needs no rich
    from rich.console import Console

    return LiveTable(Console(stderr=True))


class LiveTable(Listener):
    """One row per seed, redrawn in place on stderr; rare events scroll by above it.

    copy · fop-loop-adaptive · quick
    ━━━━━━━━━━━╸━━━━━━━  612/1000  length 10  16.1 steps/s  0:24 left
     seed    loss   exact   exact at 10
        0  0.0213   0.953         0.812
    at step 600, exact by length   10: .853   15: .402   20: .091
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._config: TrainConfig | None = None
        self._report: Report | None = None
        self._evaluated = ""

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

    def evaluation(self, step: int, rows: Sequence[Row]) -> None:
        """Show the means over seeds below the table."""
        by_length: dict[int, list[float]] = {}
        for row in rows:
            by_length.setdefault(row.length, []).append(row.accuracy)
        shown = "   ".join(f"{length}: {sum(got) / len(got):.3f}" for length, got in by_length.items())
        self._evaluated = f"at step {step}, exact by length   {shown}"

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
            ProgressBar(total=config.steps, completed=report.step, width=30),
            f"{report.step}/{config.steps}",
            f"length {report.length}",
            f"{report.steps_per_second:.1f} steps/s",
            f"{clock(report.seconds_left)} left",
        )
        table = Table(box=None, padding=(0, 2))
        for column in ("seed", "loss", "exact", f"exact at {report.length}", "gradient", ""):
            table.add_column(column, justify="right")
        for seed in report.seeds:
            table.add_row(
                str(seed.seed), _number(seed.loss, 4), _number(seed.accuracy, 3),
                _number(seed.accuracy_longest, 3), _number(seed.norm, 3), "" if seed.training else "stopped",
            )  # fmt: skip
        return Group(name, head, table, Text(self._evaluated))


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
