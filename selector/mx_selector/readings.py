"""What a candidate says of itself: its load, its stamp. The one place that decides what `unknown` means.

Policies call `loads_of` and `stamps_of` for whole lists (fast), explanations `load_of` for one row. A reading that is
absent, not a number or not numeric is unknown: never idle (an idle source would win every comparison).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

from mx_wire import read_load

#: A row whose stamp is this much older than the newest has missed a heartbeat of 30 s and then some.
STALE_AFTER_MS: Final = 45_000


def load_of(candidate: Any) -> float | None:
    """The candidate's load in [0, 1], or None when it is unknown.

    Out-of-range readings are clamped, infinities included, as the released client does; NaN is unknown here (there it
    reads as idle). Rows of either wire dialect are understood. A plain object's `source_load` counts when it is a
    number; of a message whose field tracks no presence (stubs of the field's first draft), 0.0 cannot be told from
    absent and is unknown.
    """
    value = _raw_load(candidate)
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if number != number else min(1.0, max(0.0, number))


def _raw_load(candidate: Any) -> Any:
    has_field = getattr(candidate, "HasField", None)
    if has_field is None:
        return getattr(candidate, "source_load", None)
    try:
        return read_load(candidate)
    except (ValueError, TypeError, AttributeError):  # a field without presence, or no protobuf message at all
        return getattr(candidate, "source_load", None) or None


def loads_of(candidates: Sequence[Any]) -> list[float | None]:
    """`load_of` of each candidate, several times faster for rows with a usual load."""
    try:
        return [x if 0.0 < (x := c.source_load) <= 1.0 else load_of(c) for c in candidates]
    except (TypeError, AttributeError):
        return [load_of(c) for c in candidates]


def stamp_of(candidate: Any) -> int:
    """The candidate's `updated_at` in unix milliseconds; 0 when it is unknown."""
    value = getattr(candidate, "updated_at", 0)
    return value if isinstance(value, int) and value > 0 else 0


def stamps_of(candidates: Sequence[Any]) -> list[int]:
    """`stamp_of` of each candidate."""
    try:
        stamps = [c.updated_at for c in candidates]
        if not stamps or (min(stamps) >= 0 and type(sum(stamps)) is int):
            return stamps
    except (TypeError, AttributeError):
        pass
    return [stamp_of(c) for c in candidates]


def outdated(stamps: Sequence[int], limit_ms: int = STALE_AFTER_MS) -> list[bool] | None:
    """Which rows are too old for their load to be believed, by the rows' own stamps alone (no clock).

    Old means more than `limit_ms` behind the newest stamp that another row confirms (comes within `limit_ms` of), so
    that one source with a wrong stamp in the future does not age all others. Rows without a stamp are never old.

    Returns:
        One flag per stamp, or None when none is old (the usual case, decided without looking at each).
    """
    known = [stamp for stamp in stamps if stamp] if 0 in stamps else stamps
    if not known or max(known) - min(known) <= limit_ms:
        return None
    descending = sorted(known, reverse=True)
    confirmed = (a for a, b in itertools.pairwise(descending) if a - b <= limit_ms)
    oldest = next(confirmed, descending[0]) - limit_ms
    return [0 < stamp < oldest for stamp in stamps]
