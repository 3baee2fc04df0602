"""The rhythm of cycles and writes."""

from __future__ import annotations

import pytest

from mx_operator.core.pacing import Pace, interval
from mx_operator.core.rules import Rules


@pytest.mark.parametrize(
    ("listed", "asked", "expected"),
    [(0.01, 0.05, 2.0), (0.2, 0.05, 4.0), (0.01, 0.3, 6.0), (5.0, 0.1, 15.0), (0.0, 0.0, 2.0)],
)
def test_a_cycle_is_twenty_times_the_slower_answer_within_limits(listed: float, asked: float, expected: float) -> None:
    assert interval(Rules(), listed, asked) == expected


def test_an_interval_that_was_asked_for_is_never_shortened() -> None:
    assert interval(Rules(interval=20.0), 5.0, 5.0) == 20.0


def test_slow_writes_halve_the_pace_and_quick_ones_give_it_back() -> None:
    rules, pace = Rules(writes_per_second=100), Pace()
    assert pace.budget(rules) == 200
    pace = pace.after(0.6)
    assert (pace.per_second(rules), pace.budget(rules)) == (50, 100)
    assert pace.after(None) == pace
    assert pace.after(0.1).after(0.1) == Pace()


def test_even_the_slowest_server_is_tried() -> None:
    pace = Pace()
    for _ in range(50):
        pace = pace.after(1.0)
    assert pace.budget(Rules(writes_per_second=0.1)) == 1
