"""Conditions turn only when several cycles agree, and Ready names the first thing in the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_operator.core.reports import Check
from mx_operator.kubernetes import conditions
from mx_operator.kubernetes.conditions import Condition, Conditions, Truth, after, turns
from tests.operator.kubernetes.reports import UNTRIED, report

BAD = Check(False, "Timeout", "no answer within 5s; look at the server")


def _shown(*cycles: dict[str, Any], start: Conditions | None = None) -> list[Conditions]:
    """What is shown after each cycle, two seconds apart."""
    states = [start or Conditions()]
    for number, changes in enumerate(cycles):
        states.append(after(states[-1], report(at=1000.0 + 2 * number, **changes), observing=False))
    return states[1:]


def _truths(states: list[Conditions], kind: str) -> str:
    """One letter a cycle: T, F or U."""
    return "".join(state.by_kind[kind].truth.value[0] for state in states)


def test_good_news_about_the_unknown_is_shown_at_once() -> None:
    (state,) = _shown({})
    assert {condition.kind: condition.truth for condition in state.in_order()} == dict.fromkeys(
        conditions.ORDER, Truth.TRUE
    )
    assert state.by_kind["Ready"].reason == "Writing"
    assert state.by_kind["Ready"].message == "12 of 14 sources measured"


def test_one_bad_cycle_turns_nothing_and_three_do() -> None:
    states = _shown(
        {}, {"prometheus": BAD}, {}, {"prometheus": BAD}, {"prometheus": BAD}, {"prometheus": BAD}, {}, {}, {}
    )
    assert _truths(states, "PrometheusReachable") == "TTTTTFFFT"
    assert _truths(states, "Ready") == "TTTTTFFFT"
    turned = states[5].by_kind["Ready"]
    assert (turned.reason, turned.message, turned.since) == ("Timeout", BAD.message, 1010.0)


def test_the_time_of_the_last_turn_is_kept_while_nothing_turns() -> None:
    states = _shown({}, {}, {"server": BAD}, {"server": BAD}, {"server": BAD}, {"server": BAD})
    assert [state.by_kind["ServerReachable"].since for state in states] == [1000.0] * 4 + [1008.0] * 2
    assert {state.by_kind["PrometheusReachable"].since for state in states} == {1000.0}


def test_what_alternates_never_turns() -> None:
    flapping = [{"data_fresh": BAD if number % 2 else Check(True, "Ok")} for number in range(40)]
    assert _truths(_shown(*flapping), "DataFresh") == "T" * 40


def test_a_first_failure_is_shown_once_it_lasts() -> None:
    assert _truths(_shown(*[{"server": BAD}] * 4), "ServerReachable") == "UUFF"
    assert _truths(_shown(*[{"server": BAD}] * 4), "Ready") == "UUFF"


def test_a_restart_goes_on_from_what_is_stored() -> None:
    before = _shown({})[0]
    stored = conditions.stored({"conditions": _entries(before)})
    again = _shown({}, start=stored)[0]
    assert turns(stored, again) == []
    assert again.by_kind["Ready"].since == before.by_kind["Ready"].since
    assert _truths(_shown({"server": BAD}, {"server": BAD}, {"server": BAD}, start=stored), "ServerReachable") == "TTF"


def _entries(state: Conditions) -> list[dict[str, Any]]:
    from mx_operator.kubernetes.times import show_time

    return [
        {
            "type": each.kind,
            "status": each.truth.value,
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": show_time(each.since),
        }
        for each in state.in_order()
    ]


@pytest.mark.parametrize(
    ("changes", "truth", "reason"),
    [
        ({}, "True", "Writing"),
        ({"load_supported": UNTRIED}, "True", "Writing"),
        ({"heartbeat": Check(False, "OtherInterval")}, "True", "Writing"),
        ({"load_supported": Check(False, "FieldDropped")}, "False", "FieldDropped"),
        ({"server": BAD, "prometheus": Check(False, "Second")}, "False", "Timeout"),
        ({"data_fresh": Check(False, "AllStale")}, "False", "AllStale"),
        ({"counts": {}}, "True", "NoSources"),
        ({"counts": {}, "prometheus": BAD}, "False", "Timeout"),
        ({"counts": {"listed": 4, "conflicting": 4}}, "False", "Conflict"),
        ({"counts": {"listed": 4, "conflicting": 1, "matched": 3}}, "True", "Writing"),
        ({"data_fresh": UNTRIED}, "Unknown", "NotTried"),
    ],
)
def test_ready_sums_up(changes: dict[str, Any], truth: str, reason: str) -> None:
    ready = _shown(*[changes] * 3)[-1].by_kind["Ready"]
    assert (ready.truth.value, ready.reason) == (truth, reason)


def test_observing_says_so() -> None:
    assert after(Conditions(), report(), observing=True).by_kind["Ready"].reason == "Observing"


def test_a_conflict_says_how_many_and_what_to_change() -> None:
    state = _shown(*[{"counts": {"listed": 4, "conflicting": 1}}] * 3)[-1]
    assert state.by_kind["Unconflicted"].truth is Truth.FALSE
    assert state.by_kind["Unconflicted"].message.startswith("1 of 4 sources")


def test_a_refused_spec_is_not_ready_and_knows_nothing_else() -> None:
    state = conditions.refused(_shown({})[0], "spec.mode: is 'x'; use observe or write", 2000.0)
    assert [(each.kind, each.truth, each.reason, each.since) for each in state.in_order()] == [
        ("Ready", Truth.FALSE, "InvalidSpec", 2000.0)
    ]


def test_only_turns_are_news() -> None:
    start, good, *_, bad = [Conditions(), *_shown({}, *[{"server": BAD}] * 3)]
    assert turns(start, good) == []
    assert [turn.kind for turn in turns(good, bad)] == ["Ready", "ServerReachable"]
    assert [turn.kind for turn in turns(bad, good)] == ["Ready", "ServerReachable"]
    assert turns(bad, bad) == []
    unknown = Conditions({"Ready": Condition("Ready", Truth.UNKNOWN, "x", "", 0.0)})
    assert turns(good, unknown) == []
    assert [turn.kind for turn in turns(unknown, bad)] == ["Ready", "ServerReachable"]


CHECKS = st.sampled_from([Check(True, "Ok"), BAD, UNTRIED])


@settings(deadline=None)
@given(st.lists(CHECKS, min_size=1, max_size=60))
def test_a_condition_turns_at_most_once_in_three_cycles_after_its_first(checks: list[Check]) -> None:
    states = _shown(*({"server": check} for check in checks))
    letters = _truths(states, "ServerReachable")
    known = letters.lstrip("U")
    changes = [index for index in range(1, len(known)) if known[index] != known[index - 1]]
    # From Unknown the first good news counts at once; every other turn takes three cycles that agree.
    for index in changes:
        since = len(letters) - len(known) + index
        if not (known[index - 1] == "U" and known[index] == "T"):
            answers = {check.ok for check in checks[since - 2 : since + 1]}
            assert answers == {{"T": True, "F": False, "U": None}[known[index]]}
