"""The read-back gate: at most three trials, two losses close it, one trial in ten minutes after that."""

from __future__ import annotations

from mx_operator.core import gates
from mx_operator.core.gates import CANARIES, RETRY, UNTRIED, Gate, Phase


def test_an_untried_server_gets_three_canaries_and_no_more_until_they_are_decided() -> None:
    assert gates.allowance(UNTRIED, 0.0) == CANARIES
    after = gates.sent(UNTRIED, 2, 0.0)
    assert gates.allowance(after, 1.0) == 1
    assert gates.allowance(gates.sent(after, 1, 1.0), 2.0) == 0


def test_canaries_that_nobody_decides_are_repeated_after_a_while() -> None:
    assert gates.allowance(gates.sent(UNTRIED, 3, 0.0), 30.0) == CANARIES


def test_one_mark_opens_it() -> None:
    assert gates.read_back(UNTRIED, [], any_mark=True, now=0.0).phase is Phase.OPEN
    assert gates.allowance(Gate(Phase.OPEN), 0.0) is None


def test_two_lost_of_the_last_twenty_close_it_and_older_losses_are_forgotten() -> None:
    gate = gates.read_back(Gate(Phase.OPEN), [False], any_mark=True, now=0.0)
    assert gate.phase is Phase.OPEN
    assert gates.read_back(gate, [True] * 18 + [False], any_mark=True, now=1.0).phase is Phase.CLOSED
    assert gates.read_back(gate, [True] * 20 + [False], any_mark=True, now=1.0).phase is Phase.OPEN


def test_closed_it_lets_one_through_in_ten_minutes() -> None:
    gate = gates.closed(100.0)
    assert gates.allowance(gate, 100.0 + RETRY - 1) == 0
    assert gates.allowance(gate, 100.0 + RETRY) == 1
    assert gates.allowance(gates.sent(gate, 1, 100.0 + RETRY), 101.0 + RETRY) == 0


def test_closed_it_believes_only_its_own_canary() -> None:
    gate = gates.closed(0.0)
    assert gates.read_back(gate, [], any_mark=True, now=1.0).phase is Phase.CLOSED
    assert gates.read_back(gate, [False], any_mark=True, now=1.0).phase is Phase.CLOSED
    assert gates.read_back(gate, [True], any_mark=True, now=1.0) == Gate(burnt=True)


def test_opened_again_it_closes_at_the_first_loss() -> None:
    again = gates.read_back(Gate(burnt=True), [True], any_mark=True, now=0.0)
    assert again.phase is Phase.OPEN
    assert gates.read_back(again, [True] * 19 + [False], any_mark=True, now=1.0).phase is Phase.CLOSED
