"""NOTES.txt says what will not work before somebody looks for it, and the next command to run."""

from __future__ import annotations

import pathlib

import pytest

from tests.chart.helm import CHART, VALUES, Helm


@pytest.fixture
def notes(helm4: Helm, tmp_path: pathlib.Path) -> object:
    """Notes for a values file; Helm 4 alone renders them without a cluster."""

    def render(values: str, *more: str) -> str:
        arguments = ["install", "mx", str(CHART), "--namespace=mx", "--dry-run=client"]
        return helm4.run(*arguments, f"--values={VALUES / values}.yaml", *more, home=tmp_path).partition("NOTES:\n")[2]

    return render


def test_defaults_say_that_nothing_is_scraped_and_that_there_is_no_policy(notes) -> None:  # type: ignore[no-untyped-def]
    text = notes("defaults")
    assert "! NOTHING SCRAPES THE EXPORTERS YET" in text
    assert "--set exporter.podMonitor.enabled=true" in text
    assert "! THERE IS NO POLICY YET" in text
    assert "--set policy.spec.server.address=" in text
    assert "kubernetes.io/os=linux (tolerates nvidia.com/gpu)" in text
    assert "kubectl -n mx get daemonset mx-mx-source-load-exporter" in text


def test_without_pod_resources_the_variables_that_name_nics_are_told(notes) -> None:  # type: ignore[no-untyped-def]
    """Annotations choose an engine's page and nothing else: none can name a NIC."""
    text = notes("defaults", "--set=exporter.podResources.enabled=false")
    assert "only pods that name their NICs (MX_RDMA_NIC_PIN or UCX_NET_DEVICES)" in text
    assert "annotation" not in text
    assert "MX_RDMA_NIC_PIN" not in notes("defaults")


def test_a_first_installation_is_told_how_to_look_and_then_how_to_write(notes) -> None:  # type: ignore[no-untyped-def]
    text = notes("policy-observe")
    assert "YET" not in text
    assert "Scraped every 5s through a PodMonitor" in text
    assert "no label" not in text
    assert "kubectl get slp default -o wide" in text
    assert """kubectl patch slp default --type merge -p '{"spec":{"mode":"write"}}'""" in text


def test_a_writing_policy_is_told_of_observe(notes) -> None:  # type: ignore[no-untyped-def]
    text = notes("server-memory")
    assert """-p '{"spec":{"mode":"observe"}}'""" in text
    assert "a restart forgets the sources until their next heartbeat" in text


@pytest.mark.parametrize("guard", ["server.security.enabled=true", "networkPolicy.enabled=true"])
def test_a_server_that_is_open_to_every_pod_is_told(notes, guard: str) -> None:  # type: ignore[no-untyped-def]
    said = "! Every pod that reaches it can register sources and set loads"
    assert said in notes("server-memory")
    assert said not in notes("server-memory", f"--set={guard}")
    assert said not in notes("defaults")


def test_a_monitor_that_nobody_selects_is_told(notes) -> None:  # type: ignore[no-untyped-def]
    assert "! It carries no label of your Prometheus" in notes("two-namespaces")


def test_images_of_no_registry_are_told(notes) -> None:  # type: ignore[no-untyped-def]
    said = "! NO IMAGE REGISTRY IS SET"
    assert f"{said}: mx-source-load/exporter, mx-source-load/operator will be looked for on Docker Hub" in notes(
        "defaults"
    )
    assert said not in notes("defaults", "--set=global.imageRegistry=registry.example.com")
    each = "--set=exporter.image.registry=a.example.com,operator.image.registry=b.example.com"
    assert said not in notes("defaults", each)


def test_the_upgrade_that_is_told_keeps_values_and_takes_the_newer_charts_defaults(notes) -> None:  # type: ignore[no-untyped-def]
    """As docs/operations.md says it; --reuse-values would leave out what the newer chart added."""
    assert "--reset-then-reuse-values" in notes("defaults")
    assert "--reuse-values" not in notes("defaults")
    page = (CHART.parents[1] / "docs" / "operations.md").read_text()
    commands = [line for line in page.splitlines() if line.startswith("helm upgrade")]
    assert commands
    assert all("--reset-then-reuse-values" in line for line in commands)


def test_alerts_whose_links_lead_nowhere_are_told(notes) -> None:  # type: ignore[no-untyped-def]
    told, rules = "set\n  prometheusRule.runbookBaseUrl", "--set=prometheusRule.enabled=true"
    assert told in notes("defaults", rules)
    assert told not in notes("defaults", rules, "--set=prometheusRule.runbookBaseUrl=https://wiki.example.com/mx")
    assert told not in notes("defaults")
