"""Values: mistakes are refused with a line that names them, and every value is described."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.chart import derived
from tests.chart.helm import CHART, Helm, HelmError, of_kind

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
ENDPOINTS = "policy.spec.server.address=mx:8001,policy.spec.prometheus.url=http://p:9090"
MISTAKES = [
    ("exporter.port=abc", r"exporter.port"),
    ("exporter.podmonitor.enabled=true", r"podmonitor"),
    ("exporter.discovery=kube", r"exporter.discovery"),
    ("exporter.image.digest=latest", r"exporter.image.digest"),
    ("exporter.podMonitor.interval=30 secs", r"exporter.podMonitor.interval"),
    ("operator.replicas=2", r"replicas"),
    ("operator.allowedEndpoints[0]=http://prometheus:9090/", r"operator.allowedEndpoints.0"),
    ("exporter.podMonitor.enabled=true,exporter.serviceMonitor.enabled=true", r"scraped twice; keep podMonitor"),
    ("policy.spec.server.address=mx:8001", r"policy.spec.prometheus.url is missing: give the base URL"),
    ("policy.spec.prometheus.url=http://p:9090", r"policy.spec.server.address is missing: give host:port"),
    (f"{ENDPOINTS},policy.spec.deadband=0.1", r"policy.spec.deadband"),
    ("policy.spec.mod=write", r"policy.spec.*mod"),
    (f"{ENDPOINTS},policy.spec.mode=wirte", r"policy.spec.mode"),
    ("policy.spec.prometheus.url=prometheus:9090", r"policy.spec.prometheus.url"),
    ("policy.spec.server.address=foo", r"policy.spec.server.address"),
    (f"{ENDPOINTS},policy.spec.interval=2", r"policy.spec.interval"),
    (f"{ENDPOINTS},policy.spec.priority=2000000", r"policy.spec.priority"),
    (f"{ENDPOINTS},policy.spec.server.maxWritesPerSecond=0", r"policy.spec.server.maxWritesPerSecond"),
    (f"{ENDPOINTS},policy.spec.signals[0].nam=x", r"policy.spec.signals.0"),
    (f"{ENDPOINTS},policy.spec.prometheus.certFile=/a", r"policy.spec.prometheus.*keyFile"),
    ("exporter.config.windw=3", r"exporter.config.*windw"),
    ("exporter.config.scrape.timeot=3", r"exporter.config.scrape.*timeot"),
    # The chart's own value says it, by a variable that goes before the file.
    ("exporter.config.window=3", r"exporter.config.*window"),
    ("operator.serverToken.enabled=true", r"operator.serverToken.audience is missing"),
    ("server.enabled=true,server.replicas=2", r"server.replicas must be 1 with server.backend=memory"),
    ("server.enabled=true,server.backend=redis", r"server.redis.url is missing with server.backend=redis"),
    ("clients.podMonitor.enabled=true", r"clients.podMonitor.selector is missing"),
    ("exporter.affinity.nodeAfinity.a=b", r"exporter.affinity.*nodeAfinity"),
    ("networkPolicy.from.exporter[0].podSelectr.a=b", r"networkPolicy.from.exporter.0.*podSelectr"),
    ("networkPolicy.operatorEgress.rules[0].port=1", r"networkPolicy.operatorEgress.rules.0.*port"),
    ("listenHost=::", r"listenHost"),
    ("imagePullSecrets[0].nam=x", r"imagePullSecrets.0"),
    (
        "server.enabled=true,server.security.enabled=true,server.security.audiences=null",
        r"server.security.audiences is",
    ),
    ("exporter.namespace.create=true", r"exporter.namespace.create needs exporter.namespace.name"),
    ("exporter.namespace.create=true,exporter.namespace.name=monitoring", r"other than the release's own"),
    ("server.enabled=true,server.port=9401", r"server.port and server.metricsPort are both 9401"),
]


@pytest.mark.parametrize(("mistake", "said"), MISTAKES)
def test_a_mistake_is_refused_with_a_line_that_names_it(helm: Helm, mistake: str, said: str) -> None:
    with pytest.raises(HelmError) as refused:
        helm.template(arguments=["--set", mistake])
    # Helm 3 writes exporter.port, Helm 4 /exporter/port.
    assert re.search(said, str(refused.value).replace("'/", "").replace("/", "."))


@pytest.mark.parametrize(
    "fine", ["global.anything.at.all=1", "enabled=true", "server.enabled=true", ENDPOINTS, "policy.create=false"]
)
def test_what_a_parent_chart_sets_is_no_mistake(helm: Helm, fine: str) -> None:
    assert helm.template(arguments=["--set", fine])


def test_pull_secrets_are_names_or_objects_as_other_charts_have_them(helm: Helm) -> None:
    """An umbrella chart's global.imagePullSecrets are objects for its other parts."""
    given = "global.imagePullSecrets[0].name=everywhere,global.imagePullSecrets[1]=plain,imagePullSecrets[0].name=here"
    manifests = helm.template(arguments=["--set", given])
    for manifest in (*of_kind(manifests, "Deployment"), *of_kind(manifests, "DaemonSet")):
        secrets = manifest["spec"]["template"]["spec"]["imagePullSecrets"]
        assert secrets == [{"name": "everywhere"}, {"name": "plain"}, {"name": "here"}]


def objects(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every schema of an object that lists its properties."""
    if isinstance(schema, list):
        return [found for item in schema for found in objects(item, path)]
    if not isinstance(schema, dict):
        return []
    here = [(path, schema)] if isinstance(schema.get("properties"), dict) and "type" in schema else []
    return here + [found for key, value in schema.items() for found in objects(value, f"{path}/{key}")]


def test_the_schema_is_strict_inside_and_open_where_others_write() -> None:
    free = {"/properties/global"}
    for path, schema in objects(SCHEMA):
        if not any(path.startswith(top) for top in free):
            assert schema.get("additionalProperties") is False, path
    assert SCHEMA["properties"]["global"].get("additionalProperties", True) is True


def test_what_others_decide_is_as_they_say_it() -> None:
    """The CRD and the exporter; `python -m tests.chart.derived` writes it."""
    assert derived.written(copy.deepcopy(SCHEMA)) == SCHEMA
    assert {"scrape", "tls", "auth", "otlp", "limits", "resource", "kubernetes", "peak"} <= set(
        derived.exporter_config()["properties"]
    )
    assert derived.policy_spec()["properties"]["server"]["properties"]["maxWritesPerSecond"]["minimum"] == 0.1


def leaves(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict) and value:
        return {leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}" if path else key)}
    return {path}


def test_every_value_is_described() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = set(re.findall(r"^\| `([^`]+)` \|", (CHART / "README.md").read_text(), re.M))
    covered = {leaf for leaf in leaves(values) for row in rows if leaf == row or leaf.startswith(row + ".")}
    assert leaves(values) - covered == set()


def test_the_readme_is_what_values_yaml_says() -> None:
    script = CHART.parents[1] / "scripts" / "chart-readme"
    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_values_that_the_documentation_names_exist() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = (CHART.parents[1] / "docs" / "operations.md").read_text()
    said = set(re.findall(rf"(?<![\w./-])((?:{'|'.join(values)})(?:\.\w+)+)", text))
    # A policy's fields and a label's name are no values of ours; server.maxWritesPerSecond is a policy's.
    ours = {path for path in said if not path.startswith(("policy.spec.", "monitoring.labels.", "server.max"))}
    ours = {path for path in ours if not path.endswith(".md")}
    assert len(ours) > 15
    for path in ours:
        here = values
        for key in path.split("."):
            assert key in here, path
            here = here[key]
