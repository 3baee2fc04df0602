"""Every query on a real fleet's past: the lab with two rollouts, as its Prometheus scraped it.

What a healthy lab does not have is in EXCEPTIONS, each with where it is shown instead; an exception that is no longer
one fails, too.
"""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Iterator

import pytest

from tests.dashboards import fleets, openmetrics, panels, test_known
from tests.dashboards.history import History, history, recorded_fleet
from tests.dashboards.panels import Question
from tests.dashboards.record import RECORDING

#: Query -> why the lab gives nothing, and where it gives something: on the broken fleet, or on series made for it.
EXCEPTIONS = {
    "mx-rollout / Load per source, as targets see it / B": ("an operator lists", "known"),
    "mx-rollout / Pulls per source / A": ("MX_METRICS_SOURCE_ID_LABEL is off", "known"),
    "mx-source / What is unknown, and why / A": ("nothing is unknown", "broken"),
    "mx-source / Ports of its node / E": ("every port is known", "broken"),
    "mx-rollout / Pulls by policy and result / B": ("every pull succeeds", "broken"),
    "mx-pipeline / Sources by what is known of them / B": ("all are matched", "broken"),
    "mx-pipeline / Engine pages / B": ("every page is read", "broken"),
    "mx-pipeline / Targets' listings / B": ("every listing is answered", "broken"),
    "mx-pipeline / Alerts / A": ("no alert fires", "broken"),
    "mx-pipeline / Parts of a load that are unknown, by reason / A": ("nothing is unknown", "broken"),
    "mx-pipeline / Ports without utilization, by reason / A": ("every port is known", "broken"),
    "mx-pipeline / Counters that could not be read or believed / A": ("no error", "broken"),
    "mx-pipeline / Selections without a load / B": ("no policy fails", "broken"),
}
#: Annotations need what a lab has not: kube-state-metrics, and alerts that fire.
ANNOTATIONS = {"Deployment rollouts", "StatefulSet rollouts", "Alerts"}
QUESTIONS = list(panels.questions())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    recording = gzip.decompress(RECORDING.read_bytes()).decode()
    with history(tmp_path_factory.mktemp("lab"), recorded_fleet(recording), rules=900) as server:
        yield server


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    samples = openmetrics.text(fleets.broken())
    with history(tmp_path_factory.mktemp("broken"), samples) as server:
        yield server


def found(server: History, question: Question, **values: str) -> int:
    """How many series a query gives over ten minutes, NaN-only ones not counted."""
    expression = question.with_values(**values)
    if question.instant:
        return sum(value == value for _, value in server.instant(expression))
    series = server.range(expression, seconds=600)["result"]
    return sum(any(value != "NaN" for _, value in one["values"]) for one in series)


def hot(server: History) -> str:
    """The address of the hottest source."""
    return max(server.instant("mx_source_load"), key=lambda one: one[1])[0]["k8s_pod_ip"]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.name)
def test_a_query_finds_something_on_the_labs_fleet(lab: History, question: Question) -> None:
    series = found(lab, question, baseline="5m", source=hot(lab))
    if question.name in EXCEPTIONS:
        assert series == 0, "no longer an exception"
    else:
        assert series > 0, question.with_values(baseline="5m", source=hot(lab))


@pytest.mark.parametrize("name", [name for name, (_, where) in EXCEPTIONS.items() if where == "broken"])
def test_an_exception_finds_something_on_the_broken_fleet(broken: History, name: str) -> None:
    question = next(one for one in QUESTIONS if one.name == name)
    assert found(broken, question, source=fleets.Source(19, 0).ip) > 0


@pytest.mark.parametrize("name", [name for name, (_, where) in EXCEPTIONS.items() if where == "known"])
def test_any_other_exception_has_a_known_answer(name: str) -> None:
    assert any(case.question == name for case in test_known.CASES)


@pytest.mark.parametrize("name", panels.NAMES)
def test_annotations_find_nothing_where_there_is_nothing(lab: History, name: str) -> None:
    for one in panels.board(name)["annotations"]["list"]:
        assert one["name"] in ANNOTATIONS
        assert lab.range(one["expr"])["result"] == []


def test_the_recording_holds_a_rollout_that_shows(lab: History) -> None:
    """The pictures' story: calm, then pulls; blind policies hit busy sources, load_aware hardly."""
    pulls = next(one for one in QUESTIONS if one.name == "mx-rollout / Pulls by policy and result / A")
    series = lab.range(f"sum({pulls.with_values()})", seconds=600)["result"][0]["values"]
    amounts = [float(value) for _, value in series]
    assert min(amounts) < 1 < 30 < max(amounts)
    share = next(one for one in QUESTIONS if one.name == "mx-rollout / Share of pulls that went to busy sources / A")
    by_policy = {labels["policy"]: value for labels, value in lab.instant(share.with_values())}
    assert by_policy["load_aware"] < 0.05 < 0.15 < by_policy["random"]
    assert RECORDING.stat().st_size < 1_000_000
    assert pathlib.Path(RECORDING).name == "fleet.om.gz"
