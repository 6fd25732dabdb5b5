"""One job in a process of its own: trains what is not trained and measures what is not measured.

    python -m looped.experiments.worker DIR/.jobs/NAME.json --device cuda:0

Every backend starts this and looks at nothing but the exit status and the folder:

| status  | means                                                         |
|---------|---------------------------------------------------------------|
| 0       | the job is done                                               |
| 1       | it crashed, or every seed went wrong; the reason is in a file |
| 2       | it cannot be done; the reason is in a file                    |
| 74      | the disk is full                                              |
| 75      | another worker has the job                                    |
| 128 + n | it was asked to stop and saved first                          |

It stops, and saves first, on SIGTERM and SIGINT, when `looped cancel` asks, and when its parent is gone. Needs no more
than torch: it runs on a bare machine.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from looped import checkpoints, devices, files, registry, runs
from looped.errors import InputError
from looped.experiments import queue, results
from looped.experiments.queue import Job
from looped.training.interrupt import Interrupt, mend_streams
from looped.training.progress import Lines
from looped.training.trainer import Cadence, train

CRASHED, IMPOSSIBLE, FULL, HELD = 1, 2, 74, 75


class StopRequested(Exception):
    """Raised out of a measurement that was asked to stop."""


class AllSeedsStopped(Exception):
    """Raised for a run whose every seed went wrong."""


def main(words: Sequence[str] | None = None) -> int:
    """Work on the job the words name; returns the exit status."""
    mend_streams()
    args = _parser().parse_args(words)
    root, name = args.job.parent.parent, args.job.stem
    lock = files.lock(args.job.with_suffix(".lock"))
    if lock is None:
        print(f"another process works on {name}", file=sys.stderr)
        return HELD
    with lock, Interrupt() as asked:
        queue.clear_failure(root, name)
        try:
            registry.resolve_named(args.own)
            work(root, queue.read_job(args.job), args.device, _stop_request(root, asked, args.parent))
        except StopRequested:
            return asked.status or 128 + signal.SIGTERM
        except (InputError, AllSeedsStopped) as error:
            status = CRASHED if isinstance(error, AllSeedsStopped) else IMPOSSIBLE
            return _failed(root, name, str(error), status)
        except Exception as error:  # whatever it is, the sweep has to know
            status = FULL if isinstance(error, OSError) and error.errno == errno.ENOSPC else CRASHED
            _failed(root, name, f"{type(error).__name__}: {error}", status)
            if status == FULL:
                return FULL
            raise
    return 0


def work(root: Path, job: Job, device_name: str, stop: Callable[[], bool]) -> None:
    """Bring a job to its end, or raises `Stopped`."""
    folder, device = root / job.name, devices.pick(device_name)
    missing = queue.missing_plans(job)
    if job.plans and not missing:
        return
    if not queue.trained(folder, job.config) or not _intact(folder):
        # What is measured afterwards is not evaluated on the way, only once at the end.
        cadence = Cadence(save_seconds=job.save_seconds, evaluate_steps=job.config.steps if job.plans else 0)
        summary = train(job.config, folder, device, listeners=[Lines()], cadence=cadence, stop=stop)
        if summary.ending == "every seed stopped":
            why = "; ".join(f"seed {seed['seed']}: {seed['stopped']}" for seed in summary.seeds)
            raise AllSeedsStopped(f"every seed stopped ({why})")
        if summary.ending != "finished":
            raise StopRequested

    def check() -> None:
        if stop():
            raise StopRequested

    for plan in missing:
        check()
        print(f"measuring {job.name}: {plan.name}", file=sys.stderr, flush=True)
        part = queue.part_file(root, job, plan)
        result = results.make(folder, plan, device, check, part)
        checkpoints.write_json(results.file_of(Path(job.results), job.name, plan), result)
        part.unlink(missing_ok=True)


def _intact(folder: Path) -> bool:
    """Whether every seed's file can be read, or there is nothing left to make it again from."""
    try:
        for path in runs.seed_files(folder):
            runs.load_seed(path)
    except InputError:
        return not (folder / runs.STATE).exists()
    return True


def _stop_request(root: Path, asked: Interrupt, parent: int | None) -> Callable[[], bool]:
    """Whether to stop: it is asked to, or its parent is gone."""

    def look() -> bool:
        return queue.is_cancelled(root) or (parent is not None and os.getppid() != parent)

    return queue.stop_request(asked, look)


def _failed(root: Path, name: str, reason: str, status: int) -> int:
    """Write down the reason; a full disk has a status of its own, as it cannot be written."""
    print(f"looped: {' '.join(reason.split())}", file=sys.stderr)
    queue.fail(root, name, reason)
    return FULL if reason.startswith("the disk is full") else status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m looped.experiments.worker", description="Work on a job.")
    parser.add_argument("job", type=Path, help="DIR/.jobs/NAME.json")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    own = {"metavar": "KIND=FILE.py:Name", "help": "a part that the person who asked named"}
    parser.add_argument("--own", action="append", default=[], **own)  # type: ignore[arg-type]
    parser.add_argument("--parent", type=int, help="stop when this is no longer the parent's process number")
    return parser


if __name__ == "__main__":
    sys.exit(main())
