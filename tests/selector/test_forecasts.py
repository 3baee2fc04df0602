"""What a rollout would look like, and the sentence that explains a choice."""

from __future__ import annotations

import pytest

from mx_selector import Target, resolve
from mx_selector.explanations import Standing, standings, why
from mx_selector.forecasts import forecast
from mx_selector.policies.headroom import Headroom
from mx_selector.policies.topology import TopologyAware
from tests.selector.rows import row, rows

TARGET = Target("m", "t", 0)


def test_a_forecast_adds_up_and_is_the_same_each_time() -> None:
    candidates = rows([0.0, 0.5, 0.9, None])
    for name in ("rendezvous_hash", "load_aware", "headroom"):
        first = forecast(candidates, TARGET, resolve(name), 24)
        assert sum(first.pulls) == pytest.approx(24)
        assert forecast(candidates, TARGET, resolve(name), 24) == first


def test_a_forecast_of_headroom_is_its_weights() -> None:
    candidates = rows([0.0, 0.2, 0.5, None])
    weights = Headroom().weights(candidates)
    predicted = forecast(candidates, TARGET, Headroom(), 100)
    for pulls, weight in zip(predicted.pulls, weights, strict=True):
        assert pulls == pytest.approx(100 * weight / sum(weights), abs=3)


def test_busy_sources_and_the_deepest_pile() -> None:
    candidates = rows([0.95, 0.95, 0.0, 0.0])
    blind = forecast(candidates, TARGET, resolve("rendezvous_hash"), 8)
    aware = forecast(candidates, TARGET, resolve("headroom"), 8)
    assert blind.busy_pulls == pytest.approx(4, abs=0.3)
    assert aware.busy_pulls < 0.2
    assert 3 <= blind.deepest <= 4
    assert 4 <= aware.deepest <= 6
    assert forecast(candidates[:1], TARGET, resolve("random"), 8).deepest == 8


def test_more_targets_than_draws_are_all_drawn() -> None:
    assert forecast(rows([0.1, 0.2]), TARGET, resolve("headroom"), 5_000).draws == 5_000


def test_no_sources_no_pulls() -> None:
    empty = forecast([], TARGET, resolve("headroom"), 8)
    assert (empty.pulls, empty.deepest) == ((), 0)


def explained(policy: str, loads: list[float | None], target: Target = TARGET) -> tuple[list[Standing], str]:
    chosen = resolve(policy)
    lines = standings([row(f"w{i}", x, updated_at=90_000) for i, x in enumerate(loads)], target, chosen, 100.0)
    return lines, why(lines, chosen)


def test_the_numbers_behind_an_order() -> None:
    lines, _ = explained("load_aware", [0.5, None, 0.0])
    assert [line.rank for line in lines] == [1, 2, 3]
    assert {line.age for line in lines} == {10.0}
    for line in lines:
        assumed = 0.5 if line.load is None else line.load
        assert line.score == pytest.approx(line.unit_hash - assumed)
        assert line.weight is None
    scores = [line.score for line in lines if line.score is not None]
    assert scores == sorted(scores, reverse=True)


def test_weights_are_shown_where_a_policy_has_them() -> None:
    lines, _ = explained("headroom", [0.5, 0.0])
    assert {line.load: line.weight for line in lines}[0.0] == 1.0


AHEAD = "w2 won: 3rd best hash of 3 (0.41), with load 0.00, ahead of 2 with a better hash (the lightest at 0.90)."


@pytest.mark.parametrize(
    ("policy", "loads", "sentence"),
    [
        ("headroom", [], "There is no source to choose from."),
        ("headroom", [0.9], "w0 is the only source."),
        ("random", [0.9, 0.1], " came first by random; it may be another one next time."),
        ("headroom", [0.3, 0.3, 0.3], "won: best hash of 3 (0.97), and all loads are the same."),
        ("headroom", [None, None], ", and nobody's load is known."),
        ("load_aware", [0.95, 0.9, 0.0], AHEAD),
    ],
)
def test_one_sentence_says_why(policy: str, loads: list[float | None], sentence: str) -> None:
    assert sentence in explained(policy, loads)[1]


def test_a_tier_is_named() -> None:
    near = {"zone": "z1", "rack": "r1"}
    candidates = [row("far", 0.0), row("near", 0.9, topology=near), row("next", 0.1, topology=near)]
    policy = TopologyAware(resolve("load_aware"))
    lines = standings(candidates, Target("m", "t", topology=near), policy, 0.0)
    assert [line.tier for line in lines] == ["rack", "rack", ""]
    assert "won among the 2 of 3 sources in this target's rack: " in why(lines, policy)


def test_ordinals() -> None:
    from mx_selector.explanations import _ordinal

    assert [_ordinal(n) for n in (1, 2, 3, 4, 11, 12, 21, 22, 113)] == [
        "best",
        "2nd best",
        "3rd best",
        "4th best",
        "11th best",
        "12th best",
        "21st best",
        "22nd best",
        "113th best",
    ]
