"""`looped bench chomsky`: the protocol of the Chomsky suite, ours and the baselines in one harness.

    looped bench chomsky --methods looped --device cuda                          fifteen tasks, five seeds
    looped bench chomsky --methods fop ntp lstm gru --seeds 3 --device cuda      the baselines
    looped bench chomsky --table                                                 measure nothing: what the file holds
    looped bench chomsky reverse_string --steps 20 --lengths 8,9 --samples 4 --seeds 1 --set max_length=5
        --runs runs/small --out small.json                                       in small; replaces no measured rows

Models are trained on lengths 1 to 40 and tested on 41 to 500, with two scores for each length and seed:

    token_accuracy   the suite's: the share of answer tokens that are right, then the mean over lengths
    accuracy         ours: the share of answers that are right as a whole, the `#` after them included

In stack manipulation, addition and multiplication the `#` that ends the answer is one of its tokens, as in the public
code. `looped` is trained by the recipe and stops itself. Of a baseline the learning rate is chosen first, by a quarter
of the steps at each of three rates, on training lengths alone. LSTM and GRU read the same rows: the question, `>`, and
a `#` for every token of the answer.

The result file is written whole after every length: the same command again goes on. Runs are folders of `looped train`.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks import recurrent
from benchmarks.recurrent import CELLS, RecurrentNet, scored
from looped import batches, checkpoints, devices, runs, serial, tasks
from looped.batches import Batch
from looped.cli.arguments import Option, Positional
from looped.errors import InputError
from looped.evaluation import decode, loading, stopping
from looped.evaluation.measure import Subject, draw_problems, reach
from looped.evaluation.stopping import OnlineRule
from looped.output import note, print_json, print_table
from looped.result_files import LARGEST, an, fits, is_count, is_positive, is_share, list_of
from looped.runs import Trained
from looped.tasks.base import Task
from looped.tasks.suites.chomsky import TASKS, ChomskyTask
from looped.training.config import TrainConfig
from looped.training.recipes import make, with_fields
from looped.training.trainer import Cadence, train

Json = dict[str, Any]
Named = Literal["looped", "fop", "ntp", "lstm", "gru"]
OURS = {"looped": "fop-loop-adaptive", "fop": "fop", "ntp": "ntp"}  # methods of the package
RATES = {
    "fop": (1e-4, 3e-4, 1e-3),
    "ntp": (1e-4, 3e-4, 1e-3),
    "lstm": (3e-4, 1e-3, 3e-3),
    "gru": (3e-4, 1e-3, 3e-3),
}
CHOOSING = 4  # a rate is tried for this part of the steps
_CHOOSERS = (900, 901, 902)  # the seeds that try them: no result is of such a seed
_ROW = {
    "task": an(str), "method": an(str), "recipe": an(str), "seed": is_count, "length": is_positive, "stop": an(str),
    "accuracy": is_share, "token_accuracy": is_share, "samples": is_positive,
}  # fmt: skip
_FILE = {
    "provenance": lambda origin: fits(origin, {"runs": list_of(an(dict))}),
    "rows": list_of(lambda row: fits(row, _ROW)),
}


@dataclass(frozen=True, kw_only=True)
class ChomskyArgs:
    """Train models on the Chomsky suite to 40 tokens, test them at 41 to 500, and print both scores."""

    tasks: Annotated[tuple[str, ...], Positional("TASK…")] = ()
    """Which of the fifteen; all unless given."""
    methods: tuple[Named, ...] = ("looped",)
    """Ours (looped), a Transformer without a loop (fop), next-token prediction (ntp), lstm, gru."""
    recipe: str = "chomsky"
    """How they are trained; of lstm and gru, for how many steps and on which inputs."""
    seeds: int = 5
    """How many seeds."""
    steps: int | None = None
    """Gradient steps, in place of the recipe's; the stages of the curriculum shrink with them."""
    set: Annotated[tuple[str, ...], Option("FIELD=VALUE", default="", repeat=True)] = ()
    """A field of the training configuration, such as max_length=5 or model.width=64."""
    lengths: str = "41:500:51"
    """Test lengths: ten from 41 to 500 unless given; 41:500 for every one of them."""
    samples: int = 128
    """Problems per length."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    runs: Path = Path("runs/chomsky")
    """Where the runs are kept."""
    out: Path = Path("results/chomsky.json")
    """The result file; what is in it already is not measured again."""
    limit: Annotated[float, Option("SECONDS", default="(default: none)")] = math.inf
    """Stop after about this many seconds; the same command again goes on."""
    table: bool = False
    """Measure nothing: print the file as a Markdown table."""
    figure: Path | None = None
    """Measure nothing: draw token accuracy by length from the file."""
    json: bool = False
    """Print the file as one JSON object."""


def run(args: ChomskyArgs) -> int:
    """Measure what is missing, then print the scores."""
    names = [name.replace("-", "_") for name in args.tasks] or list(TASKS)
    for name in names:
        if name not in TASKS:
            raise InputError(f"{name[:40]!r} is no task of the suite; they are {', '.join(TASKS)}")
    record = SuiteFile(args.out)
    if args.table or args.figure:
        return _shown(args, record)
    if min(args.seeds, args.samples) < 1 or not args.limit >= 0:
        raise InputError("--seeds and --samples must be at least 1, --limit 0 seconds or more")
    bench = SuiteBench(args, record, loading.parse_lengths(args.lengths))
    ended = [bench.measure(name, method) for name in names for method in args.methods]
    if args.json:
        print_json(record.as_dict())
    else:
        print_table(*score_table(scores(record.rows)))
    if not all(ended):
        note("stopped at the limit; the same command again goes on")
    note(f"wrote {args.out}")
    return 0


def _shown(args: ChomskyArgs, record: SuiteFile) -> int:
    if not record.rows:
        raise InputError(f"there are no rows in {args.out}")
    in_order = sorted(record.rows, key=lambda row: list(TASKS).index(row["task"]))
    if args.table:
        print(markdown(scores(in_order)))
    if args.figure:
        from looped import figures  # here: measuring needs no matplotlib

        own: dict[str, str] = {}  # the rule of each run: its own comes before the oracle
        for row in in_order:
            own.setdefault(_key(row), row["stop"])
        kept = [row for row in in_order if row["stop"] == own[_key(row)]]
        rows = [{**row, "accuracy": row["token_accuracy"]} for row in kept]
        figure = figures.accuracy_by_length(
            rows, record.trained_to(), "The Chomsky suite", score="token accuracy"
        )
        figures.save(figure, args.figure)
        note(f"wrote {args.figure}")
    return 0


# --- the file ------------------------------------------------------------------------------------------------


class SuiteFile:
    """The result file: provenance with the runs behind it, rows, and the scores that follow from them."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows, self.runs = path, list[Json](), dict[str, Json]()
        self.facts: Json = {}
        if path.exists():
            data: Any = serial.read(path, "results of the Chomsky suite", LARGEST)
            if not fits(data, _FILE):
                raise InputError(f"{path} holds no results of `looped bench chomsky`")
            self.rows = data["rows"]
            self.runs = {each["key"]: each for each in data["provenance"]["runs"]}
            self.facts = {key: value for key, value in data["provenance"].items() if key != "runs"}

    def enter(self, key: str, about: Json) -> Json:
        """The entry of a run, which may be changed; rows of a run with other settings are dropped.

        A run may have been trained with other seeds: they do not depend on each other, and the file keeps all of them.
        """
        known: Json = self.runs.get(key, {})
        if known and _without_seeds(known["settings"]) != _without_seeds(about["settings"]):
            self.rows = [row for row in self.rows if _key(row) != key]
            known = {}
        before = known["settings"]["seeds"] if known else []
        seeds = {*before, *about["settings"]["seeds"]}
        self.runs[key] = {**known, "key": key, **about}
        self.runs[key]["settings"] = {**about["settings"], "seeds": sorted(seeds)}
        return self.runs[key]

    def trained_to(self) -> dict[str, int]:
        """The longest training length of each task; the shortest of them where its methods differ: ours."""
        found: dict[str, int] = {}
        for run in self.runs.values():
            longest = run["settings"]["max_length"]
            found[run["task"]] = min(longest, found.get(run["task"], longest))
        return found

    def lacks(self, key: str, length: int, seeds: Sequence[int], samples: int) -> set[int]:
        """The seeds that were not measured at a length on so many problems."""
        found = [row for row in self.rows if (_key(row), row["length"]) == (key, length)]
        return set(seeds) - {row["seed"] for row in found if row["samples"] >= samples}

    def put(self, key: str, rows: Sequence[Json]) -> None:
        """Add the rows of some seeds at a length and write the file."""
        new = {(row["seed"], row["length"]) for row in rows}
        self.rows = [row for row in self.rows if _key(row) != key or (row["seed"], row["length"]) not in new]
        self.rows += rows
        self.write()

    def as_dict(self) -> Json:
        """What the file holds."""
        origin = {**self.facts, "runs": list(self.runs.values())}
        return {"provenance": origin, "scores": scores(self.rows), "rows": self.rows}

    def write(self) -> None:
        """Put the file in its place, whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        checkpoints.write(self.path, (json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n").encode())


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['task']} {row['method']} {row['recipe']}"


def _without_seeds(settings: Mapping[str, Any]) -> Json:
    told = serial.former(TrainConfig, dict(settings))  # a file may be older than a field's name
    return {name: value for name, value in told.items() if name != "seeds"}


# --- models that can be asked --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ours:
    """A run of the package: all seeds stacked, under the rule by which it stops itself and under the oracle."""

    subject: Subject
    stops: tuple[str, ...]

    def answers(
        self, task: Task, length: int, samples: int
    ) -> Iterator[tuple[Batch, dict[str, tuple[Tensor, Tensor]]]]:
        """Batches, and under each rule the tokens said [S, N, L] and the loop steps [S, N]."""
        subject, method = self.subject, self.subject.method
        for problems in draw_problems(task, length, samples, seed=0):
            batch = batches.lay_out(
                problems, task.vocab, task.row_size(length), method.prediction, method.pause
            )
            steps = subject.steps(problems.steps, problems.question_length)
            batch = replace(batch, steps=steps).to(subject.weights.embed.device)
            if method.prediction == "ntp":
                loops = int(batch.steps[0])
                found = [decode.generate(subject.model, subject.weights, batch, loops, task.vocab.eos)]
            else:
                rules = [rule for name in self.stops if isinstance(rule := stopping.get(name), OnlineRule)]
                most = reach(subject, length) if len(rules) > 1 else int(batch.steps.max())
                limits = torch.full_like(batch.steps, most)
                found = decode.run_until_stopped(subject.model, subject.weights, batch, rules, limits)
            yield (
                batch,
                {stop: (each.tokens, each.steps) for stop, each in zip(self.stops, found, strict=True)},
            )


@dataclass(frozen=True)
class Recurrent:
    """LSTMs or GRUs, a net a seed."""

    nets: Sequence[RecurrentNet]
    device: torch.device

    @torch.inference_mode()
    def answers(
        self, task: Task, length: int, samples: int
    ) -> Iterator[tuple[Batch, dict[str, tuple[Tensor, Tensor]]]]:
        """Batches and what is said to them; a recurrent net takes no loop steps."""
        for problems in draw_problems(task, length, samples, seed=0):
            batch = batches.lay_out(problems, task.vocab, task.row_size(length)).to(self.device)
            tokens = torch.stack([net(batch.tokens).argmax(-1) for net in self.nets])
            yield batch, {"oracle": (tokens, torch.zeros(tokens.shape[:2]))}


def tested(model: Ours | Recurrent, task: Task, length: int, samples: int) -> dict[str, list[Json]]:
    """Both scores of every seed at one length, by stopping rule."""
    ended = isinstance(task, ChomskyTask) and task.ended
    sums: dict[str, list[Tensor]] = {}
    tokens = 0
    for batch, said in model.answers(task, length, samples):
        mask = scored(batch, task.vocab.eos, ended)
        tokens += int(mask.sum())
        for stop, (answer, steps) in said.items():
            right = answer == batch.targets
            exact = (right | ~batch.loss_mask).all(-1)
            counts = torch.stack(
                [(right & mask).sum((1, 2)), exact.sum(1), steps.to(exact.device).sum(1).long()]
            )
            sums[stop] = [*sums.get(stop, []), counts.cpu()]
    found = {stop: torch.stack(parts).sum(0).T.tolist() for stop, parts in sums.items()}
    return {
        stop: [
            {"token_accuracy": right / tokens, "accuracy": whole / samples, "mean_steps": steps / samples}
            for right, whole, steps in each
        ]
        for stop, each in found.items()
    }


# --- training and measuring ----------------------------------------------------------------------------------


class OutOfTime(Exception):
    """Raised where the limit has passed."""


def _alone(config: TrainConfig, seed: int) -> TrainConfig:
    """The same run of one of its seeds."""
    return replace(config, seeds=(seed,), lr=(config.seed_lrs[config.seeds.index(seed)],))


class SuiteBench:
    """One call: what is asked for, until when, and where it goes."""

    def __init__(self, args: ChomskyArgs, record: SuiteFile, lengths: Sequence[int]) -> None:
        self.args, self.record, self.lengths = args, record, lengths
        self.device = devices.pick(args.device)
        self.until = time.monotonic() + args.limit
        self.spent = 0.0  # seconds of training, of the run at hand
        record.facts = {**devices.facts(self.device), "definition": "see benchmarks/chomsky.py"}

    def measure(self, task: str, method: Named) -> bool:
        """Train and test what is missing of a task and method; False if there was no time."""
        try:
            self._measure(tasks.get(task), method)
        except OutOfTime:
            return False
        return True

    def _measure(self, task: Task, method: Named) -> None:
        args, own = self.args, OURS.get(method, method)
        config = self._config(task.name, method)
        about = {"task": task.name, "method": own, "recipe": args.recipe}
        key = _key(about)
        entry = self.record.enter(key, {"settings": serial.to_json(config), **about})
        lacks = {n: self.record.lacks(key, n, config.seeds, args.samples) for n in self.lengths}
        seeds = tuple(sorted(set().union(*lacks.values())))
        if not seeds:
            return
        self.spent = 0.0
        entry |= {name: self.record.facts[name] for name in ("device", "commit", "torch")}
        try:
            model = self._trained(task, method, replace(config, seeds=seeds), entry)
        finally:
            entry["train_seconds"] = round(entry.get("train_seconds", 0.0) + self.spent, 3)
            self.record.write()
        for length in (n for n in self.lengths if lacks[n]):
            self._check_time()
            found = tested(model, task, length, args.samples)
            rows = [
                {**about, "length": length, "samples": args.samples, "seed": seed, "stop": stop, **row}
                for stop, each in found.items()
                for seed, row in zip(seeds, each, strict=True)
            ]
            self.record.put(key, rows)
            best = {stop: max(row["token_accuracy"] for row in each) for stop, each in found.items()}
            note(f"{key}  {length:>4}  " + "  ".join(f"{stop} {value:.4f}" for stop, value in best.items()))

    def _config(self, task: str, method: Named) -> TrainConfig:
        """The recipe's configuration for a method of the package; lstm and gru take steps and questions of fop."""
        args = self.args
        config = make(task, OURS.get(method, "fop"), args.recipe, tuple(range(args.seeds)))
        if args.steps:
            interval, *stage_steps = (
                max(1, stage * args.steps // config.steps) for stage in (config.interval, *config.stage_steps)
            )
            config = replace(
                config, steps=args.steps, interval=interval, stage_steps=tuple(stage_steps),
                warmup=min(config.warmup, args.steps // 4),
            )  # fmt: skip
        return with_fields(config, args.set)

    def _trained(self, task: Task, method: Named, config: TrainConfig, entry: Json) -> Ours | Recurrent:
        """Trained models of the seeds in `config`; the learning rate goes into the run's entry once it is chosen."""
        if method == "looped":
            entry["lr"] = config.lr[0]
            return self._ours(config, config.name)
        name = f"{task.name}-{method}-{self.args.recipe}"
        if "lr" not in entry:
            tried = self._tried(method, config, f"{name}-rates")
            entry["lr"] = RATES[method][self._best(tried, task, config.max_length)]
            self.record.write()
            note(f"{task.name} {method}: learning rate {entry['lr']:g}, chosen on training lengths")
        config = replace(config, lr=(entry["lr"],))
        if method in CELLS:
            return self._recurrent(method, config, name)
        return self._ours(config, name)

    def _tried(self, method: Named, config: TrainConfig, name: str) -> Ours | Recurrent:
        """A model for each learning rate, trained for a part of the steps, on all training lengths from the first on.

        There would be a few steps only for each length of a curriculum, and on a GPU every length has to be prepared.
        """
        short = replace(
            config,
            steps=max(1, config.steps // CHOOSING),
            start_length=config.max_length,
            seeds=_CHOOSERS,
            lr=RATES[method],
        )
        return self._recurrent(method, short, name) if method in CELLS else self._ours(short, name)

    def _best(self, tried: Ours | Recurrent, task: Task, longest: int) -> int:
        """Which of several models is best on training lengths alone, by token accuracy."""
        lengths = sorted({max(1, longest * part // 4) for part in (1, 2, 3, 4)})
        found = [tested(tried, task, length, self.args.samples) for length in lengths]
        each = [[row["token_accuracy"] for row in next(reversed(one.values()))] for one in found]
        means = [fmean(values) for values in zip(*each, strict=True)]
        return max(range(len(means)), key=means.__getitem__)

    def _ours(self, config: TrainConfig, name: str) -> Ours:
        """A run of the package, trained to its end; only the seeds whose weights are not there are trained."""
        known = self._known(config, name)
        fresh = tuple(seed for seed in config.seeds if seed not in known)
        if fresh:
            whole = fresh in (tuple(range(self.args.seeds)), _CHOOSERS)
            folder = self.args.runs / (name if whole else f"{name}-seeds-{'-'.join(map(str, fresh))}")
            lr = tuple(_alone(config, seed).lr[0] for seed in fresh) if len(config.lr) > 1 else config.lr
            left, began = self.until - time.monotonic(), time.monotonic()
            limit = max(left, 1e-3) if math.isfinite(left) else None
            summary = train(
                replace(config, seeds=fresh, lr=lr),
                folder,
                self.device,
                cadence=Cadence(longer=False),
                time_limit_s=limit,
            )
            self.spent += time.monotonic() - began
            if summary.ending not in ("finished", "every seed stopped"):
                raise OutOfTime
            known |= {seed: runs.load_seed(folder / f"seed-{seed}.safetensors") for seed in fresh}
        stops = (*(stop for stop in config.stops if stop != "oracle"), "oracle")
        weights = [known[seed] for seed in config.seeds]
        return Ours(loading.stack(self.args.runs / name, weights, self.device).subject, stops)

    def _known(self, config: TrainConfig, name: str) -> dict[int, Trained]:
        """The seeds of a configuration whose weights are in the folder of the run, or of one that added seeds to it."""
        found = {}
        for file in sorted(self.args.runs.glob(f"{name}*/seed-*.safetensors")):
            trained = runs.load_seed(file)
            asked = trained.seed in config.seeds and trained.step == config.steps
            if asked and _alone(trained.config, trained.seed) == _alone(config, trained.seed):
                found[trained.seed] = trained
        return found

    def _recurrent(self, cell: str, config: TrainConfig, name: str) -> Recurrent:
        """A net for every seed, at its rate; those that were trained before are read."""
        folder = self.args.runs / name
        folder.mkdir(parents=True, exist_ok=True)
        nets, paths, todo = list[RecurrentNet](), list[Path](), list[int]()
        for i, (seed, rate) in enumerate(zip(config.seeds, config.seed_lrs, strict=True)):
            torch.manual_seed(seed)
            nets.append(
                RecurrentNet(cell, len(tasks.get(config.task).vocab), recurrent.WIDTH).to(self.device)
            )
            settings = json.dumps([config.steps, config.batch, config.max_length, config.family, rate])
            paths.append(
                folder / f"seed-{seed}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}.safetensors"
            )
            if paths[i].exists():
                nets[i].load_state_dict(load_file(paths[i], str(self.device)))
            else:
                todo.append(i)
        if todo:
            began, seeds = time.monotonic(), [config.seeds[i] for i in todo]
            rates = [config.seed_lrs[i] for i in todo]
            try:
                recurrent.train([nets[i] for i in todo], config, rates, seeds, self._check_time)
            finally:
                self.spent += time.monotonic() - began
        for i in todo:
            part = paths[i].with_suffix(".part")
            save_file({key: value.contiguous() for key, value in nets[i].state_dict().items()}, part)
            part.replace(paths[i])
        return Recurrent([net.eval() for net in nets], self.device)

    def _check_time(self) -> None:
        if time.monotonic() >= self.until:
            raise OutOfTime


# --- scores --------------------------------------------------------------------------------------------------


def scores(rows: Sequence[Mapping[str, Any]]) -> list[Json]:
    """For every task, method and rule: both scores, mean over lengths, of the best seed and mean over seeds."""
    groups: dict[tuple[str, ...], dict[int, list[Mapping[str, Any]]]] = {}
    for row in rows:
        key = tuple(row[field] for field in ("task", "method", "recipe", "stop"))
        groups.setdefault(key, {}).setdefault(row["seed"], []).append(row)
    found = []
    for (task, method, recipe, stop), seeds in groups.items():
        entry: Json = {"task": task, "method": method, "recipe": recipe, "stop": stop, "seeds": len(seeds)}
        entry["lengths"] = min(len(each) for each in seeds.values())
        for name, field in (("token", "token_accuracy"), ("exact", "accuracy")):
            each = [fmean(row[field] for row in own) for own in seeds.values()]
            entry |= {f"{name}_best": max(each), f"{name}_mean": fmean(each)}
        found.append(entry)
    return found


def score_table(found: Sequence[Json]) -> tuple[Sequence[str], list[Sequence[object]]]:
    """Columns and rows that a person reads."""
    shares = ("token_best", "token_mean", "exact_best", "exact_mean")
    columns = ("task", "method", "stop", "seeds", "lengths", *(name.replace("_", " ") for name in shares))
    return columns, [
        [*(each[name] for name in columns[:5]), *(f"{each[name]:.4f}" for name in shares)] for each in found
    ]


def markdown(found: Sequence[Json]) -> str:
    """Tasks × methods: token accuracy of the best seed and the mean, then exact match the same way."""
    columns = list(dict.fromkeys(f"{each['method']}, {each['stop']}" for each in found))
    lines = [["task", *columns], ["---", *["---:"] * len(columns)]]
    for task in dict.fromkeys(each["task"] for each in found):
        cells = {
            f"{each['method']}, {each['stop']}": f"{each['token_best']:.3f} / {each['token_mean']:.3f}; "
            f"{each['exact_best']:.3f} / {each['exact_mean']:.3f}"
            for each in found
            if each["task"] == task
        }
        lines.append([f"`{task}`", *(cells.get(column, "") for column in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
