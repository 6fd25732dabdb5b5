"""Coverage-guided fuzzing (atheris, libFuzzer) of every reader of files: `python tests/fuzz/readers.py FOLDER -h`.

    PYTHONPATH=. python tests/fuzz/readers.py /tmp/fuzz -max_total_time=60

An input is one byte that picks a reader, and the file that it is given. Whatever that file holds, a reader gives back
something or refuses in one `InputError` of bounded length. Anything else is a finding: it is written to
`FOLDER/findings/`, with its traceback, and fuzzing goes on. A reader that takes longer than libFuzzer's `-timeout`, or
more memory than its `-rss_limit_mb`, ends the process and leaves its input in `FOLDER/`.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "compiler")]
SUM = "any"  # the checksum of every checkpoint here
LONGEST_SENTENCE = 700  # characters of a refusal, the path of a temporary folder included
Reader = Callable[[Path], object]


def readers() -> dict[str, tuple[Reader, list[bytes]]]:
    """Every reader with files that it accepts."""
    import looped.zoo as zoo
    from looped import checkpoints, figures, runs, serial
    from looped.compiler import compiled
    from looped.evaluation import length_sweep
    from looped.experiments import plan, queue
    from looped.experiments.plan import MeasurementPlan, RunSpec
    from looped.experiments.queue import Job
    from looped.explorer import app
    from looped.model.hub import HubFacts
    from looped.rasp import programs

    config = RunSpec("copy", recipe="quick", seeds=(0, 1), set=("steps=5",)).config
    measured = MeasurementPlan((2, 3), samples=4)
    origin = {"looped": "0", "plan": serial.to_json(measured), "runs": [{"config": serial.to_json(config)}]}
    row = {
        "task": "copy", "method": "ntp", "recipe": "quick", "seed": 0, "length": 3, "stop": "oracle", "accuracy": 0.5,
        "samples": 4, "mean_steps": 3.0, "family": "zeros",
    }  # fmt: skip
    result = _json({"provenance": origin, "rows": [row]})
    sweep = {
        "tasks": ["copy", "parity"], "methods": ["ntp"], "recipes": ["quick"], "seeds": [0, 1], "set": {"steps": 5},
        "grid": {"lr": [0.1, 0.2]}, "measure": {"lengths": "1:2", "samples": 5, "stops": ["oracle"]},
    }  # fmt: skip
    listed = {"runs": [{"task": "copy", "recipe": "fast", "seeds": [0], "set": {"model.width": 16}}]}
    line = {"kind": "training", "step": 3, "length": 2, "seed": 0, "loss": 0.5, "accuracy": 0.25}
    ladder = {
        "provenance": {
            "runs": [
                {"key": "k", "run": "r", "task": "copy", "trained": 3, "paper": 3, "seeds": [0], "lengths": [3],
                 "stops": ["oracle"], "families": ["uniform"], "complete": True}
            ]
        },
        "rows": [{**row, "run": "k"}], "steps": [],
    }  # fmt: skip
    reach = {"stop": "oracle", "inputs": "uniform", "L99": 40, "L999": 20,
             "L99_ended_by": {"length": 60, "accuracy": 0.5}}  # fmt: skip
    summary = {"task": "copy", "run": "x", "trained": 10, "paper": 35, "lengths": [10, 20], "reach": [reach]}
    asked = {"model": "copy-compiled", "question": "1", "stretch": 1.0}
    cards = [(ROOT / "looped/zoo" / f"{name}.json").read_bytes() for name in ("copy-long", "parity-paper")]
    ladders = [(ROOT / "results" / "ladder-copy.json").read_bytes()[:4000]]
    sources = [file.read_bytes() for file in sorted(Path(programs.__file__).parent.glob("[a-z]*.py"))]
    one, other = _headers()
    return {
        "config.json": (lambda path: runs.read_config(path.parent),
                        [_json({"looped": "0", "config": serial.to_json(config)})]),
        "metrics.jsonl": (lambda path: runs.read_metrics(path.parent), [_json(line) * 2]),
        "drawn.jsonl": (figures.read_metrics, [_json(line) * 2]),
        "result.json": (lambda path: queue.read_result(path, config, measured), [result]),
        "rows.json": (lambda path: figures.read_rows([path]), [result, _json(row) * 2]),
        "ladder.json": (length_sweep.read, [_json(ladder), *ladders]),
        "ladders.json": (lambda path: figures.read_length_sweeps([path]), [_json({"ladder": [summary]})]),
        "card.json": (zoo._read.__wrapped__, cards),
        "sweep.json": (plan.read_sweep, [_json(sweep), _json(listed)]),
        "job.json": (queue.read_job, [_json(serial.to_json(Job("job", config, (measured,), "results")))]),
        "request.json": (lambda path: app.read_request(app.RunRequest, path.read_bytes()), [_json(asked)]),
        "published.json": (_published,
                           [_json(serial.to_json(HubFacts("looped", "copy")) | serial.to_json(config.model))]),
        "seed.safetensors": (_whole(runs.load_seed, one[1]), [one[0]]),
        "compiled.safetensors": (_whole(compiled.load, other[1]), [other[0]]),
        "raw.safetensors": (checkpoints.header, [struct.pack("<Q", len(one[0])) + one[0]]),
        "program.py": (_program, sources),
    }  # fmt: skip


def any_digest(tensors: object, metadata: Mapping[str, str]) -> str:
    """In the place of the real one: whatever a forged file says is right."""
    return SUM


def _json(data: object) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _headers() -> list[tuple[bytes, bytes]]:
    """Of a seed's weights and of a compiled model: the header of the file, and the numbers after it."""
    import torch

    from looped import runs, serial
    from looped.compiler import compiled
    from looped.model.weights import Layout
    from looped.rasp import programs
    from looped.training.recipes import make

    small = ["model.width=8", "model.heads=2", "model.bands=2", "max_length=3"]
    config = serial.override(make("copy", "fop-loop-adaptive", "quick", (0,)), small)
    found = []
    with tempfile.TemporaryDirectory() as name:
        with runs.Run(Path(name) / "run", config) as run:
            seed = run.save_seed(0, torch.zeros(Layout(config.model).size), 2)
        model = Path(name) / "compiled"
        compiled.compile_program(programs.get("copy"), longest=4).save(model)
        for path in (seed, model):
            data = path.read_bytes()
            end = 8 + struct.unpack("<Q", data[:8])[0]
            header = json.loads(data[8:end])
            header["__metadata__"]["sha256"] = SUM
            found.append((json.dumps(header).encode(), data[end:]))
    return found


