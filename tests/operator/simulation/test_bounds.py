"""The bounds of the safe-write protocol, on the code that ships: personalities of servers times faults.

A dead source must not stay selectable for longer than the server's timeout, the window, two seconds, and what the
condition itself adds. The rules that one would write first do not keep that, in the same world.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import statistics

import pytest

from tests.operator.simulation.world import Case, Verdict, run

LONG = os.environ.get("MX_TEST_LONG") == "1"
SEEDS = range(200) if LONG else range(6)

#: Name: the case, the bound in seconds where it is not the case's own, the least share of true time.
CELLS: dict[str, tuple[Case, float | None, float]] = {
    "window": (Case(), None, 0.80),
    "list every 1 s": (Case(poll=1.0), None, 0.80),
    "list every 5 s": (Case(poll=5.0), None, 0.70),
    "averaged over 5 s": (Case(average=5.0), None, 0.75),
    "scrape every 15 s": (Case(scrape=15.0), None, 0.65),
    "two writers": (Case(writers=2), None, 0.80),
    "a restart every 40 s": (Case(restart_every=40.0), None, 0.65),
    "three writers, each restarting every 15 s": (Case(writers=3, restart_every=15.0), None, 0.55),
    "crash-looping every 10 s": (Case(restart_every=10.0), None, 0.40),
    "loads that stay": (Case(load="still"), None, 0.90),
    "loads that never rest": (Case(load="restless"), None, 0.40),
    "the server keeps the load": (Case(keeps_load=True), None, 0.80),
    "loads of the sources' own": (Case(own_load=0.0), None, 0.80),
    "keeps the load, three slow writers, 0 or 1": (
        # Nonces collide once in 255: then a write of another process would pass for a kept heartbeat, if it came no
        # sooner than one can.
        Case(keeps_load=True, writers=3, load="flip", latency=1.0),
        None,
        0.0,
    ),
    "three slow writers, 0 or 1": (Case(writers=3, load="flip", latency=1.0), None, 0.0),
    "lists empty 30 %": (Case(empty_lists=0.3), None, 0.70),
    "lists empty 10 %, a restart every 10 s": (Case(empty_lists=0.1, restart_every=10.0), None, 0.40),
    "half of the lists 20 s old": (Case(stale_lists=0.5), None, 0.0),
    "a third of lists without the field": (Case(drops_lists=0.33), None, 0.0),
    "a third of writes without the field": (Case(drops_writes=0.33), None, 0.0),
    "a third of both, two writers": (Case(drops_writes=0.33, drops_lists=0.33, writers=2), None, 0.0),
    "a tenth of both, three writers": (
        # So few losses that the gates are slow to close, while another's dropped write looks like a heartbeat.
        Case(drops_writes=0.1, drops_lists=0.1, writers=3),
        None,
        0.55,
    ),
    "a third of both, two writers, and the gate has opened and closed again": (
        Case(drops_writes=0.33, drops_lists=0.33, writers=2, dies_after=1900.0),
        None,
        0.0,
    ),
    "no field, two writers, and the gate has tried again": (
        Case(drops_writes=1.0, drops_lists=1.0, writers=2, dies_after=1900.0),
        None,
        0.0,
    ),
    "no field": (Case(drops_writes=1.0, drops_lists=1.0), None, 0.0),
    "no field, two writers restarting every 10 s": (
        Case(drops_writes=1.0, drops_lists=1.0, writers=2, restart_every=10.0),
        None,
        0.0,
    ),
    "no field, two writers restarting every 40 s": (
        Case(drops_writes=1.0, drops_lists=1.0, writers=2, restart_every=40.0),
        None,
        0.0,
    ),
    "the writers' replica 5 s ahead": (Case(skew=5.0), None, 0.75),
    "the writers' replica 5 s behind": (Case(skew=-5.0), None, 0.0),
    "heartbeat 10 s, window 27 s": (Case(heartbeat=10.0), None, 0.45),
    "heartbeat 10 s, window 9 s": (Case(heartbeat=10.0, source_heartbeat=10.0), None, 0.70),
    "heartbeat 60 s, window 27 s": (Case(heartbeat=60.0), None, 0.60),
    "heartbeat 60 s, window 54 s": (Case(heartbeat=60.0, source_heartbeat=60.0), None, 0.80),
    "crash": (Case(fault="crash"), None, 0.80),
    "demoted, silent from then on": (Case(fault="latch"), None, 0.80),
    "demoted between a list and its write": (Case(fault="race"), None, 0.80),
    "network cut for 10 s at death": (Case(cut=10.0), None, 0.80),
    "network cut for 30 s at death": (Case(cut=30.0), None, 0.80),
    "draft numbering: no updated_at": (Case(draft=True), None, 0.0),
}


def verdicts(case: Case) -> list[Verdict]:
    return [run(case, seed) for seed in SEEDS]


def longest(seen: list[Verdict]) -> float:
    return max(verdict.gone for verdict in seen)


@pytest.mark.parametrize("name", CELLS)
def test_a_dead_source_is_gone_within_its_bound(name: str) -> None:
    case, bound, least_true = CELLS[name]
    seen = verdicts(case)
    assert longest(seen) <= (case.bound if bound is None else bound)
    # Fewer seeds scatter more.
    assert statistics.mean(verdict.true for verdict in seen) >= least_true - (0.0 if LONG else 0.1)


@pytest.mark.parametrize("rule", ["naive", "three"])
def test_the_rules_one_would_write_first_break_the_bound(rule: str) -> None:
    case = Case(protocol=rule)
    assert longest([run(case, seed) for seed in range(40)]) > case.bound + 30


def test_without_a_writer_the_server_notices_by_its_own_bound() -> None:
    case = Case(protocol="none")
    assert longest(verdicts(case)) <= case.timeout + 5


@pytest.mark.parametrize("name", ["no field", "draft numbering: no updated_at"])
def test_a_server_without_the_field_is_written_at_most_three_times(name: str) -> None:
    case, _, _ = CELLS[name]
    assert max(verdict.writes for verdict in verdicts(case)) <= 3


def test_with_the_defaults_the_stored_load_is_true_and_soon_there() -> None:
    seen = verdicts(Case(load="every25"))
    lags = sorted(lag for verdict in seen for lag in verdict.lags)
    assert statistics.mean(verdict.true for verdict in seen) >= 0.80
    assert lags[math.ceil(0.95 * len(lags)) - 1] <= 11.0 + (0.0 if LONG else 2.0)


PERSONALITIES = {
    "memory": Case(backend="memory"),
    "redis": Case(backend="redis"),
    "kubernetes": Case(backend="kubernetes"),
    "without presence": Case(presence=False),
    "keeps the load": Case(keeps_load=True),
    "drops the field": Case(drops_writes=1.0, drops_lists=1.0),
    "draft numbering": Case(draft=True),
    "lists sometimes empty": Case(empty_lists=0.2),
}
FAULTS = {
    "crash": {"fault": "crash"},
    "hung, metrics fresh": {"fault": "hang"},
    "demoted between list and write": {"fault": "race"},
    "unhealthy latch": {"fault": "latch"},
    "operator crash-looping every 10 s": {"restart_every": 10.0},
    "two replicas": {"writers": 2},
    "clock skew between server replicas": {"skew": 3.0},
    "network cut": {"cut": 15.0},
}


@pytest.mark.parametrize(("personality", "fault"), list(itertools.product(PERSONALITIES, FAULTS)))
def test_every_personality_under_every_fault(personality: str, fault: str) -> None:
    for load in ("jump", "still"):
        case = dataclasses.replace(PERSONALITIES[personality], load=load, **FAULTS[fault])  # type: ignore[arg-type]
        seen = [run(case, seed) for seed in (range(200) if LONG else range(2))]
        assert longest(seen) <= case.bound, load
