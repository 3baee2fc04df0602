"""The dashboards against Grafana's own schemas, which allow no key that they do not name."""

from __future__ import annotations

import copy
import functools
import json
import pathlib
from typing import Any

import jsonschema
import pytest

from tests.dashboards import panels

TYPES = {
    "stat": "stat",
    "timeseries": "timeseries",
    "heatmap": "heatmap",
    "table": "table",
    "state-timeline": "statetimeline",
}
#: Panel kinds whose schema has no field options of its own.
PLAIN_FIELDS = {"stat", "table"}


@functools.cache
def schemas(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    found = {
        path.name.removesuffix(".jsonschema.json"): json.loads(path.read_text())
        for path in folder.glob("*.jsonschema.json")
    }
    # Two values that may be anything in Grafana's source became "object" on their way into these schemas: a matcher
    # by name has a text, a property a number.
    definitions = found["dashboard"]["definitions"]
    definitions["MatcherConfig"]["properties"]["options"] = {}
    definitions["DynamicConfigValue"]["properties"]["value"] = {}
    return found


def errors(folder: pathlib.Path, name: str, value: Any, definition: str = "") -> list[str]:
    schema = schemas(folder)[name]
    wanted = {"$ref": f"#/definitions/{definition}", **{k: v for k, v in schema.items() if k == "definitions"}}
    validator = jsonschema.Draft7Validator(wanted if definition else schema)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(value)]


@pytest.fixture
def folder(shared: pathlib.Path) -> pathlib.Path:
    return shared / "data/grafana-jsonschema"


@pytest.mark.parametrize("name", panels.NAMES)
def test_the_shell_is_grafanas(folder: pathlib.Path, name: str) -> None:
    assert errors(folder, "dashboard", panels.board(name)) == []


@pytest.mark.parametrize("name", panels.NAMES)
def test_every_panels_options_and_queries_are_grafanas(folder: pathlib.Path, name: str) -> None:
    for panel in panels.panels(name):
        kind = TYPES[panel["type"]]
        found = errors(folder, kind, panel["options"], "Options")
        if kind not in PLAIN_FIELDS and "custom" in panel["fieldConfig"]["defaults"]:
            found += errors(folder, kind, panel["fieldConfig"]["defaults"]["custom"], "FieldConfig")
        for target in panel["targets"]:
            found += errors(folder, "prometheus", target, "Dataquery")
        assert found == [], panel["title"]


@pytest.mark.parametrize(
    ("where", "value", "named"),
    [
        (("graphTooltip",), 7, "graphTooltip"),
        (("panels", 1, "gridPos", "w"), "x", "gridPos"),
        (("panels", 1, "fieldConfig", "defaults", "unti"), "s", "unti"),
    ],
)
def test_a_mistake_is_found(folder: pathlib.Path, where: tuple[Any, ...], value: Any, named: str) -> None:
    broken = copy.deepcopy(panels.board("mx-rollout"))
    place = broken
    for step in where[:-1]:
        place = place[step]
    place[where[-1]] = value
    assert any(named in error for error in errors(folder, "dashboard", broken))


def test_a_mistake_in_options_is_found(folder: pathlib.Path) -> None:
    lines = next(panel for panel in panels.panels("mx-rollout") if panel["type"] == "timeseries")
    custom = lines["fieldConfig"]["defaults"]["custom"] | {"drawStyle": "linez"}
    assert errors(folder, "timeseries", custom, "FieldConfig") != []
    assert errors(folder, "timeseries", lines["options"] | {"legnd": 1}, "Options") != []
