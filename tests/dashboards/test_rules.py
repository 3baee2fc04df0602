"""The rules as Prometheus takes them: lint, a firing and a quiet case for each, all words said, each page there."""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml

from dashboards.rules.alerts import ALERTS
from dashboards.rules.recordings import RECORDINGS
from tests.dashboards import panels
from tests.dashboards.history import ROOT, RULES
from tests.parts.tools import tool

CASES = pathlib.Path(__file__).with_name("rules_test.yaml")
RESOURCE = ROOT / "dashboards/generated/prometheusrule.yaml"


@pytest.fixture(params=["debian", "3"])
def promtool(request: pytest.FixtureRequest) -> str:
    found = shutil.which("promtool") if request.param == "debian" else tool("promtool")
    if found is None:
        pytest.skip(f"no promtool {request.param}: run scripts/{'setup' if request.param == 'debian' else 'tools'}")
    return str(found)


def run(*command: str | pathlib.Path) -> tuple[int, str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@functools.cache
def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(CASES.read_text())["tests"]
    return found


def test_promtool_finds_nothing_to_complain_about(promtool: str) -> None:
    status, said = run(promtool, "check", "rules", "--lint=all", RULES)
    assert status == 0, said
    assert f"{len(ALERTS) + len(RECORDINGS)} rules found" in said


def test_every_case_is_as_promtool_evaluates_it(promtool: str) -> None:
    status, said = run(promtool, "test", "rules", CASES)
    assert status == 0, said


def test_a_changed_word_fails_the_cases(tmp_path: pathlib.Path) -> None:
    head, tests = CASES.read_text().replace("../../", f"{ROOT}/").split("tests:\n", 1)
    first_two = "- name" + "- name".join(tests.split("- name")[3:5])
    changed = first_two.replace("went to sources", "went off")
    assert changed != first_two
    (tmp_path / "cases.yaml").write_text(f"{head}tests:\n{changed}")
    status, said = run("promtool", "test", "rules", tmp_path / "cases.yaml")
    assert status != 0, said
    assert "MxPullsOnBusySource" in said


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_every_alert_has_a_firing_and_a_quiet_case(alert: Any) -> None:
    asked = [one for case in cases() for one in case.get("alert_rule_test", ()) if one["alertname"] == alert.name]
    firing = [expected for one in asked for expected in one["exp_alerts"]]
    assert firing, "no case in which it fires"
    assert any(not one["exp_alerts"] for one in asked), "no case in which it is quiet"
    for expected in firing:
        assert expected["exp_labels"]["severity"] == alert.severity.value
        assert set(expected["exp_annotations"]) == {"summary", "description", "runbook_url"}


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: f"{one.name} {dict(one.labels).get('engine', '')}")
def test_every_recording_has_a_value_and_a_case_without_one(recording: Any) -> None:
    asked = [one for case in cases() for one in case.get("promql_expr_test", ()) if one["expr"] == recording.name]
    engine = dict(recording.labels).get("engine", "")
    samples = [sample for one in asked for sample in one["exp_samples"]]
    assert any(sample["value"] > 0 and f'engine="{engine}"' in sample["labels"] + 'engine=""' for sample in samples)
    assert any(all(sample["value"] == 0 for sample in one["exp_samples"]) for one in asked)


@pytest.mark.parametrize("rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: rule["alert"])
def test_every_alert_says_what_with_which_value_and_where_to_read_on(rule: dict[str, Any]) -> None:
    notes = rule["annotations"]
    assert re.fullmatch(r"Mx[A-Z]\w+", rule["alert"])
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert "{{" not in notes["summary"]
    assert notes["summary"].endswith(".")
    assert "$value" in notes["description"]
    page = ROOT / notes["runbook_url"]
    assert page.name == f"{rule['alert']}.md"
    text = page.read_text()
    for heading in ("## What it means", "## Confirm", "## Do"):
        assert heading in text, f"{page.name} lacks {heading!r}"
    assert text.startswith(f"# {rule['alert']}\n")


def test_every_page_belongs_to_an_alert() -> None:
    pages = {page.stem for page in (ROOT / "docs/runbooks").glob("Mx*.md")}
    assert pages == {alert.name for alert in ALERTS}


def test_panels_and_pages_that_a_runbook_names_exist() -> None:
    titles = {panel["title"] for name in panels.NAMES for panel in panels.panels(name)}
    boards = {panels.board(name)["title"] for name in panels.NAMES}
    columns = {"Limit"}
    for page in (ROOT / "docs/runbooks").glob("Mx*.md"):
        text = page.read_text()
        for bold in re.findall(r"\*\*([^*]+)\*\*", text):
            assert bold in boards, f"{page.name}: {bold}"
        for named in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text):
            title = " ".join(named.split()).removesuffix(", to before")
            assert title in titles | columns, f"{page.name}: {title}"
        for link in re.findall(r"\]\((\w+)\.md\)", text):
            assert (page.parent / f"{link}.md").exists(), link


def test_both_forms_hold_the_same_rules() -> None:
    resource = yaml.safe_load(RESOURCE.read_text())
    assert resource["spec"] == yaml.safe_load(RULES.read_text())


def test_the_resource_is_what_the_operator_of_prometheus_takes(shared: pathlib.Path) -> None:
    crd = yaml.safe_load((shared / "data/crds/crd-prometheusrules.yaml").read_text())
    schema = _strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    resource = yaml.safe_load(RESOURCE.read_text())
    jsonschema.validate(resource, schema)
    resource["spec"]["groups"][0]["rules"][0]["recrod"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="recrod"):
        jsonschema.validate(resource, schema)


def _strict(schema: Any) -> Any:
    """The schema with nothing allowed that it does not name, as `kubectl apply` would have it."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if isinstance(made.get("pattern"), str):  # Go allows flags inside a pattern
        made["pattern"] = made["pattern"].replace("^(?i)", "(?i)^")
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("type", None)
        made["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "properties" in made and "metadata" not in made.get("properties", {}):
        made.setdefault("additionalProperties", False)
    return made
