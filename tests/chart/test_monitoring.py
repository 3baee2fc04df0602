"""Rules and dashboards reach the cluster as they were generated, and changes by value do what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART, Helm, HelmError, of_kind

RULES = CHART / "rules" / "mx-source-load.yaml"


def groups(helm: Helm, *arguments: str) -> list[dict[str, Any]]:
    manifests = helm.template(arguments=["--set", "prometheusRule.enabled=true", *arguments])
    return list(of_kind(manifests, "PrometheusRule")[0]["spec"]["groups"])


def alerts(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in found for rule in group["rules"] if "alert" in rule}


def test_rules_are_those_of_the_file(helm: Helm) -> None:
    assert groups(helm) == yaml.safe_load(RULES.read_text())["groups"]


def test_an_alert_is_changed_by_its_name(helm4: Helm) -> None:
    found = alerts(
        groups(
            helm4,
            "--set=prometheusRule.alertLabels.team=platform",
            "--set=prometheusRule.runbookBaseUrl=https://runbooks.example.com/mx/",
            "--set=prometheusRule.alerts.MxSourceHot.for=30m",
            "--set=prometheusRule.alerts.MxSourceHot.labels.severity=info",
            "--set=prometheusRule.alerts.MxSourceHot.expr=mx_source_load > 0.99",
            "--set=prometheusRule.alerts.MxCoverageLow.disabled=true",
        )
    )
    hot = found["MxSourceHot"]
    assert (hot["for"], hot["expr"]) == ("30m", "mx_source_load > 0.99")
    assert hot["labels"] | {"severity": "info", "team": "platform"} == hot["labels"]
    assert hot["annotations"]["runbook_url"] == "https://runbooks.example.com/mx/MxSourceHot.md"
    assert "MxCoverageLow" not in found
    untouched = alerts(yaml.safe_load(RULES.read_text())["groups"])
    assert found["MxOperatorAbsent"]["expr"] == untouched["MxOperatorAbsent"]["expr"]
    assert len(found) == len(untouched) - 1


def test_an_alert_that_does_not_exist_cannot_be_changed(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"prometheusRule.alerts.MxSourceHott: there is no such alert; there are .*Mx"):
        groups(helm, "--set=prometheusRule.alerts.MxSourceHott.disabled=true")


def test_dashboards_arrive_as_they_are(helm: Helm) -> None:
    manifests = helm.template(arguments=["--set", "dashboards.enabled=true", "--set", "dashboards.namespace=grafana"])
    files = sorted((CHART / "dashboards").glob("*.json"))
    assert files
    found = {name: text for m in of_kind(manifests, "ConfigMap") for name, text in m["data"].items()}
    assert {name: json.loads(text) for name, text in found.items()} == {
        path.name: json.loads(path.read_text()) for path in files
    }
    for manifest in of_kind(manifests, "ConfigMap"):
        assert manifest["metadata"]["namespace"] == "grafana"
        assert manifest["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert manifest["metadata"]["annotations"] == {"grafana_folder": "ModelExpress"}
        assert len(json.dumps(manifest)) < 1_000_000, "an object of the API server holds 1 MiB"


def test_the_crd_fits_into_the_annotation_of_a_client_side_apply() -> None:
    assert len(json.dumps(yaml.safe_load((CHART / "crd" / "sourceloadpolicies.yaml").read_text()))) < 262_144
