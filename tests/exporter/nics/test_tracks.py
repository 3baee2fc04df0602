"""Laws of the tracks: a rate is bytes by seconds of one unbroken run, or it is not there."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.model import Count
from mx_exporter.nics.tracks import Timing, Track, advance, rate, step

TIMING = Timing(interval=1.0, window=3.0)


def follow(counts: list[Count], limits: list[float | None] | None = None, identity: str = "a") -> Track:
    track = Track()
    for index, count in enumerate(counts):
        track = advance(track, identity, count, limits[index] if limits else 1.0, TIMING)
    return track


def steady(bytes_per_second: int, seconds: int, start: int = 0) -> list[Count]:
    return [Count(start + bytes_per_second * i, 100.0 + i) for i in range(seconds + 1)]


def test_one_sample_is_no_rate() -> None:
    track = follow(steady(5, 0))
    assert (rate(track), step(track), track.reason) == (None, None, "baseline")


@given(st.integers(0, 10**12), st.integers(1, 12), st.integers(0, 2**63))
def test_steady_bytes_are_their_rate(speed: int, seconds: int, start: int) -> None:
    assert rate(follow(steady(speed, seconds, start))) == speed


def test_the_window_forgets_what_is_older() -> None:
    counts = steady(1000, 10) + [Count(10_000, 110.0 + i) for i in range(1, 4)]
    assert rate(follow(counts)) == 0.0
    assert rate(follow(counts[:-1])) == 1000 / 3


@given(st.lists(st.floats(0.75, 1.25), min_size=8, max_size=20))
def test_ticks_that_wander_do_not_change_the_rate(gaps: list[float]) -> None:
    now, counts = 0.0, []
    for gap in gaps:
        now += gap
        counts.append(Count(round(now * 1e9), now))
    measured = rate(follow(counts))
    assert measured is not None
    assert math.isclose(measured, 1e9, rel_tol=1e-6)


@given(st.lists(st.tuples(st.integers(-(2**40), 2**40), st.floats(-1, 15, allow_nan=False)), max_size=30))
def test_whatever_a_counter_does_no_rate_is_negative_or_endless(moves: list[tuple[int, float]]) -> None:
    value, now, track = 2**41, 50.0, Track()
    for move, gap in moves:
        value, now = max(0, value + move), now + gap
        track = advance(track, "a", Count(value, now), 1.0, TIMING)
        for measured in (rate(track), step(track)):
            assert measured is None or (measured >= 0 and math.isfinite(measured))


@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_a_counter_that_falls_starts_a_new_run(before: int, drop: int) -> None:
    track = follow([*steady(7, 5, before), Count(max(0, before - 1 - drop), 106.0)])
    assert (rate(track), track.reason) == (None, "reset")
    track = advance(track, "a", Count(before + 10**13, 107.0), 1.0, TIMING)
    assert track.reason is None
    assert track.samples[0].at == 106.0


def test_another_device_is_another_counter_even_when_it_is_higher() -> None:
    track = follow(steady(7, 5))
    track = advance(track, "b", Count(10**15, 106.0), 1.0, TIMING)
    assert (rate(track), track.reason) == (None, "reset")


def test_what_cannot_be_read_ends_the_run_with_its_reason() -> None:
    track = advance(follow(steady(7, 5)), "a", Count(None, 106.0, "gone"), 1.0, TIMING)
    assert (rate(track), track.reason, track.total) == (None, "gone", None)
    track = advance(track, "a", Count(10**6, 107.0), 1.0, TIMING)
    assert (rate(track), track.reason) == (None, "baseline")


def test_a_long_silence_is_not_averaged_over() -> None:
    track = advance(follow(steady(7, 5)), "a", Count(10**9, 105.0 + TIMING.longest_gap + 0.1), 1.0, TIMING)
    assert (rate(track), track.reason) == (None, "gap")


def test_a_clock_that_stands_still_changes_nothing() -> None:
    track = follow(steady(7, 5))
    assert advance(track, "a", Count(10**9, 105.0), 1.0, TIMING) == track


def test_bytes_at_one_limit_are_never_divided_by_another() -> None:
    limits: list[float | None] = [10.0, 10.0, 10.0, 50.0]
    track = follow(steady(9, 3), limits)
    assert rate(track) is None
    track = advance(track, "a", Count(9 * 3 + 50, 104.0), 50.0, TIMING)
    assert rate(track) == 50


@given(st.integers(1, 400))
def test_the_run_stays_short(seconds: int) -> None:
    assert len(follow(steady(3, seconds)).samples) <= 5
