"""The command as people and scripts meet it: help, version, one sentence for every failure, quiet pipes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import looped
from looped import cli as command_line
from looped.cli import COMMANDS, SUBCOMMANDS
from looped.errors import InputError
from looped.methods import METHODS
from looped.output import note, print_json, print_table

COMMANDS_FOLDER = Path(looped.__file__).parent / "cli"


@dataclass(frozen=True)
class Args:
    """A command for tests."""

    fail: str = ""
    """what to raise"""


def run(args: Args) -> int:
    """Fails as asked."""
    failures = {
        "input": InputError("a bit is 0 or 1,\nnot 'x'"),
        "full": OSError(errno.ENOSPC, "No space left on device", "run/metrics.jsonl"),
        "denied": PermissionError(errno.EACCES, "Permission denied", "out.svg"),
        "nameless": OSError("the disk is gone"),
        "pipe": BrokenPipeError(errno.EPIPE, "Broken pipe"),
        "interrupt": KeyboardInterrupt(),
        "bug": RuntimeError("a bug"),
        "memory": MemoryError(),
        "torch memory": RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4e17 bytes"
        ),
        "gpu memory": type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate"),
    }
    if args.fail:
        raise failures[args.fail]
    print_json({"done": True})
    note("wrote nothing")
    return 0


@pytest.fixture(autouse=True)
def probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `probe` that lives in this file."""
    module = ModuleType("looped_probe")
    module.__dict__.update(Args=Args, run=run)
    monkeypatch.setitem(sys.modules, "looped_probe", module)
    monkeypatch.setitem(COMMANDS, "probe", ("looped_probe", "a command for tests"))


def looped_process(*words: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "looped", *words]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_the_table_of_commands_is_the_folder_of_commands() -> None:
    shared = {"__init__", "arguments"}
    on_disk = {path.stem for path in COMMANDS_FOLDER.glob("*.py")} - shared
    modules = {module for name, (module, _) in COMMANDS.items() if name != "probe"} | {*SUBCOMMANDS.values()}
    beside = {"benchmarks", "benchmarks.chomsky"}  # in a checkout alone
    assert modules == {f"looped.cli.{name}" for name in on_disk} | beside
    assert all(summary for _, summary in COMMANDS.values())


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(cli, words) -> None:
    code, out, err = cli(*words)
    assert (code, err) == (0, "")
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in out
        assert summary in out


def test_version(cli) -> None:
    assert cli("--version") == (0, f"looped {looped.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["prob"], "unknown command 'prob'; did you mean 'probe'?"),
        (["xyzzy"], "unknown command 'xyzzy'; the commands are "),
        (["--verison"], "unknown option '--verison'; "),
        (["probe", "--fail", "input"], "a bit is 0 or 1, not 'x'"),
        (["probe", "--fail", "full"], "No space left on device: run/metrics.jsonl"),
        (["probe", "--fail", "denied"], "Permission denied: out.svg"),
        (["probe", "--fail", "nameless"], "the disk is gone"),
        (["probe", "--fial", "x"], "looped probe has no option --fial; did you mean --fail?"),
        (["probe", "more"], "looped probe takes no further argument 'more'"),
    ],
)
def test_what_a_person_did_wrong_is_one_sentence(cli, words, sentence) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"looped: {sentence}")
    assert err.count("\n") == 1


def test_an_interrupt_is_one_line(cli) -> None:
    assert cli("probe", "--fail", "interrupt") == (130, "", "looped: interrupted\n")


def test_a_broken_pipe_is_silent(cli) -> None:
    assert cli("probe", "--fail", "pipe") == (141, "", "")


@pytest.mark.parametrize("where", ["memory", "torch memory", "gpu memory"])
def test_want_of_memory_is_one_sentence(cli, where: str) -> None:
    sentence = "looped: there is not enough memory for this: ask for a smaller model, batch or length\n"
    assert cli("probe", "--fail", where) == (2, "", sentence)


def test_a_bug_is_not_hidden(cli) -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        cli("probe", "--fail", "bug")


