"""Every values file through lint and template with both versions of Helm, validated as the API server would."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from tests.chart import helm as programs
from tests.chart import schemas
from tests.chart.helm import CHART, Helm, HelmError, named_values, of_kind

OWN_CRD = CHART / "crd" / "sourceloadpolicies.yaml"
ODD_NAMES = ["a", "1st", "rel.with.dots", "9.9", "mx-source-load", "x" * 53, "9" * 53, "my-mx-source-load-blue"]
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@pytest.fixture(scope="session")
def crds(shared: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Our CRD and the Prometheus Operator's."""
    return (OWN_CRD, *sorted((shared / "data" / "crds").glob("*.yaml")))


def problems(manifests: list[dict[str, Any]], crds: tuple[pathlib.Path, ...]) -> list[str]:
    versions = (schemas.OLDEST, schemas.NEWEST)
    return [
        f"{version}: {error}" for version in versions for m in manifests for error in schemas.errors(m, version, crds)
    ]


@pytest.mark.parametrize("values", named_values())
def test_lint_is_content(helm: Helm, values: str) -> None:
    said = helm.run("lint", "--strict", str(CHART), f"--values={programs.VALUES / values}.yaml")
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize("values", named_values())
def test_what_is_rendered_is_valid_on_the_oldest_and_the_newest_kubernetes(
    helm4: Helm, values: str, crds: tuple[pathlib.Path, ...]
) -> None:
    manifests = helm4.template(values)
    assert manifests
    assert problems(manifests, crds) == []


def test_the_validation_sees_a_misspelt_field_in_every_kind_of_object(
    helm4: Helm, crds: tuple[pathlib.Path, ...]
) -> None:
    manifests = helm4.template("everything")
    for manifest in manifests:
        inner = "data" if manifest["kind"] == "ConfigMap" else "spec"
        target = manifest[inner] if isinstance(manifest.get(inner), dict) and inner == "spec" else manifest
        target["mispelt"] = True
    found = problems(manifests, crds)
    assert len({line.split(": ")[1] for line in found}) == len({(m["kind"], m["metadata"]["name"]) for m in manifests})


@pytest.mark.parametrize("values", named_values())
def test_both_versions_of_helm_render_the_same_objects(values: str, request: pytest.FixtureRequest) -> None:
    three, four = programs.find(3), programs.find(4)
    if three is None or four is None:
        pytest.skip("needs Helm 3 and Helm 4: run scripts/helm")
    assert three.template(values) == four.template(values)


@pytest.mark.parametrize("release", ODD_NAMES)
def test_every_name_fits_whatever_the_release_is_called(
    helm4: Helm, release: str, crds: tuple[pathlib.Path, ...]
) -> None:
    manifests = helm4.template("everything", release=release, namespace="42", arguments=["--set", "crds.enabled=false"])
    assert problems(manifests, crds) == []
    for service in of_kind(manifests, "Service"):
        name = service["metadata"]["name"]
        assert DNS_LABEL.fullmatch(name)
        assert len(name) <= 63
    for manifest in manifests:
        assert len(manifest["metadata"]["name"]) <= 253
        for value in manifest["metadata"].get("labels", {}).values():
            assert len(value) <= 63


def test_two_releases_of_one_name_share_no_cluster_scoped_object(helm4: Helm) -> None:
    def cluster_scoped(namespace: str) -> set[tuple[str, str]]:
        manifests = helm4.template("own-accounts", "everything", namespace=namespace)
        return {
            (m["kind"], m["metadata"]["name"]) for m in manifests if m["kind"] in ("ClusterRole", "ClusterRoleBinding")
        }

    assert cluster_scoped("one") & cluster_scoped("two") == set()


def test_as_part_of_an_umbrella_chart(helm: Helm, tmp_path: pathlib.Path) -> None:
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "mx-source-load").symlink_to(CHART)
    dependency = "{name: mx-source-load, version: 0.1.0, condition: mx-source-load.enabled}"
    (tmp_path / "Chart.yaml").write_text(
        f"apiVersion: v2\nname: umbrella\nversion: 1.0.0\ndependencies: [{dependency}]"
    )
    (tmp_path / "values.yaml").write_text(
        "global: {imageRegistry: r.example.com, somebodyElses: {a: 1}}\n"
        "mx-source-load: {enabled: true, operator: {enabled: false}}\n"
    )
    manifests = helm.template(chart=tmp_path, release="up")
    image = of_kind(manifests, "DaemonSet")[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "r.example.com/mx-source-load/exporter:0.1.0"
    assert of_kind(manifests, "Deployment") == []
    with pytest.raises(HelmError, match="operatr"):
        helm.template(chart=tmp_path, arguments=["--set", "mx-source-load.operatr.enabled=true"])


def test_every_label_is_there_once_and_ours_win(helm4: Helm) -> None:
    manifests = helm4.template("clashing-labels")
    daemonset = of_kind(manifests, "DaemonSet")[0]
    pod = daemonset["spec"]["template"]["metadata"]["labels"]
    assert pod["team"] == "nodes"
    assert pod["app.kubernetes.io/component"] == "exporter"
    assert daemonset["spec"]["selector"]["matchLabels"].items() <= pod.items()
    monitor = of_kind(manifests, "PodMonitor")[0]["metadata"]["labels"]
    assert (monitor["team"], monitor["release"]) == ("monitors", "stack")
    assert monitor["app.kubernetes.io/part-of"] == "mx-source-load"
    text = helm4.run("template", "mx", str(CHART), f"--values={programs.VALUES / 'clashing-labels.yaml'}")
    for block in re.findall(r"labels:\n((?: +\S+: .*\n)+)", text):
        keys = re.findall(r"^ +(\S+):", block, re.M)
        assert len(keys) == len(set(keys))


def test_services_and_monitors_select_the_pods_they_are_for(helm4: Helm) -> None:
    manifests = helm4.template("everything")
    pods = {
        labels["app.kubernetes.io/component"]: labels
        for m in of_kind(manifests, "Deployment") + of_kind(manifests, "DaemonSet")
        for labels in [m["spec"]["template"]["metadata"]["labels"]]
    }
    assert set(pods) == {"exporter", "operator", "server"}
    ports = {
        m["metadata"]["labels"]["app.kubernetes.io/component"]: {p["name"] for c in containers for p in c["ports"]}
        for m in of_kind(manifests, "Deployment") + of_kind(manifests, "DaemonSet")
        for containers in [m["spec"]["template"]["spec"]["containers"]]
    }
    for service in of_kind(manifests, "Service"):
        component = service["metadata"]["labels"]["app.kubernetes.io/component"]
        assert service["spec"]["selector"].items() <= pods[component].items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[component]
    for monitor in of_kind(manifests, "ServiceMonitor"):
        component = monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        service = next(
            s
            for s in of_kind(manifests, "Service")
            if s["metadata"]["labels"]["app.kubernetes.io/component"] == component
        )
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert monitor["spec"]["namespaceSelector"]["matchNames"] == [service["metadata"]["namespace"]]
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}