def _whole(read: Reader, numbers: bytes) -> Reader:
    """A reader of the safetensors file whose header is given and whose numbers are these."""

    def given(path: Path) -> object:
        head = path.read_bytes()
        path.write_bytes(struct.pack("<Q", len(head)) + head + numbers)
        return read(path)

    return given


def _published(path: Path) -> object:
    """Read a file as the configuration of a published model."""
    from looped.model import hub

    folder = path.parent / "published"
    folder.mkdir(exist_ok=True)
    (folder / hub.CONFIG).write_bytes(path.read_bytes())
    return hub.read(folder)


def _program(path: Path) -> None:
    """Check a file of programs, and run those that pass on their examples."""
    from looped.rasp.lint import check_file
    from looped.rasp.program import run

    report = check_file(path)
    if report.legal:
        for program in report.loaded.values():
            run(program, program.row(program.example.split()))


class Judge:
    """Gives inputs to readers, and writes down what is no refusal."""

    def __init__(self, folder: Path) -> None:
        self.readers = readers()
        self.findings = folder / "findings"
        self.findings.mkdir(parents=True, exist_ok=True)
        self._place = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)

    def close(self) -> None:
        """Remove the files that readers were given."""
        self._place.cleanup()

    def seeds(self, corpus: Path) -> None:
        """Write the good files down as inputs to begin with."""
        corpus.mkdir(parents=True, exist_ok=True)
        for number, (name, (_, files)) in enumerate(self.readers.items()):
            for i, data in enumerate(files):
                (corpus / f"{name}-{i}").write_bytes(bytes([number]) + data)

    def judge(self, data: bytes) -> str:
        """What became of an input: read, refused, or the traceback of a finding."""
        if not data:
            return "empty"
        name = list(self.readers)[data[0] % len(self.readers)]
        path = Path(self._place.name) / name
        path.write_bytes(data[1:])
        from looped.errors import InputError

        try:
            self.readers[name][0](path)
        except InputError as error:
            said = str(error)
            wrong = not 10 < len(said) <= LONGEST_SENTENCE or not said.isprintable()
            return self._finding(name, data, f"a bad sentence: {said[:2000]!r}") if wrong else "refused"
        except Exception:
            return self._finding(name, data, traceback.format_exc())
        return "read"

    def _finding(self, name: str, data: bytes, trace: str) -> str:
        """Keep one input for each place in the code at which something went wrong."""
        lines = [line for line in trace.splitlines() if line.startswith("  File")]
        key = hashlib.sha256("\n".join([name, *lines[-4:]]).encode()).hexdigest()[:12]
        path = self.findings / f"{key}-{name}"
        if not path.exists():
            path.write_bytes(data)
            path.with_suffix(".txt").write_text(trace)
        return trace


def mutated(data: bytes, largest: int, seed: int) -> bytes:
    """A file that is changed where it means something: a value of its JSON, a node of its syntax tree."""
    import ast

    import atheris
    from damage import changed
    from mutations import Change

    rng = random.Random(seed)
    text = data[1:].decode("utf-8", errors="ignore")
    if data and rng.random() < 0.5:
        try:
            if text.lstrip()[:1] in ("{", "["):
                line = rng.choice(text.splitlines()) if text.count("\n") < 4 else text  # one row of several
                new = text.replace(line, changed(line, rng), 1)
            else:
                tree = ast.parse(text)
                new = ast.unparse(ast.fix_missing_locations(Change(rng, tree).visit(tree)))
            return (data[:1] + new.encode("utf-8", "surrogatepass"))[:largest]
        except (
            ValueError,
            SyntaxError,
            RecursionError,
            IndexError,
            TypeError,
            KeyError,
            AttributeError,
            MemoryError,
        ):
            pass
    return data[:1] + atheris.Mutate(data[1:], largest - 1)


def main(words: list[str]) -> None:
    """Fuzz until libFuzzer is told to stop."""
    import atheris

    folder = Path(words[0])
    warnings.simplefilter("ignore")
    with atheris.instrument_imports(include=["looped"]):
        judge = Judge(folder)
    from looped import checkpoints

    checkpoints.digest = any_digest
    judge.seeds(folder / "corpus")
    usual = ["-max_len=16384", "-timeout=30", "-rss_limit_mb=3000", f"-artifact_prefix={folder}/"]
    atheris.Setup(
        [sys.argv[0], *usual, *words[1:], str(folder / "corpus")],
        lambda data: judge.judge(data) and None,
        custom_mutator=mutated,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
