"""From readings to the value a source should have: combination, clamping, and what is worth a write."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Final

from mx_operator.core.joins import NO_SERIES, Absent, Index, Reading, find
from mx_operator.core.marks import PRECISION
from mx_operator.core.model import Identity, Row
from mx_operator.policies.spec import Combine

#: Seconds by which a sample may be younger than its query: exporters may stamp with a clock of their own. Further
#: ahead, the freshness query gives something else than seconds, and nothing would ever be stale.
_AHEAD: Final = 10.0
#: What released selectors assume of a source that has no load.
NEUTRAL: Final = 0.5


class State(enum.Enum):
    """What a policy knows of a source in one cycle; each listed source is in exactly one."""

    MATCHED = "matched"
    UNMATCHED = "unmatched"
    AMBIGUOUS = "ambiguous"
    STALE = "stale"
    INVALID = "invalid"


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What one signal's query gave in this cycle.

    Attributes:
        index: None where it failed, or is not here yet.
        reason: Why, in one word: `signal_error`, `no_answer`.
        since: Seconds since the answer was here; its samples have aged by that.
    """

    index: Index | None
    reason: str = ""
    since: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What the signals of a policy say of one source.

    Attributes:
        state: MATCHED, UNMATCHED, AMBIGUOUS, STALE or INVALID.
        reason: Why there is no value; empty where there is one.
        value: In [0, 1]; None unless MATCHED.
        age: Of the sample behind it, or of the stale one, in seconds.
        clamped: The value was outside [0, 1] before.
    """

    state: State
    reason: str = ""
    value: float | None = None
    age: float | None = None
    clamped: bool = False


def measure(answers: Sequence[Answer], row: Row, identity: Identity | None, stale_after: float) -> Measured:
    """Blend the signals of one source: the largest of the parts that are known.

    A part that a whole query failed to give makes the blend incomplete: then there is no reading at all, because the
    missing part may be the larger one. A part that has no series for this source is one that it does not have.
    """
    for answer in answers:
        if answer.index is None:
            return Measured(State.STALE, answer.reason)
    parts = [_part(answer, row, identity, stale_after) for answer in answers]
    return _blend(parts)


def _part(answer: Answer, row: Row, identity: Identity | None, stale_after: float) -> Measured:
    assert answer.index is not None
    reading = find(answer.index, row, identity)
    if isinstance(reading, Absent):
        return Measured(State.AMBIGUOUS if reading.ambiguous else State.UNMATCHED, reading.reason)
    return _judge(reading, answer.since, stale_after)


def _judge(reading: Reading, since: float, stale_after: float) -> Measured:
    if reading.age < -_AHEAD:
        return Measured(State.STALE, "ahead_of_time", age=reading.age)
    age = reading.age + since
    if not age <= stale_after:  # a NaN age is no age
        return Measured(State.STALE, "stale", age=age)
    if not math.isfinite(reading.value):
        return Measured(State.INVALID, "not_finite", age=age)
    value = min(1.0, max(0.0, reading.value))
    return Measured(State.MATCHED, value=value, age=age, clamped=value != reading.value)


# What is said of a source without any value: the part that is nearest to having one.
_NEAREST: Final = (State.AMBIGUOUS, State.INVALID, State.STALE, State.UNMATCHED)


def _blend(parts: Sequence[Measured]) -> Measured:
    if len(parts) == 1:
        return parts[0]
    known = [part for part in parts if part.value is not None]
    if known:
        largest = max(known, key=lambda part: part.value or 0.0)
        return dataclasses.replace(largest, clamped=any(part.clamped for part in known))
    return min(parts, key=lambda part: (_NEAREST.index(part.state), part.reason == NO_SERIES.reason))


def target(measured: float, own: float | None, combine: Combine) -> float:
    """The load a source should have stored, in [0, 1]."""
    if combine is Combine.REPLACE or own is None or not math.isfinite(own):
        return measured
    return min(1.0, max(measured, own))


def difference(wanted: float, stored: float | None) -> float:
    """How far the stored value is off; what is not stored at all counts as what selectors take it for."""
    if stored is None or not math.isfinite(stored):
        return abs(wanted - NEUTRAL)
    return abs(wanted - stored)


def worth_writing(wanted: float, stored: float | None, deadband: float) -> bool:
    """Whether the difference exceeds the deadband; a value that is not stored always differs.

    What marking alone changes is no difference, however small the deadband: it would be written for ever.
    """
    return stored is None or not math.isfinite(stored) or abs(wanted - stored) > max(deadband, PRECISION)
