"""Nobody counts: what is written follows from the source's own series, whoever writes it and since when.

Two operators live in two copies of one world. One of them is restarted again and again.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pytest

from mx_operator.core.marks import mark, nonce_of
from mx_operator.core.model import Write
from tests.operator.simulation.world import KEY, Case, Operator, World

SEEDS = range(200 if os.environ.get("MX_TEST_LONG") == "1" else 10)


class Watched:
    """One world's writes: which sample they were made from, and the value without its nonce."""

    def __init__(self, case: Case, seed: int) -> None:
        self.world = World(case, seed)
        self.world.watch = self._saw
        self.by_sample: dict[float, set[float]] = {}
        self.lives: dict[float, int] = {}
        self.stored: dict[float, tuple[float, bool]] = {}
        self._scrape = self.world._scrape
        self.world._scrape = self._before_scrape  # type: ignore[method-assign]
        self.world.run()

    def _saw(self, operator: Operator, write: Write) -> None:
        assert nonce_of(write.load) == write.nonce
        plain = mark(write.load, 0)
        self.by_sample.setdefault(self.world.scraped_at, set()).add(plain)

    def _before_scrape(self) -> None:
        """What the sample that is about to be replaced has led to, and whether the operator was free to act."""
        world = self.world
        if world.operators and world.alive:
            self.stored[world.scraped_at] = (world.row.load or 0.0, free(world.operators[0]))
        self._scrape()


def free(operator: Operator) -> bool:
    """Since its start it has seen a heartbeat, and its window has been open for the whole life of the sample."""
    memory = operator.ledger.memory.rows.get(KEY)
    if memory is None or memory.heartbeat_at is None:
        return False
    now, world = operator.world.now, operator.world
    opened_before = memory.heartbeat_at < world.scraped_at and operator.started < world.scraped_at
    return opened_before and now < memory.heartbeat_at + operator.rules.window - 1


def worlds(own: float | None) -> Iterator[tuple[Watched, Watched]]:
    steady = Case(own_load=own)
    for seed in SEEDS:
        yield Watched(steady, seed), Watched(dataclasses.replace(steady, restart_every=40.0), seed)


@pytest.mark.parametrize("own", [None, 0.0, 0.4])
def test_a_restart_changes_no_value_and_soon_nothing_at_all(own: float | None) -> None:
    both = free_samples = 0
    for steady, restarted in worlds(own):
        for sample, values in restarted.by_sample.items():
            assert len(values) == 1, "one sample is one value, however often it is written"
            if sample in steady.by_sample:
                assert values == steady.by_sample[sample]
                both += 1
        for sample, (load, acts) in restarted.stored.items():
            other, other_acts = steady.stored.get(sample, (0.0, False))
            if acts and other_acts:
                free_samples += 1
                # Each may keep an older value that is within the deadband of this sample's.
                assert abs(load - other) <= 2 * 0.05 + 0.004
    assert both > 4 * len(SEEDS)
    assert free_samples > 4 * len(SEEDS)
