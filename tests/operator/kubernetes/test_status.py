"""The status: what it says, and that a steady policy costs the API server at most one patch a minute."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mx_operator.core.reports import Check
from mx_operator.kubernetes import conditions
from mx_operator.kubernetes.registry import Known
from mx_operator.kubernetes.status import BURST, STEADY, Board, Patch
from mx_operator.policies import Finding, read_policy
from tests.operator.kubernetes.reports import report
from tests.operator.policies.cases import policy

BAD = Check(False, "Timeout", "no answer within 5s")


def _known(generation: int = 1, errors: tuple[Finding, ...] = ()) -> Known:
    resource = policy() | {"metadata": {"name": "fleet", "uid": "u-1", "generation": generation}}
    read, warnings = read_policy(resource)
    return Known("fleet", "u-1", generation, None if errors else read, errors, warnings, conditions.Conditions())


def _run(cycles: list[dict[str, Any]], board: Board | None = None) -> list[tuple[float, Patch]]:
    """Cycles two seconds apart, looked at every second; the patches and when."""
    board = board or Board(_known())
    patches = []
    for second in range(2 * len(cycles)):
        if second % 2 == 0:
            board.take(report(at=1000.0 + second, **cycles[second // 2]))
        if patch := board.due(float(second)):
            board.sent(patch, float(second))
            patches.append((float(second), patch))
    return patches


def _store(board: Board, now: float) -> None:
    """A good cycle, and its patch is stored."""
    board.take(report())
    patch = board.due(now)
    assert patch is not None
    board.sent(patch, now)


def test_a_steady_policy_is_patched_once_a_minute() -> None:
    moments = [moment for moment, _ in _run([{}] * 300)]
    assert moments == [60.0 * minute for minute in range(10)]


def test_numbers_that_move_all_the_time_make_it_no_more() -> None:
    cycles = [{"counts": {"listed": 100 + number, "matched": 3 * number}} for number in range(150)]
    assert len(_run(cycles)) == 5


def test_a_turn_is_shown_as_soon_as_it_is_sure() -> None:
    patches = _run([{}] * 5 + [{"server": BAD}] * 10)
    assert [moment for moment, _ in patches] == [0.0, 14.0]
    assert [turn.kind for turn in patches[1][1].turns] == ["Ready", "ServerReachable"]


def test_the_first_word_on_what_was_unknown_is_shown_at_once_and_is_no_event() -> None:
    unknown = {"prometheus": Check(None, "Waiting"), "data_fresh": Check(None, "Unknown")}
    patches = _run([unknown] * 2 + [{}] * 10)
    assert [moment for moment, _ in patches] == [0.0, 4.0]
    assert patches[1][1].turns == ()
    assert patches[1][1].status["conditions"][0]["status"] == "True"


@settings(deadline=None)
@given(st.lists(st.sampled_from([{}, {"server": BAD}, {"prometheus": BAD}]), min_size=60, max_size=300))
def test_whatever_flaps_the_patches_stay_few(cycles: list[dict[str, Any]]) -> None:
    moments = [moment for moment, _ in _run(cycles)]
    for moment in moments:
        assert sum(1 for other in moments if moment <= other < moment + STEADY) <= BURST


def test_the_whole_document() -> None:
    ((_, patch),) = _run([{"skips": {"unmatched": 2, "fresh": 0}, "signal_ages": {"nic": 6.4, "kv": 0.3}}])
    document = dict(patch.status)
    shown = document.pop("conditions")
    assert document == {
        "observedGeneration": 1,
        "reportedAt": "1970-01-01T00:16:40Z",
        "measured": "12/14",
        "dataAge": "6s",
        "staleRatio": 0.0,
        "heartbeatInterval": "30s",
        "clockSkew": "250ms",
        "cycleDuration": "120ms",
        "sources": {
            "listed": 14,
            "matched": 12,
            "unmatched": 2,
            "ambiguous": 0,
            "stale": 0,
            "invalid": 0,
            "conflicting": 0,
            "wanted": 0,
            "written": 0,
            "failed": 0,
            "clamped": 0,
            "wouldWrite": 0,
        },
        "skips": [{"reason": "unmatched", "sources": 2}],
        "signals": [{"name": "kv", "age": "300ms"}, {"name": "nic", "age": "6s"}],
        "warnings": [],
    }
    assert shown[0] == {
        "type": "Ready",
        "status": "True",
        "reason": "Writing",
        "message": "12 of 14 sources measured",
        "lastTransitionTime": "1970-01-01T00:16:40Z",
        "observedGeneration": 1,
    }
    assert [entry["type"] for entry in shown] == list(conditions.ORDER)


def test_a_new_spec_is_reported_once_a_cycle_ran_with_it() -> None:
    board = Board(_known())
    _store(board, 0.0)
    board.renew(_known(2), 1000.0)
    board.take(report(generation=1))  # of the cycle that was under way
    assert board.due(4.0) is None
    board.take(report(generation=2))
    patch = board.due(5.0)
    assert patch is not None
    assert patch.status["observedGeneration"] == 2


def test_a_refused_spec_is_told_at_once_and_takes_the_numbers_away() -> None:
    board = Board(_known())
    _store(board, 0.0)
    board.renew(_known(2, (Finding("spec.mode", "is 'x'", "use observe or write"),)), 1000.0)
    patch = board.due(3.0)
    assert patch is not None
    assert set(patch.status) == {"observedGeneration", "conditions", "warnings", "reportedAt"}
    assert patch.status["reportedAt"] == "1970-01-01T00:16:40Z"
    (ready,) = patch.status["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert ready["message"] == "spec.mode: is 'x'; use observe or write"


def test_a_patch_that_failed_is_due_again() -> None:
    board = Board(_known())
    board.take(report())
    assert board.due(0.0) is not None
    _store(board, 1.0)
    assert board.due(2.0) is None


def test_what_happens_while_a_patch_is_on_its_way_is_told_by_the_next() -> None:
    board = Board(_known())
    board.take(report())
    patch = board.due(0.0)
    assert patch is not None
    board.renew(_known(2, (Finding("spec.mode", "is 'x'", "use observe or write"),)), 1000.0)
    board.sent(patch, 0.1)
    later = board.due(4.0)
    assert later is not None
    assert later.status["observedGeneration"] == 2


def test_a_patch_that_is_refused_is_not_sent_again_and_again() -> None:
    board = Board(_known())
    board.take(report())
    tries = 0
    for second in range(60):
        if board.due(float(second)) is not None:
            board.held(float(second))
            tries += 1
    assert tries == BURST
    assert board.due(60.0) is not None