def test_json_is_alone_on_stdout(cli) -> None:
    assert cli("probe") == (0, '{"done": true}\n', "wrote nothing\n")


def test_a_commands_help_tells_its_options(cli) -> None:
    code, out, err = cli("probe", "--help")
    assert (code, err) == (0, "")
    assert "looped probe" in out
    assert "what to raise" in out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(cli, name) -> None:
    code, out, err = cli(name, "--help")
    assert (code, err) == (0, "")
    assert f"usage: looped {name}" in out


def test_help_waits_for_no_heavy_import() -> None:
    """What needs no tensor answers before torch could be imported."""
    names = ["trace", "check", "figure", "bench", "explore"]
    program = (
        "import sys\nfrom looped.cli import main\n"
        "main(['--help'])\nassert 'looped.cli.arguments' not in sys.modules, 'the list of commands parses nothing'\n"
        f"for name in {names!r}:\n"
        "    main([name, '--help'])\n"
        "    assert 'torch' not in sys.modules, name + ' imports torch before it is run'\n"
        "    assert 'matplotlib' not in sys.modules, name + ' imports matplotlib before it is run'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_m_looped_is_looped() -> None:
    done = looped_process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"looped {looped.__version__}\n", "")
    done = looped_process("xyzzy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("looped: unknown command 'xyzzy'")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_stdout_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = looped_process("--help", stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == "looped: No space left on device\n"


def test_a_reader_that_leaves_early_leaves_no_trace() -> None:
    program = (
        "import sys\nfrom looped import cli\n"
        "cli._help = lambda: '0 1 > #\\n' * 100_000\n"  # far more than a pipe holds
        "sys.exit(cli.main(['--help']))"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141
    process.stderr.close()


def test_json_is_strict_and_keeps_the_papers_signs(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"question": "11×110"})
    assert json.loads(capsys.readouterr().out) == {"question": "11×110"}
    with pytest.raises(ValueError, match="JSON"):
        print_json({"loss": float("nan")})


def test_a_table_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["task", "length"], [["parity", 4], ["[bold]", 12]], title="two tasks")
    assert capsys.readouterr().out == "two tasks\ntask    length\nparity       4\n[bold]      12\n"
    with pytest.raises(ValueError, match="3 cells in a table of 2"):
        print_table(["task", "length"], [[1, 2, 3]])


def test_a_table_on_a_terminal_reads_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(["task", "length"], [["[bold]", 12]], title="[red]one")
    drawn = capsys.readouterr().out
    assert "[bold]" in drawn
    assert "[red]one" in drawn


def test_commands_are_found_by_their_own_name_only() -> None:
    assert command_line.main(["looped.cli.tasks"]) == 2


def test_a_closed_stdout_is_no_crash() -> None:
    command = f"{sys.executable} -m looped solve parity 11 >&-"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=100)
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ("PASSIVE", "20000")),
        ({"GOMP_SPINCOUNT": "7"}, ("PASSIVE", "7")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None)),
        ({"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "7"}, ("ACTIVE", "7")),
    ],
)
def test_threads_wait_a_little_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], found: tuple[str, str | None]
) -> None:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    monkeypatch.setattr(os, "environ", environment | asked)
    assert command_line.main(["--version"]) == 0
    assert (os.environ["OMP_WAIT_POLICY"], os.environ.get("GOMP_SPINCOUNT")) == found


@pytest.mark.parametrize("command", [*COMMANDS, "bench ladder"])
def test_options_say_what_they_take(command: str, cli: Callable[..., tuple[int, str, str]]) -> None:
    _, out, _ = cli(*command.split(), "--help")
    shown = re.findall(r"^  (--[a-z-]+)(?: (\S+))?", out, flags=re.M)
    assert not [(flag, word) for flag, word in shown if re.search(r"\b(STR|INT|FLOAT|None)\b|\w\[", word)]
    text = " ".join(out.split())
    if command in ("train", "cost"):
        assert [name for name in METHODS if name not in text] == []
