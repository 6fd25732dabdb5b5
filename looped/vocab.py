"""Named tokens and their ids, rows of tokens and their text. Knows no task and no tensor.

A vocabulary is a task's own symbols followed by the special tokens that every row needs:

    question   1 1 0 1 > # # #      `>` ends the question, `#` ends the sequence
    answer     * * * * 1 # # #      `*` is ignored: it is printed, never fed in and never predicted
    pause      1 1 0 1 > . . . #    `.` is a pause token, for the methods that think with them

No other file spells an id: they ask `vocab.id("1")` or `vocab.eoq`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from looped.errors import InputError

EOQ, EOS, PAUSE, IGNORED = ">", "#", ".", "*"
UNUSED = "?"  # printed for an id that has no name: a model may have more ids than its task
MARKS = (EOQ, EOS, PAUSE)


@dataclass(frozen=True)
class Vocab:
    """An ordered set of token names: the task's symbols, then the special tokens."""

    symbols: tuple[str, ...]  # what the task's questions and answers are written in

    def __post_init__(self) -> None:
        taken = (*self.symbols, *MARKS, IGNORED)
        if len(set(taken)) != len(taken):
            raise ValueError(f"symbols must be distinct and none of {(*MARKS, IGNORED)}: {self.symbols}")
        if any(not name or name.split() != [name] for name in self.symbols):
            raise ValueError(f"symbols must be non-empty and without white space: {self.symbols}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every token name; the position is the id."""
        return self.symbols + MARKS

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def eoq(self) -> int:
        """Id of the end-of-question token `>`."""
        return self._ids[EOQ]

    @property
    def eos(self) -> int:
        """Id of the end-of-sequence token `#`."""
        return self._ids[EOS]

    @property
    def pause(self) -> int:
        """Id of the pause token `.`."""
        return self._ids[PAUSE]

    def id(self, name: str) -> int:
        """The id of a token name."""
        try:
            return self._ids[name]
        except KeyError:
            raise InputError(f"unknown token {name!r}; the tokens are {' '.join(self.names)}") from None

    def encode(self, names: Iterable[str]) -> list[int]:
        """Token names to ids."""
        return [self.id(name) for name in names]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Ids to token names; `?` for an id past the last name."""
        return [self.names[i] if i < len(self.names) else UNUSED for i in ids]

    def row(self, ids: Sequence[int], keep: Sequence[bool] | None = None) -> str:
        """A row as people read it, tokens separated by spaces; where `keep` is false, `*`."""
        names = self.decode(ids)
        if keep is not None:
            names = [name if k else IGNORED for name, k in zip(names, keep, strict=True)]
        return " ".join(names)
