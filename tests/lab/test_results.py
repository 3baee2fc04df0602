"""The verdict follows the measured shares and nothing else."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_lab.fleet import Busy, make_fleet
from mx_lab.results import Evidence, expected_saving, judge, policy_results, saving
from mx_lab.targets import Choice, Transfer

FLEET = make_fleet(sources=8, nodes=4, busy_nic=1, busy_kv=1, network=20, seed=1)
BUSY = [source.name for source in FLEET if source.busy is not Busy.NO]
IDLE = [source.name for source in FLEET if source.busy is Busy.NO]
GOOD = Evidence(8, 8, 8, operator_running=True, exporters_running=4, writes_accepted=90, load_supported=1)
BROKEN = Evidence(8, 0, 0, operator_running=False, exporters_running=0, writes_accepted=None, load_supported=None)


def choices(policy: str, busy: int, idle: int, none: int = 0) -> list[Choice]:
    picked = [BUSY[0]] * busy + [IDLE[0]] * idle + [None] * none
    return [Choice(policy, source, 0.0) for source in picked]


def judged(aware: list[Choice], blind: list[Choice], evidence: Evidence = GOOD) -> tuple[bool, tuple[str, ...]]:
    results = policy_results(FLEET, [*aware, *blind, *choices("rendezvous_hash", 25, 75)], [])
    return dataclasses.astuple(judge(results, FLEET.busy_share, evidence))


@given(busy=st.integers(0, 100), evidence=st.sampled_from([GOOD, BROKEN]))
def test_the_verdict_is_the_measured_share_whatever_else_was_seen(busy: int, evidence: Evidence) -> None:
    steered, _ = judged(choices("load_aware", busy, 100 - busy), choices("random", 25, 75), evidence)
    assert steered == (busy <= 5)


def test_a_good_run_says_its_shares() -> None:
    steered, reasons = judged(choices("load_aware", 1, 199), choices("random", 50, 150))
    assert (steered, reasons) == (
        True,
        ("load_aware sent 0.5% of 200 first choices to busy sources; random 25.0%, their fair share being 25.0%",),
    )


def test_a_run_without_steering_says_what_was_seen_along_the_path() -> None:
    steered, reasons = judged(choices("load_aware", 25, 75), choices("random", 25, 75), BROKEN)
    assert not steered
    assert reasons == (
        "load_aware sent 25.0% of first choices to busy sources (at most 5%)",
        "no exporter runs: nobody measures",
        "Prometheus holds no mx_source_load series",
        "no operator runs: nobody writes loads to the server",
        "0 of 8 listed rows carry a load",
    )


def test_no_choices_at_all_is_no_steering() -> None:
    steered, reasons = judged([], [])
    assert not steered
    assert reasons[0] == "only 0 of 0 target starts found a source"


def test_targets_that_found_nothing_are_no_success() -> None:
    steered, reasons = judged(choices("load_aware", 0, 50, none=50), choices("random", 25, 75))
    assert not steered
    assert reasons[0] == "only 50 of 100 target starts found a source"


def test_a_random_share_that_cannot_be_is_no_comparison() -> None:
    steered, reasons = judged(choices("load_aware", 0, 100), choices("random", 0, 100))
    assert not steered
    assert reasons[0].startswith("random sent 0.0% to busy sources, not their fair 25.0% ± 5%")


def test_times_are_those_of_the_pulls_of_each_policy() -> None:
    pulled = {("random", BUSY[0]): 0.4, ("random", IDLE[0]): 0.2, ("load_aware", IDLE[0]): 0.1}
    transfers = [Transfer(policy, source, seconds) for (policy, source), seconds in pulled.items()]
    results = {r.policy: r for r in policy_results(FLEET, [], transfers)}
    times = results["random"].times
    assert times is not None
    assert (times.count, times.p99) == (2, 0.4)
    assert (times.mean, times.p50) == pytest.approx((0.3, 0.3))
    assert results["rendezvous_hash"].times is None
    assert saving(list(results.values())) == pytest.approx(1 - 0.1 / 0.3)


def test_the_expected_saving_is_the_authors_arithmetic() -> None:
    made = [*choices("random", 369, 631), *choices("load_aware", 0, 1000), *choices("rendezvous_hash", 1, 1)]
    assert expected_saving(policy_results(FLEET, made, [])) == pytest.approx(0.676, abs=0.0005)
