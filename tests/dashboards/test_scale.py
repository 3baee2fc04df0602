"""Two thousand sources: no panel's query may read more than 50,000 samples a step or return more than 100 series."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.dashboards import fleets, openmetrics, panels
from tests.dashboards.history import History, history
from tests.dashboards.panels import Question

SAMPLES, SERIES, SOURCES = 50_000, 100, 2000
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with history(tmp_path_factory.mktemp("big"), openmetrics.text(fleets.big(SOURCES))) as server:
        yield server


@functools.cache
def values() -> dict[str, str]:
    return {"source": fleets.Source(1234, 0).ip}


def test_the_fleet_is_as_large_as_it_says(big: History) -> None:
    for metric in ("mx_p2p_source_load", "mx_source_load", "mx_kv_cache_usage", "vllm:num_requests_running"):
        assert big.instant(f"count({metric})")[0][1] == SOURCES, metric
    assert big.instant("count(mx_exporter_ports)")[0][1] == SOURCES / 8


@pytest.mark.parametrize("question", list(panels.questions()), ids=lambda one: one.name)
def test_a_query_is_affordable(big: History, question: Question) -> None:
    expression = question.with_values(**values())
    answer = big.range(expression, seconds=0 if question.instant else 120, step=60, stats=True)
    samples = answer["stats"]["samples"]
    assert max(count for _, count in samples["totalQueryableSamplesPerStep"]) <= SAMPLES
    assert len(answer["result"]) <= SERIES


def test_a_query_for_everything_would_be_found(big: History) -> None:
    answer = big.range("rate(hw_network_io_bytes_total[5m])", seconds=60, step=60, stats=True)
    assert max(count for _, count in answer["stats"]["samples"]["totalQueryableSamplesPerStep"]) > SAMPLES
    assert len(answer["result"]) > SERIES


def test_the_lines_shown_are_the_busiest_ones(big: History) -> None:
    question = next(q for q in panels.questions() if q.name == "mx-rollout / Load per source, as targets see it / A")
    shown = {s["metric"]["source_worker_id"] for s in big.range(question.with_values(), seconds=600)["result"]}
    loads = big.instant("max_over_time(mx_p2p_source_load[1h])")
    busiest = sorted(loads, key=lambda one: -one[1])[:15]
    assert len(shown) == 15
    assert min(value for _, value in busiest) <= min(v for m, v in loads if m["source_worker_id"] in shown) + 0.01
