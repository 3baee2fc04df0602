"""A fleet that runs the released MX client alone: its own page, as its own code writes it, on our dashboards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.dashboards import fleets, openmetrics, panels
from tests.dashboards.history import History, history

pytestmark = pytest.mark.released

WORK = {
    "mx-rollout / Sources ready / A",
    "mx-rollout / Pulls by policy and result / A",
    "mx-rollout / Pull time p99 / A",
    "mx-rollout / Pull time by policy and outcome / A",
    "mx-pipeline / Targets' listings / A",
    "mx-pipeline / What runs / A",
}
NEED_OURS = {
    "mx-rollout / Pulls to busy / A",
    "mx-rollout / Age of load p95 / A",
    "mx-rollout / Share of pulls that went to busy sources / A",
}
NEED_THE_LABEL = {
    "mx-rollout / Pulls per source / A",
    "mx-rollout / Load per source, as targets see it / B",
}


def page(monkeypatch: pytest.MonkeyPatch, *, by_source: bool) -> str:
    """What the client's page says after one pull of one target."""
    from tests.parts import released

    monkeypatch.setenv("MX_METRICS_ENABLED", "1")
    monkeypatch.setenv("MX_METRICS_SOURCE_ID_LABEL", "1" if by_source else "0")
    registry = CollectorRegistry()
    theirs = released.module("metrics").MetricsCollector(registry)
    theirs._build_families()
    made: dict[str, Any] = {m._name: m for m in vars(theirs).values() if hasattr(m, "_labelnames")}
    values = {"policy": "load_aware", "scheme": "", "result": "ok", "stage": "listed", "source_worker_id": "a"}
    values |= {"outcome": "success"}

    def child(name: str, **other: str) -> Any:
        return made[name].labels(*((values | other)[label] for label in made[name]._labelnames))

    child("mx_p2p_list_sources").inc()
    child("mx_p2p_candidates").observe(8)
    child("mx_p2p_source_selections").inc()
    child("mx_p2p_source_attempts", result="success").inc()
    child("mx_p2p_transfer_seconds").observe(1.5)
    child("mx_p2p_source_load").set(0.4)
    return generate_latest(registry).decode()


def series(text: str) -> Iterator[openmetrics.Series]:
    """The page as scraped of a target that was born two minutes before the end."""
    clock = fleets.Clock(120, 15)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {**sample.labels, "job": "mx-client", "instance": "10.0.0.1:9402"}
            yield sample.name, labels, clock.samples(fleets.constant(sample.value))


@pytest.fixture(params=[False, True], ids=["as it comes", "with the label on"])
def fleet(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[bool, History]]:
    samples = openmetrics.text(series(page(monkeypatch, by_source=request.param)))
    with history(tmp_path_factory.mktemp("released"), samples, rules=120) as server:
        yield request.param, server


def test_what_the_released_client_exports_is_shown_and_the_rest_says_why_not(fleet: tuple[bool, History]) -> None:
    by_source, server = fleet
    asked = {question.name: question.with_values() for question in panels.questions()}
    for name in WORK:
        assert server.instant(asked[name]), f"{name}: {asked[name]}"
    for name in NEED_OURS:
        assert server.instant(asked[name]) == [], name
    for name in NEED_THE_LABEL:
        assert bool(server.instant(asked[name])) == by_source, name
    assert server.instant(asked["mx-rollout / Sources ready / A"])[0][1] == 8
