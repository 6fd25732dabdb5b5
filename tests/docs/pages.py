"""Fenced blocks of a page, and running them: python, sh and console blocks in order, in one folder and one namespace.

A block that must not run has a line before it that says why; so has an output that is not compared:

    <!-- not run: trains for a minute -->        before a python, sh or console block
    <!-- not compared: depends on the machine -->    before the text block that follows one

A python block after `<!-- file: NAME -->` is a file that the reader saves: it is written, not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from looped.cli import main

RUN = ("python", "sh", "console")
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
REASON = re.compile(r"<!-- not (run|compared): (\S.*?) -->\s*\Z")
SAVED = re.compile(r"<!-- file: ([\w.]+) -->\s*\Z")
OPERATORS = re.compile(r"[|<>&;$]")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int  # of its fence, from 1
    reason: str | None  # why it is not run, or not compared
    follows: bool  # nothing but blank lines and the reason stand between it and the block before
    file: str = ""  # the name under which the reader saves it


def blocks(page: str) -> list[Block]:
    """All of them, in order."""
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(page):
        between = page[end : match.start()]
        told = REASON.search(between)
        indent = match[1]
        text = "".join(line.removeprefix(indent) for line in match[3].splitlines(keepends=True))
        plain = REASON.sub("", between).strip() == ""
        saved = SAVED.search(between)
        line, reason = page[: match.start()].count("\n") + 1, told[2] if told else None
        found.append(Block(match[2], text, line, reason, plain, saved[1] if saved else ""))
        end = match.end()
    return found


def check(page: str, name: str, folder: Path) -> int:
    """Runs a page's blocks in a folder and holds outputs to what the page shows; returns how many ran."""
    names: dict[str, object] = {"__name__": "__main__"}
    ran, printed = 0, ""
    with contextlib.chdir(folder):
        for block in blocks(page):
            at = f"{name}, line {block.line}"
            if block.language == "text" and block.follows and block.reason is None and printed:
                assert printed.rstrip() == block.text.rstrip(), f"{at}: the page shows another output"
            printed = ""
            if block.language not in RUN or block.reason is not None:
                continue
            if block.file:
                Path(block.file).write_text(block.text, encoding="utf-8")
                ran += 1
                continue
            printed = _run(block, names, at)
            ran += 1
    return ran


def _run(block: Block, names: dict[str, object], at: str) -> str:
    if block.language == "python":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, at, "exec"), names)
        return out.getvalue()
    if block.language == "sh":
        lines = block.text.replace("\\\n", " ").splitlines()
        return "".join(_command(line, at) for line in lines if line.strip() and not line.startswith("#"))
    for part in re.split(r"^(?=\$ )", block.text, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        assert _command(command[2:], at).rstrip() == expected.rstrip(), (
            f"{at}: {command} prints something else"
        )
    return ""


def _command(line: str, at: str) -> str:
    """One command's output: `looped …` in this process, anything with a shell's signs in a shell."""
    bare = re.split(r"\s#\s", line)[0]
    words = shlex.split(bare)
    if words[0] == "looped" and not OPERATORS.search(bare):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words[1:])
        assert code == 0, f"{at}: `{line}` ends with {code}: {err.getvalue()}"
        return out.getvalue()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{at}: `{line}` ends with {done.returncode}: {done.stderr}"
    return done.stdout
