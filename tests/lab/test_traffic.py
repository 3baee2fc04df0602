"""Bandwidth sharing: nothing is lost, nothing is invented, contention costs what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_lab.fleet import Busy, LabSource
from mx_lab.traffic import LINK, PULL, Nic, Pull


def nic(tx: float = 0.0, kv: float = 0.0) -> Nic:
    return Nic(LabSource("worker-0", 0, "mlx5_0", "127.9.1.10", "vllm", "00", Busy.NO, tx, kv))


def seconds_of_one_pull(of: Nic, size: float = 1e9, tick: float = 0.02) -> float:
    pull = Pull(size, 0.0)
    of.pulls.append(pull)
    for step in range(100_000):
        if of.advance(step * tick, tick):
            assert pull.ended is not None
            return pull.ended
    raise AssertionError("the pull never ended")


def test_a_pull_from_an_idle_source_runs_at_the_measured_speed() -> None:
    assert seconds_of_one_pull(nic()) == pytest.approx(1e9 / PULL, rel=0.2)


def test_a_pull_from_a_source_at_99_percent_takes_about_6_66_times_as_long() -> None:
    idle, full = seconds_of_one_pull(nic(), 100e9), seconds_of_one_pull(nic(kv=0.99), 100e9)
    assert full / idle == pytest.approx(6.66, rel=0.05)


def test_many_pulls_share_what_serving_leaves() -> None:
    busy = nic(tx=0.5)
    busy.pulls += [Pull(1e15, 0.0) for _ in range(10)]
    busy.advance(0.0, 1.0)
    assert sum(pull.done for pull in busy.pulls) == pytest.approx(LINK - busy.serving(0.0) * LINK)
    assert len({pull.done for pull in busy.pulls}) == 1


@given(
    sizes=st.lists(st.floats(1e6, 1e11), max_size=6),
    tx=st.floats(0, 0.95),
    kv=st.floats(0, 1),
    ticks=st.lists(st.floats(0.001, 0.5), min_size=1, max_size=40),
)
def test_what_was_sent_is_serving_and_pulls_and_never_more_than_the_link(
    sizes: list[float], tx: float, kv: float, ticks: list[float]
) -> None:
    of, now, serving = nic(tx, kv), 0.0, 0.0
    pulls = [Pull(size, 0.0) for size in sizes]
    of.pulls += pulls
    for tick in ticks:
        before = of.transmitted
        serving += of.serving(now) * LINK * tick
        of.advance(now, tick)
        assert of.transmitted - before <= LINK * tick * (1 + 1e-9)
        now += tick
    assert of.transmitted == pytest.approx(serving + sum(pull.done for pull in pulls))
    for pull in pulls:
        assert pull.done <= pull.size
        assert (pull.ended is not None) == (pull.done == pull.size) == (pull not in of.pulls)
        assert pull.ended is None or 0 < pull.ended <= now * (1 + 1e-9)


def test_a_pull_that_starts_inside_a_tick_moves_only_from_then_on() -> None:
    idle = nic()
    idle.pulls.append(Pull(1e15, started=0.75))
    idle.advance(0.0, 1.0)
    assert idle.pulls[0].done == pytest.approx(0.25 * PULL, rel=0.2)
