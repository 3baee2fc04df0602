"""The listing at the end of a run: looked at again while the source's own heartbeat has just taken its load away."""

from __future__ import annotations

import mx_wire
from mx_lab import hops

#: What a look costs, in seconds.
COST = 0.1


class Server:
    """Answers with one listing after the other, the last one for ever, on a clock of its own."""

    def __init__(self, *listings: list[mx_wire.SourceInstanceRef], cost: float = COST) -> None:
        self.now, self.looks, self._listings, self._cost = 100.0, 0, listings, cost

    def look(self, timeout: float) -> list[mx_wire.SourceInstanceRef]:
        assert timeout > 0
        self.now += self._cost
        self.looks += 1
        return self._listings[min(self.looks, len(self._listings)) - 1]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def settled(self, patience: float) -> list[mx_wire.SourceInstanceRef]:
        return hops.settled(self.look, "w", patience, clock=lambda: self.now, sleep=self.sleep)


def row(load: float | None) -> mx_wire.SourceInstanceRef:
    made = mx_wire.SourceInstanceRef(worker_id="w")
    if load is not None:
        mx_wire.set_load(made, load)
    return made


def test_a_listing_with_the_load_is_taken_at_once() -> None:
    server = Server([row(0.5)])
    assert server.settled(5.0) == [row(0.5)]
    assert server.looks == 1


def test_a_load_that_is_missing_for_a_moment_is_waited_for() -> None:
    server = Server([], [row(None)], [row(0.5)])
    assert server.settled(5.0) == [row(0.5)]
    assert server.looks == 3


def test_after_the_deadline_the_last_listing_is_what_there_is() -> None:
    server = Server([row(None)])
    assert server.settled(5.0) == [row(None)]
    assert 104.5 < server.now <= 105.0 + COST


def test_a_slow_server_uses_up_the_same_patience() -> None:
    """However long each answer takes: the deadline is of the clock, not a number of looks."""
    server = Server([row(None)], cost=3.0)
    assert server.settled(5.0) == [row(None)]
    assert server.looks == 2


def test_without_patience_there_is_one_look() -> None:
    server = Server([])
    assert server.settled(0.0) == []
    assert server.looks == 1
