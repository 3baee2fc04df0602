"""How far replicas' clocks are apart: only what cannot be explained by one clock counts."""

from __future__ import annotations

import random

import pytest

from mx_operator.core.ledgers import Ledger
from mx_operator.core.marks import mark
from mx_operator.core.model import Listing, Outcome, Result, Row, SourceKey, Write
from mx_operator.core.rules import Rules

KEY = SourceKey("0123456789abcdef", "w")


def skew_seen(ahead: float, beats: int = 5) -> float | None:
    """What is reported when own writes go through a replica whose clock is ahead."""
    ledger, now = Ledger(random.Random(1)), 0.0

    def listed(at: float, stamp: float, load: float | None) -> None:
        row = Row(KEY, 0, "m", round((5000 + stamp) * 1000), load)
        ledger.decide(Listing(at, at + 0.01, (row,)), {}, (), Rules(), at + 0.01)

    last: tuple[float, float | None] = (now - 30, None)
    for _ in range(beats):
        listed(now, *last)
        listed(now + 2, now + 1, None)
        write = Write(KEY, 0, mark(0.7, 1), 1, 1e9, 1e9, "p")
        ledger.settle([Outcome(write, Result.ACCEPTED, now + 2.1, now + 2.12)])
        last = (now + 2.11 + ahead, write.load)
        listed(now + 4, *last)
        now += 30
    return ledger.clocks.skew


def test_one_clock_has_no_skew() -> None:
    assert skew_seen(0.0) == 0.0


@pytest.mark.parametrize("ahead", [5.0, -5.0])
def test_skew_shows_as_far_as_heartbeats_can_tell(ahead: float) -> None:
    # A heartbeat is known to within the two seconds between two lists.
    seen = skew_seen(ahead)
    assert seen is not None
    assert -seen == pytest.approx(ahead, abs=2.1)


def test_nothing_is_said_before_anything_was_compared() -> None:
    assert Ledger(random.Random(1)).clocks.skew is None
    assert skew_seen(0.0, beats=1) is None
