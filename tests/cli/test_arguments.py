"""Words on the command line: a table of what people type and mistype, and what they are told."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.cli.arguments import Option, Positional, parse
from looped.errors import InputError


@dataclass(frozen=True)
class Args:
    """Asks a question."""

    task: Annotated[str, Positional()]
    """Which task."""
    question: Annotated[str, Positional("QUESTION")]
    """What is asked."""
    length: int = 5
    """How long."""
    rate: float = 0.1
    """How fast."""
    stop: Literal["oracle", "confidence"] = "oracle"
    """When to stop."""
    lengths: tuple[int, ...] = (1, 2)
    """Several."""
    set: Annotated[tuple[str, ...], Option("KEY=VALUE", repeat=True)] = ()
    """One at a time."""
    out: Annotated[Path | None, Option("FILE", default="(default: nowhere)")] = None
    """Where to."""
    show_steps: bool = False
    """Every step."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"--length must be at least 1, not {self.length}")


@dataclass(frozen=True)
class Needy:
    """Has an option that must be given."""

    out_file: str


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("copy 01", Args("copy", "01")),
        ("copy 01 --length 7 --show-steps", Args("copy", "01", length=7, show_steps=True)),
        ("--length=7 copy --stop confidence 01", Args("copy", "01", length=7, stop="confidence")),
        ("copy 01 --show_steps", Args("copy", "01", show_steps=True)),
        ("copy 01 --lengths 3 4 5", Args("copy", "01", lengths=(3, 4, 5))),
        ("copy -- -1", Args("copy", "-1")),
        ("copy -1 --rate -2.5", Args("copy", "-1", rate=-2.5)),
        ("copy --show-steps 01", Args("copy", "01", show_steps=True)),
        ("copy 01 --lengths", Args("copy", "01", lengths=())),
        ("copy 01 --set a=1 --set b=2 --out x", Args("copy", "01", set=("a=1", "b=2"), out=Path("x"))),
        ("--set a=1 copy 01 --set=b", Args("copy", "01", set=("a=1", "b"))),
    ],
)
def test_words_become_arguments(words: str, expected: Args) -> None:
    assert parse(Args, words.split(), "looped ask") == expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "looped ask needs TASK and QUESTION; `looped ask --help` shows how"),
        ("copy", "looped ask needs TASK and QUESTION; `looped ask --help` shows how"),
        ("copy 01 10", "looped ask takes no further argument '10'; `looped ask --help` shows what it takes"),
        ("copy 01 --lenght 3", "looped ask has no option --lenght; did you mean --length?"),
        ("copy 01 --lenght=3", "looped ask has no option --lenght; did you mean --length?"),
        ("copy 01 --bogus", "looped ask has no option --bogus; `looped ask --help` lists its options"),
        ("copy 01 --length x", "--length takes a whole number, not 'x'"),
        ("copy 01 --length 1.5", "--length takes a whole number, not '1.5'"),
        ("copy 01 --rate fast", "--rate takes a number, not 'fast'"),
        ("copy 01 --lengths 1 b", "--lengths takes whole numbers, not '1' 'b'"),
        (
            "copy 01 --length",
            "--length takes a whole number, and there is none; `looped ask --help` shows how",
        ),
        ("copy 01 --length --show-steps", "--length takes a whole number, and there is none; "),
        ("copy 01 --stop soon", "--stop takes oracle or confidence, not 'soon'"),
        ("copy 01 --show-steps=no", "--show-steps takes no value, not 'no'"),
        ("copy 01 -x", "looped ask has no option -x; "),
        ("copy 01 --length 0", "--length must be at least 1, not 0"),
    ],
)
def test_a_mistake_is_one_sentence(words: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(Args, words.split(), "looped ask")
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_missing_option_is_named_as_it_is_typed() -> None:
    with pytest.raises(InputError, match="looped write needs --out-file; "):
        parse(Needy, [], "looped write")


def test_help_goes_to_stdout_and_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(Args, ["--help"], "looped ask")
    assert caught.value.code == 0
    out, err = capsys.readouterr()
    assert "usage: looped ask TASK QUESTION [OPTIONS]" in out
    told = " ".join(out.split())
    assert "--length N How long. (default: 5)" in told
    assert "--stop oracle|confidence When to stop. (default: oracle)" in told
    assert "--set KEY=VALUE One at a time." in told
    assert "--out FILE Where to. (default: nowhere)" in told
    assert "--show-steps Every step." in told
    assert err == ""


@settings(max_examples=60)
@given(st.lists(st.text(max_size=8).filter(lambda word: word not in ("-h", "--help")), max_size=4))
def test_arbitrary_words_are_read_or_refused(words: list[str]) -> None:
    with suppress(InputError):  # anything else, or an exit, is a failure
        assert isinstance(parse(Args, words, "looped ask"), Args)
