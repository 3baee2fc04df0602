"""Freezing, planning, retrying and merging, decided on plain values and a clock that is only a number."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.engines import frozen, results, retries, targets
from mx_exporter.engines.readings import Activity, PageReadings, Reading
from mx_exporter.engines.results import State
from mx_exporter.engines.settings import ScrapeSettings
from mx_exporter.engines.targets import Plan, Target
from mx_exporter.model import Endpoint, Pod, Source

SETTINGS = ScrapeSettings(interval=2, timeout=1, keep_intervals=3, freeze_after=60)
POD = Pod("n", "a", "u", "10.0.0.1")
TARGET = Target(POD, 8000, None, "http")


def activity(number: float) -> Activity:
    return repr(number).encode()


def reading(value: float | None = 0.5, moved: float = 0, engine: str = "vllm", index: str = "0") -> Reading:
    return Reading(engine, index, value, None if value is not None else "asleep", activity(moved))


def page(*found: Reading) -> PageReadings:
    return PageReadings(found, 0)


def said(states: Mapping[Target, State], now: float, plan: Plan | None = None) -> list[tuple[float | None, str | None]]:
    plan = plan or Plan(tuple(states), {})
    return [(usage.value, usage.reason) for usage in results.usages(plan, states, SETTINGS, now)[POD]]


class TestFrozen:
    @given(st.lists(st.tuples(st.floats(0.1, 10), st.integers(0, 2)), min_size=1, max_size=30))
    def test_frozen_exactly_when_nothing_moved_for_the_limit(self, steps: list[tuple[float, int]]) -> None:
        still: frozen.Still = {}
        now, last, since = 0.0, None, 0.0
        for pause, moved in steps:
            now += pause
            if moved != last:
                last, since = moved, now
            one = reading(moved=moved)
            still = frozen.observe(still, [one], now)
            assert (frozen.judge(still, one, now, 20).reason == "frozen") == (now - since >= 20)

    def test_nothing_in_use_and_nothing_to_go_by_are_never_frozen(self) -> None:
        for one in (reading(0.0), Reading("vllm", "0", 0.5, None), Reading("a", "", 0.5, None, activity(1), True)):
            still = frozen.observe(frozen.observe({}, [one], 0), [one], 1000)
            assert frozen.judge(still, one, 1000, 60) == one

    def test_a_rank_that_is_not_shown_is_forgotten(self) -> None:
        assert frozen.observe(frozen.observe({}, [reading()], 0), [], 1) == {}


class TestRetries:
    @given(st.integers(0, 10_000), st.floats(0.1, 60), st.floats(0.1, 600))
    def test_delays_grow_up_to_the_longest_and_never_shrink(
        self, failures: int, interval: float, longest: float
    ) -> None:
        delay = retries.delay(failures, interval, longest)
        assert interval <= delay <= max(interval, longest)
        assert delay <= retries.delay(failures + 1, interval, longest)

    def test_delays(self) -> None:
        assert [retries.delay(failures, 2, 10) for failures in range(6)] == [2, 2, 4, 8, 10, 10]

    @given(st.text(), st.floats(0.1, 60))
    def test_an_offset_lies_in_the_interval_and_stays(self, key: str, interval: float) -> None:
        assert 0 <= retries.offset(key, interval) < interval
        assert retries.offset(key, interval) == retries.offset(key, interval)


class TestTargets:
    def test_no_port_of_two_pods_is_anybodys(self) -> None:
        other = Pod("n", "b", "v", "10.0.0.1")
        plan = targets.plan(
            [Source(POD, (Endpoint(8000), Endpoint(8001))), Source(other, (Endpoint(8000), Endpoint(8002)))]
        )
        assert [(target.pod.name, target.port) for target in plan.targets] == [("a", 8001), ("b", 8002)]
        assert plan.refused == {}

    def test_reasons(self) -> None:
        named, bare = Pod("n", "b", "v", "localhost"), Pod("n", "c", "w", "10.0.0.3")
        same = Pod("n", "d", "x", POD.ip)
        plan = targets.plan(
            [
                Source(POD, (Endpoint(8000),)),
                Source(same, (Endpoint(8000),)),
                Source(named, (Endpoint(8000),)),
                Source(bare),
            ]
        )
        assert plan.targets == ()
        assert plan.refused == {
            POD: "shared_address",
            same: "shared_address",
            named: "no_address",
            bare: "no_endpoint",
        }

    def test_paths(self) -> None:
        (one, other) = targets.plan([Source(POD, (Endpoint(1), Endpoint(2, "/m", "https")))]).targets
        assert (one.paths, other.paths, other.scheme) == (("/metrics", "/prometheus/metrics"), ("/m",), "https")


class TestResults:
    def test_a_pod_has_always_something_to_say(self) -> None:
        assert said({}, 0, Plan((TARGET,), {})) == [(None, "pending")]
        assert said({}, 0, Plan((), {POD: "no_endpoint"})) == [(None, "no_endpoint")]

    @pytest.mark.parametrize("reason", sorted(results.PASSING))
    def test_a_reading_outlives_a_passing_failure_for_three_intervals(self, reason: str) -> None:
        state = results.good(State(), "/metrics", page(reading()), 0, 10, 11)
        state = results.failed(state, {"/metrics": reason}, 13, 14)
        assert said({TARGET: state}, 18) == [(0.5, None)]
        assert said({TARGET: state}, 18.1) == [(None, reason)]

    @pytest.mark.parametrize("reason", ["refused", "json", "not_found", "tls", "too_large", "no_gauge"])
    def test_any_other_failure_ends_it(self, reason: str) -> None:
        state = results.good(State(), "/metrics", page(reading()), 0, 10, 11)
        state = results.failed(state, {"/metrics": reason}, 13, 14)
        assert said({TARGET: state}, 14) == [(None, reason)]

    def test_a_reading_that_nobody_renews_is_stale(self) -> None:
        state = results.good(State(), "/metrics", page(reading()), 0, 10, 11)
        assert said({TARGET: state}, 18.1) == [(None, "stale")]

    def test_failures_are_counted_until_one_attempt_succeeds(self) -> None:
        state = State()
        for count in range(1, 4):
            state = results.failed(state, {"/metrics": "timeout"}, 0, 1)
            assert state.failures == count
        assert results.good(state, "/metrics", page(reading()), 0, 0, 1).failures == 0

    def test_the_path_that_worked_is_kept_through_passing_failures_only(self) -> None:
        state = results.good(State(), "/prometheus/metrics", page(reading()), 0, 0, 1)
        assert results.failed(state, {"/prometheus/metrics": "timeout"}, 2, 3).paths(TARGET) == ("/prometheus/metrics",)
        assert results.failed(state, {"/prometheus/metrics": "not_found"}, 2, 3).paths(TARGET) == targets.USUAL_PATHS

    def test_json_is_asked_for_once_and_again_when_another_may_listen(self) -> None:
        state = results.failed(State(), {"/metrics": "json", "/prometheus/metrics": "not_found"}, 0, 1)
        assert (state.reason, state.paths(TARGET)) == ("json", ("/prometheus/metrics",))
        state = results.failed(state, {"/prometheus/metrics": "not_found"}, 2, 3)
        assert (state.reason, state.paths(TARGET)) == ("json", ("/prometheus/metrics",))
        state = results.failed(state, {"/prometheus/metrics": "refused"}, 4, 5)
        assert (state.reason, state.paths(TARGET)) == ("refused", targets.USUAL_PATHS)

    def test_two_ports_of_one_engine_are_one_and_the_known_and_fuller_one_counts(self) -> None:
        other = Target(POD, 9402, None, "http")
        low = results.good(State(), "/metrics", page(reading(0.2)), 0, 10, 11)
        high = results.good(State(), "/metrics", page(reading(0.7)), 0, 10, 11)
        none = results.good(State(), "/metrics", page(reading(None)), 0, 10, 11)
        assert said({TARGET: low, other: high}, 11) == said({TARGET: high, other: low}, 11) == [(0.7, None)]
        assert said({TARGET: none, other: low}, 11) == said({TARGET: low, other: none}, 11) == [(0.2, None)]
        assert said({TARGET: none, other: none}, 11) == [(None, "asleep")]

    def test_a_port_without_an_engine_says_nothing_beside_one_that_has_it(self) -> None:
        other = Target(POD, 30000, None, "http")
        state = results.good(State(), "/metrics", page(reading(0.2)), 0, 10, 11)
        refused = results.failed(State(), {"/metrics": "refused"}, 10, 11)
        assert said({TARGET: state, other: refused}, 11) == [(0.2, None)]
        assert said({TARGET: refused, other: refused}, 11) == [(None, "refused")]

    def test_the_reason_that_says_most_is_given(self) -> None:
        other = Target(POD, 30000, None, "http")
        large = results.failed(State(), {"/metrics": "too_large"}, 10, 11)
        refused = results.failed(State(), {"/metrics": "refused"}, 10, 11)
        assert said({TARGET: refused, other: large}, 11) == [(None, "too_large")]

    def test_statuses_of_what_was_tried(self) -> None:
        other = Target(POD, 30000, None, "http")
        state = results.good(State(), "/metrics", PageReadings((reading(),), 3), 2, 10, 11)
        (one,) = results.statuses(Plan((TARGET, other), {}), {TARGET: state})
        assert (one.port, one.up, one.duration, one.reason, one.at, one.bad_lines) == (8000, True, 1, None, 11, 5)

    def test_unreadable_lines_are_counted_over_all_pages(self) -> None:
        state = State()
        for now, bad in ((11, 3), (13, 0), (15, 2)):
            state = results.good(state, "/metrics", PageReadings((reading(),), bad), 1, now - 1, now)
        state = results.failed(state, {"/metrics": "unreadable"}, 16, 17, bad_lines=4)
        state = results.failed(state, {"/metrics": "timeout"}, 18, 19)
        (one,) = results.statuses(Plan((TARGET,), {}), {TARGET: state})
        assert one.bad_lines == 3 + 0 + 2 + 3 * 1 + 4

    @pytest.mark.parametrize(("reason", "shown"), [("refused", 1), ("no_gauge", 1), ("timeout", 2), ("tls", 2)])
    def test_ports_that_never_were_an_engines_are_not_down_for_ever(self, reason: str, shown: int) -> None:
        other = Target(POD, 30000, None, "http")
        plan = Plan((TARGET, other), {})
        failed = results.failed(State(), {"/metrics": reason}, 10, 11)
        good = results.good(State(), "/metrics", page(reading()), 0, 10, 11)
        assert len(results.statuses(plan, {TARGET: good, other: failed})) == shown
        assert len(results.statuses(plan, {TARGET: failed, other: failed})) == 2
        once = results.failed(good, {"/metrics": reason}, 12, 13)
        assert len(results.statuses(plan, {TARGET: good, other: once})) == 2
