"""What makes a dashboard work in somebody else's Grafana: the rules of Grafana's own linter, and ours."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dashboards import files
from tests.dashboards import expressions, panels
from tests.dashboards.panels import Question

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLE = re.compile(r"\$\{?([a-zA-Z_]+)\}?")
BUILT_IN = {"__rate_interval", "__interval", "__range"}
UNITS = {"short", "percentunit", "s", "Bps", "cpm", "cps", "wps", "reqps", "tokens/s", "suffix:\u00d7"}
#: Series without a job: Prometheus' own.
NO_JOB = {"ALERTS"}
QUESTIONS = list(panels.questions())


def variables(name: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in panels.board(name)["templating"]["list"]}


def test_generated_files_are_up_to_date() -> None:
    for path, text in files.generated().items():
        assert (files.ROOT / path).read_text() == text, f"{path}: run python -m dashboards"


@pytest.mark.parametrize("name", panels.NAMES)
def test_one_data_source_variable_and_nothing_baked_in(name: str) -> None:
    board = panels.board(name)
    sources = [one for one in variables(name).values() if one["type"] == "datasource"]
    assert [(one["name"], one["label"], one["query"]) for one in sources] == [
        ("datasource", "Data source", "prometheus")
    ]
    assert "__inputs" not in board
    assert "__requires" not in board
    assert board["editable"] is False
    for one in variables(name).values():
        if one["type"] != "custom":  # a fixed choice has a first value; nothing else is known before it is loaded
            assert not one.get("current"), one["name"]
        if one["type"] in ("query", "adhoc"):
            assert one["datasource"] == SOURCE
    for panel in panels.panels(name):
        assert panel["datasource"] == SOURCE, panel["title"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"]), panel["title"]
    assert all(one["datasource"] == SOURCE for one in board["annotations"]["list"])


@pytest.mark.parametrize("name", panels.NAMES)
def test_the_job_variable_follows_the_linters_rules(name: str) -> None:
    job = variables(name)["job"]
    assert (job["multi"], job["includeAll"], job["allValue"], job["refresh"]) == (True, True, ".+", 2)


def test_uids_are_stable_short_and_unique_and_dashboards_link_to_each_other() -> None:
    boards = [panels.board(name) for name in panels.NAMES]
    assert [board["uid"] for board in boards] == list(panels.NAMES)
    for board in boards:
        assert len(board["uid"]) <= 40
        assert board["tags"] == ["modelexpress"]
        (link,) = board["links"]
        assert (link["type"], link["tags"], link["keepTime"], link["includeVars"]) == (
            "dashboards",
            ["modelexpress"],
            True,
            True,
        )


@pytest.mark.parametrize("name", panels.NAMES)
def test_ids_are_unique_and_positions_within_the_grid_and_apart(name: str) -> None:
    placed = panels.board(name)["panels"]
    assert len({panel["id"] for panel in placed}) == len(placed)
    assert all(panel["id"] > 0 for panel in placed)
    taken: set[tuple[int, int]] = set()
    for panel in placed:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] >= 0
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    order = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in placed]
    assert order == sorted(order)


@pytest.mark.parametrize("name", panels.NAMES)
def test_every_panel_says_what_it_is_and_what_to_do_when_it_is_empty(name: str) -> None:
    titles = [panel["title"] for panel in panels.panels(name)]
    assert len(set(titles)) == len(titles)
    for panel in panels.panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"]
        assert "Metric: `" in panel["description"], panel["title"]
        assert defaults["noValue"] not in ("", "No data"), panel["title"]
        assert panel["pluginVersion"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert all(references)
        if panel["type"] in ("stat", "timeseries"):
            assert defaults["unit"] in UNITS, panel["title"]


@pytest.mark.parametrize("name", panels.NAMES)
def test_metrics_named_in_a_description_are_those_that_the_panel_reads(name: str) -> None:
    """A description names what is scraped; a recorded series stands for the metric it is made of."""
    for panel in panels.panels(name):
        said = set(re.findall(r"`([\w:]+)`", panel["description"].partition("Metric: ")[2]))
        assert said, panel["title"]
        read = " ".join(target["expr"] for target in panel["targets"])
        for metric in said:
            recorded = f"mx:{metric.removeprefix('mx_').partition(':')[2] or metric.removeprefix('mx_')}"
            assert metric in read or recorded.removesuffix("_total") in read, f"{panel['title']}: {metric}"


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.name)
def test_every_query_parses_filters_by_job_and_rates_over_the_right_window(question: Question) -> None:
    used = set(VARIABLE.findall(question.expr))
    assert used <= BUILT_IN | set(variables(question.board)), "an undefined variable"
    assert "datasource" not in used
    found = expressions.selectors(panels.filled(question.expr, expressions.PARSES))
    assert found
    for selector in found:
        assert all(selector.metrics)
        if not set(selector.metrics) <= NO_JOB | {"up"} or "job" in selector.matchers:
            assert 'job=~"$job"' in question.expr
            assert selector.matchers.get("job") == "x", selector.metrics
        if selector.range and {"rate", "irate", "increase"} & set(selector.inside):
            assert "[$__rate_interval]" in question.expr
        if any(metric.endswith("_total") for metric in selector.metrics):
            counted = {"rate", "increase", "clamp_min"} & set(selector.inside)
            assert counted or "@ end()" in question.expr, f"{selector.metrics}: a counter outside rate and pulled"


@pytest.mark.parametrize("name", panels.NAMES)
def test_every_variable_is_used(name: str) -> None:
    text = " ".join(q.expr + q.panel for q in QUESTIONS if q.board == name)
    text += " ".join(str(one.get("query", "")) for one in variables(name).values())
    for variable in set(variables(name)) - {"datasource", "filters"}:
        assert f"${variable}" in text, variable


@pytest.mark.parametrize("name", panels.NAMES)
def test_annotations_parse(name: str) -> None:
    for one in panels.board(name)["annotations"]["list"]:
        assert expressions.selectors(one["expr"])
        assert one["target"]["expr"] == one["expr"]
