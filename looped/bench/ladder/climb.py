"""From rung to rung: what is measured in which order, what is there already, and when to give up.

Shorter lengths of all models come first, and of each length the uniform inputs. Where no seed has `floor` of the
uniform answers right under any rule, the ladder ends: longer lengths are not measured. A family that falls below it
is left out from there on. Neither can change L99, which was lost before. A rung may be left off between two handfuls
of problems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from looped import provenance
from looped.bench.ladder import ALL, FLOOR, LENGTHS, LEVELS, SAMPLES, STEP_SAMPLES
from looped.bench.ladder.contenders import Contender
from looped.bench.ladder.record import Json, Record
from looped.bench.ladder.rung import has_steps, measure_rung, measure_steps
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.measure import ORACLE, Subject, check, usual_stops
from looped.tasks.families import UNIFORM

KEEP_EVERY = 30.0  # seconds between two writings of what a rung has come to


@dataclass(frozen=True)
class Settings:
    """How to climb."""

    lengths: tuple[int, ...] = ()  # none given: the usual ones, the training length and the paper's
    samples: int = SAMPLES  # a length and family
    families: tuple[str, ...] = (ALL,)  # besides uniform, which always comes first
    stops: tuple[str, ...] = ()  # none given: every rule in `stops_of`
    floor: float = FLOOR
    step_samples: int = STEP_SAMPLES  # a length, for overrun and drift
    seed: int = 0  # of the test problems

    def __post_init__(self) -> None:
        if self.step_samples < 0:
            raise InputError(
                f"the number of samples for overrun and drift is 0 or more, not {self.step_samples}"
            )
        if not 0 <= self.floor <= LEVELS["L99"] / 1000:
            raise InputError(f"the floor is a share between 0 and 0.99, not {self.floor}")


@dataclass(frozen=True)
class Done:
    """What a listener hears after each rung."""

    key: str
    length: int
    family: str
    rows: list[Json]
    seconds: float | None  # None: it was in the file already


def lengths_of(subject: Subject, settings: Settings) -> tuple[int, ...]:
    """The ladder's lengths, ascending."""
    usual = {*LENGTHS, subject.trained_max_length, subject.task.paper.test_length}
    return tuple(sorted(set(settings.lengths) or usual))


def families_of(subject: Subject, settings: Settings) -> tuple[str, ...]:
    """The input families, uniform first; `all` stands for every one of the task."""
    named = [
        each for name in settings.families for each in (subject.task.families if name == ALL else [name])
    ]
    return tuple(dict.fromkeys([UNIFORM, *named]))


def stops_of(subject: Subject, settings: Settings) -> tuple[str, ...]:
    """The rules as rows name them; unless given: the oracle's, a settled answer, and what the model says itself."""
    if settings.stops:
        return tuple(dict.fromkeys(stopping.get(name).name for name in settings.stops))
    if not subject.method.adaptive or subject.method.universal:
        return usual_stops(subject.method)
    return (ORACLE, "converged", *(["halt"] if subject.model.config.says_done else []))


def enter(contenders: Sequence[Contender], settings: Settings, record: Record) -> None:
    """Checks all that is asked for, before any work, and makes the contenders known."""
    for each in contenders:
        subject = each.subject
        lengths, stops = lengths_of(subject, settings), stops_of(subject, settings)
        for family in families_of(subject, settings):
            check(subject, lengths, settings.samples, stops=stops, family=family)
    for each in contenders:
        subject = each.subject
        about = {
            **each.origin, "task": subject.task.name, "method": subject.method.name, "recipe": subject.recipe,
            "trained": subject.trained_max_length, "paper": subject.task.paper.test_length,
            "floor": settings.floor, "lengths": lengths_of(subject, settings),
            "stops": stops_of(subject, settings), "families": families_of(subject, settings),
        }  # fmt: skip
        record.enter(each.key, about)


