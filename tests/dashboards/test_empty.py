"""A Prometheus that scrapes none of it: nothing fails, nothing is invented, and every panel says what is missing."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboards import expressions, fleets, openmetrics, panels
from tests.dashboards.history import History, history

#: What a panel that reads such metrics has to mention when it is empty.
HINTS = {
    "mx_selector_": ("selector",),
    "mx_operator_": ("operator", "Not seen yet"),
    "mx_exporter_": ("exporter", "engine"),
    "mx_server_": ("server",),
    "mx_p2p_list": ("MX_METRICS_ENABLED",),
    "mx:": ("recording rules", "selector"),
    "hw_": ("exporter",),
    "ALERTS": ("rules",),
}
#: Answers that are right although there is nothing.
ZERO = {"mx-pipeline / Alerts firing / A"}
LONGEST_IN_A_STAT = 60


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    up = [("up", {"job": "prometheus", "instance": "localhost:9090"}, fleets.Clock(600).samples(fleets.constant(1)))]
    with history(tmp_path_factory.mktemp("empty"), openmetrics.text(up)) as server:
        yield server


@pytest.mark.parametrize("question", list(panels.questions()), ids=lambda one: one.name)
def test_a_query_finds_nothing_and_does_not_fail(empty: History, question: panels.Question) -> None:
    found = empty.instant(question.with_values(source="10.0.0.1"))
    assert (found == []) != (question.name in ZERO)


@pytest.mark.parametrize("name", panels.NAMES)
def test_a_graph_without_data_says_who_is_missing(name: str) -> None:
    for panel in panels.panels(name):
        said = panel["fieldConfig"]["defaults"]["noValue"]
        if panel["type"] == "stat":
            assert len(said) <= LONGEST_IN_A_STAT, panel["title"]
            continue
        for start, words in HINTS.items():
            if all(any(metric.startswith(start) for metric in metrics) for metrics in _read(panel)):
                assert any(word in said for word in words), f"{panel['title']}: {said!r} mentions none of {words}"


def test_the_per_source_view_names_the_label_that_is_off() -> None:
    (panel,) = [one for one in panels.panels("mx-rollout") if one["title"] == "Pulls per source"]
    said = panel["fieldConfig"]["defaults"]["noValue"]
    assert said.startswith("label not exported")
    assert "MX_METRICS_SOURCE_ID_LABEL=1" in said


def test_what_the_operator_wrote_names_the_option_that_is_off() -> None:
    (panel,) = [one for one in panels.panels("mx-source") if one["title"] == "Operator wrote"]
    assert panel["fieldConfig"]["defaults"]["noValue"].startswith("not exported (--written-metrics=on)")


def test_the_share_of_pulls_says_that_it_needs_our_selector() -> None:
    (panel,) = [one for one in panels.panels("mx-rollout") if one["title"] == "Pulls to busy"]
    assert panel["fieldConfig"]["defaults"]["noValue"].startswith("needs our selector")


def _read(panel: dict[str, Any]) -> list[tuple[str, ...]]:
    """The metrics of each selector of a panel."""
    asked = (panels.filled(target["expr"], expressions.PARSES) for target in panel["targets"])
    return [selector.metrics for text in asked for selector in expressions.selectors(text)]


def test_the_folder_of_generated_dashboards_holds_these_only() -> None:
    assert {path.stem for path in pathlib.Path(panels.FOLDER).iterdir()} == set(panels.NAMES)
