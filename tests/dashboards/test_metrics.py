"""The code, docs/metrics.md, the dashboards and the rules name the same metrics."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import pytest
import yaml

from dashboards.rules.recordings import RECORDINGS
from tests.dashboards import catalogue, expressions, fleets, panels
from tests.dashboards.catalogue import Metric
from tests.dashboards.history import ROOT, RULES

PAGE = ROOT / "docs/metrics.md"
SUFFIXES = ("_bucket", "_count", "_sum")
#: What a unit in the page says -> what the name then has to say.
UNIT_IN_NAME = {
    "seconds": ("_seconds",),
    "seconds since 1970": ("_timestamp_seconds",),
    "bytes": ("_bytes_total",),
    "bytes a second": ("_bytes_per_second",),
}
ROW = re.compile(
    r"\| `(?P<name>[\w:]+)` \| (?P<type>\w+) \| (?P<unit>[^|]*?) \| ?(?P<labels>[^|]*?) ?\| (?P<meaning>[^|]+) \|"
)


@functools.cache
def documented() -> dict[str, list[re.Match[str]]]:
    """Rows of the page, by section."""
    sections: dict[str, list[re.Match[str]]] = {}
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif (found := ROW.fullmatch(line)) is not None:
            sections.setdefault(section, []).append(found)
        else:
            assert not line.startswith("| `"), f"a row that cannot be read: {line}"
    return sections


def foreign() -> set[str]:
    """Metrics of others that the page says are read."""
    return set(re.findall(r"`([\w:]+)`", PAGE.read_text().partition("## read but not ours")[2]))


def labels_of(row: re.Match[str], *, optional: bool) -> set[str]:
    found = re.findall(r"(\[?)`(\w+)`", row["labels"])
    return {label for bracket, label in found if optional or not bracket}


@pytest.mark.parametrize("component", ["exporter", "operator", "selector", "server"])
def test_the_page_and_the_code_name_the_same_metrics(component: str) -> None:
    in_code = {metric.name for metric in catalogue.in_code() if metric.component == component}
    on_page = [row["name"] for row in documented()[component]]
    assert sorted(on_page) == sorted(set(on_page))
    assert set(on_page) == in_code


@pytest.mark.parametrize("metric", sorted(catalogue.in_code()), ids=lambda one: f"{one.component} {one.name}")
def test_type_labels_and_unit_are_those_of_the_code(metric: Metric) -> None:
    (row,) = [row for row in documented()[metric.component] if row["name"] == metric.name]
    assert row["type"] == metric.type
    assert labels_of(row, optional=False) <= set(metric.labels) <= labels_of(row, optional=True)
    assert row["unit"]
    assert len(row["meaning"]) > 8
    for unit, endings in UNIT_IN_NAME.items():
        named = metric.name.endswith(endings)
        assert named == (row["unit"] == unit) or (unit == "seconds" and "since" in row["unit"]), row["unit"]
    assert metric.name.endswith("_total") == (metric.type == "counter")


def test_the_recording_rules_are_on_the_page_with_their_labels() -> None:
    rows = {row["name"]: labels_of(row, optional=True) for row in documented()["recorded"]}
    assert set(rows) == {recording.name for recording in RECORDINGS}
    for recording in RECORDINGS:
        by = re.search(r"sum by \(([^)]*)\)", recording.expr)
        assert by is not None
        assert rows[recording.name] == set(by[1].split(", ")) | {name for name, _ in recording.labels}


def read() -> Iterator[tuple[str, str]]:
    """(where, metric) of everything that dashboards, their variables and annotations, and rules read."""
    texts = [(question.name, panels.filled(question.expr, expressions.PARSES)) for question in panels.questions()]
    for name in panels.NAMES:
        board = panels.board(name)
        texts += [(f"{name} {one['name']}", one["expr"]) for one in board["annotations"]["list"]]
        texts += list(_variables(name))
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        texts += [(str(rule.get("alert", rule.get("record"))), rule["expr"]) for rule in group["rules"]]
    for where, text in texts:
        for selector in expressions.selectors(text):
            yield from ((where, metric) for metric in selector.metrics)


def _variables(name: str) -> Iterator[tuple[str, str]]:
    for variable in panels.board(name)["templating"]["list"]:
        if variable["type"] == "query":
            asked = panels.filled(variable["query"], expressions.PARSES)
            inside = re.fullmatch(r"(?:label_values\((.*), \w+\)|query_result\((.*)\))", asked)
            assert inside is not None, asked
            yield f"{name} ${variable['name']}", inside[1] or inside[2]


def test_everything_that_is_read_exists_in_the_code_or_is_named_as_anothers() -> None:
    ours = {metric.name for metric in catalogue.in_code()}
    histograms = {
        f"{metric.name}{end}" for metric in catalogue.in_code() if metric.type == "histogram" for end in SUFFIXES
    }
    recorded = {recording.name for recording in RECORDINGS}
    others = foreign()
    others |= {f"{name}{end}" for name in others if name.endswith("_seconds") for end in SUFFIXES}
    for where, metric in read():
        assert metric in ours | histograms | recorded | others, f"{where} reads {metric}, which nobody makes"


def test_what_is_named_as_anothers_is_read() -> None:
    seen = {metric for _, metric in read()}
    for name in foreign():
        assert seen & {name, f"{name}_bucket", f"{name}_total"}, f"nothing reads {name}"


def test_metrics_that_nobody_shows_are_few_and_named() -> None:
    """A metric that is on no dashboard and in no alert is for people who look closer; it should be a decision."""
    seen = {metric for _, metric in read()} | {"mx_p2p_transfer_seconds_bucket"}
    shown = {m.name for m in catalogue.in_code() if {m.name, *(f"{m.name}{end}" for end in SUFFIXES)} & seen}
    assert {metric.name for metric in catalogue.in_code()} - shown == {
        "hw_network_bandwidth_utilization_peak",
        "mx_exporter_discovery_age_seconds",
        "mx_exporter_target_bad_lines_total",
        "mx_operator_clamped_total",
        "mx_p2p_metadata_lookup_failures_total",
        "mx_p2p_source_attempt_phase_seconds",
        "mx_p2p_source_selection_seconds",
        "mx_server_auth_total",
        "mx_server_backend_errors_total",
        "mx_server_backend_up",
        "mx_server_reaped_total",
        "mx_server_request_duration_seconds",
    }


def test_fleets_made_by_hand_use_the_codes_names_and_labels() -> None:
    known = {metric.name: metric for metric in catalogue.in_code() if metric.component != "selector"}
    labels = {metric.name: set(metric.labels) for metric in catalogue.in_code()}
    for name, given, _ in (*fleets.idle(), *fleets.broken()):
        base = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name)
        if base.startswith(("mx_", "hw_")) and (base in known or base in labels):
            scraped = {"job", "instance", "node", "le", "source_worker_id"}
            allowed = set().union(*(m.labels for m in catalogue.in_code() if m.name == base)) | scraped
            assert set(given) <= allowed, name
        else:
            assert base in foreign() or name == "ALERTS", name