def climb(
    contenders: Sequence[Contender],
    settings: Settings,
    record: Record,
    *,
    on_rung: Callable[[Done], None] = lambda done: None,
    enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Measures what is missing, a length of all contenders before the next; False if `enough` said to leave off."""
    given_up: dict[str, set[str]] = {each.key: set() for each in contenders}
    for length in sorted({n for each in contenders for n in lengths_of(each.subject, settings)}):
        for each in contenders:
            lengths, lost = lengths_of(each.subject, settings), given_up[each.key]
            if length not in lengths or UNIFORM in lost:
                continue
            if not _climb_to(each, length, lost, settings, record, on_rung, enough):
                return False
            if length == lengths[-1] or UNIFORM in lost:
                families, stops = families_of(each.subject, settings), stops_of(each.subject, settings)
                record.finish(each.key, lengths=lengths, families=families, stops=stops)
    return True


def _climb_to(
    contender: Contender,
    length: int,
    lost: set[str],
    settings: Settings,
    record: Record,
    on_rung: Callable[[Done], None],
    enough: Callable[[], bool],
) -> bool:
    """The rungs of one length, without the families that are lost; adds to those. False if left off."""
    stops = stops_of(contender.subject, settings)
    for family in families_of(contender.subject, settings):
        if lost & {family, UNIFORM}:
            continue
        begun = time.monotonic()
        there = _is_there(contender, length, family, settings, record)
        if not there and (enough() or not _measure(contender, length, family, settings, record, enough)):
            return False
        rows = record.found(contender.key, length, family, stops)
        on_rung(Done(contender.key, length, family, rows, None if there else time.monotonic() - begun))
        if max(row["accuracy"] for row in rows) < settings.floor:
            lost.add(family)
    return True


def _is_there(contender: Contender, length: int, family: str, settings: Settings, record: Record) -> bool:
    stops = stops_of(contender.subject, settings)
    rows = record.holds(contender.key, length, family, stops, settings.samples)
    if not _wants_steps(contender, family, settings):
        return rows
    return rows and record.holds_steps(contender.key, length, settings.step_samples)


def _wants_steps(contender: Contender, family: str, settings: Settings) -> bool:
    return family == UNIFORM and has_steps(contender.subject) and settings.step_samples > 0


def _measure(
    contender: Contender,
    length: int,
    family: str,
    settings: Settings,
    record: Record,
    enough: Callable[[], bool],
) -> bool:
    """What is missing of one rung into the record; False if it had to be left off."""
    subject, key, seed = contender.subject, contender.key, settings.seed
    stops, samples = stops_of(subject, settings), settings.samples
    facts = dict(provenance.facts(subject.weights.embed.device))
    if not record.holds(key, length, family, stops, samples):
        mark = _Bookmark(record, [key, length, family, samples, *stops], enough)
        rows = measure_rung(
            subject, length, family, samples, seed=seed, stops=stops, state=mark.state, pause=mark.pause
        )
        if rows is None:
            return False
        record.put(key, [row.as_dict() for row in rows], seconds=mark.seconds, facts=facts)
    samples = settings.step_samples
    if _wants_steps(contender, family, settings) and not record.holds_steps(key, length, samples):
        mark = _Bookmark(record, [key, length, "steps", samples], enough)
        steps = measure_steps(subject, length, samples, seed=seed, state=mark.state, pause=mark.pause)
        if steps is None:
            return False
        record.put(key, steps=steps, seconds=mark.seconds, facts=facts)
    return True


class _Bookmark:
    """Where a rung was left off, the time spent on it so far, and when to write down what it has come to."""

    def __init__(self, record: Record, rung: Sequence[object], enough: Callable[[], bool]) -> None:
        self.state, self._before = record.left(rung)
        self._record, self._rung, self._enough = record, rung, enough
        self._begun = self._written = time.monotonic()

    @property
    def seconds(self) -> float:
        """Spent on the rung, over all its beginnings."""
        return self._before + time.monotonic() - self._begun

    def pause(self, state: Json) -> bool:
        """Whether to leave off; the state is kept then, and every now and then."""
        stop = self._enough()
        if stop or time.monotonic() - self._written > KEEP_EVERY:
            self._record.leave(self._rung, state, self.seconds)
            self._written = time.monotonic()
        return stop
