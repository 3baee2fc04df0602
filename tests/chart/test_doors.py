"""What the chart gives to the programs is what the programs take: flags, files, ports and paths."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.chart.helm import Helm, named_values, of_kind

DOORS = {"exporter": ["mx_exporter.cli"], "operator": ["mx_operator.cli", "run"], "server": ["mx_server.cli"]}
CALL = "import importlib, sys; sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))"


def containers(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Component to its container."""
    return {
        container["name"]: container
        for manifest in of_kind(manifests, "DaemonSet") + of_kind(manifests, "Deployment")
        for container in manifest["spec"]["template"]["spec"]["containers"]
    }


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """Component to the flags its program describes."""
    found = {}
    for component, (module, *command) in DOORS.items():
        shown = subprocess.run(
            [sys.executable, "-c", CALL, module, *command, "--help"], capture_output=True, text=True, check=True
        )
        found[component] = set(re.findall(r"^ +(--[a-z-]+)", shown.stdout, re.M))
    return found


@pytest.mark.parametrize("values", named_values())
def test_every_flag_that_is_rendered_exists(helm4: Helm, values: str, flags: dict[str, set[str]]) -> None:
    for component, container in containers(helm4.template(values)).items():
        given = {argument.partition("=")[0] for argument in container["args"] if argument.startswith("--")}
        assert given
        assert given <= flags[component]


def once(tmp_path: pathlib.Path, *further: str) -> subprocess.CompletedProcess[str]:
    """What the exporter sees on a node with nothing."""
    (tmp_path / "sys").mkdir(exist_ok=True)
    command = ["mx_exporter.cli", "--once", f"--sysfs={tmp_path / 'sys'}", "--window=0.3", "--interval=0.1", *further]
    return subprocess.run(
        [sys.executable, "-c", CALL, *command], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_sources_file_is_one_that_the_exporter_reads(helm4: Helm, tmp_path: pathlib.Path) -> None:
    data = of_kind(helm4.template("static-discovery"), "ConfigMap")[0]["data"]
    (tmp_path / "sources.yaml").write_text(data["sources.yaml"])
    seen = once(tmp_path, "--discovery=static", f"--sources={tmp_path / 'sources.yaml'}")
    assert seen.returncode == 0, seen.stderr
    assert "worker-0" in seen.stdout


def test_the_configuration_is_one_that_the_exporter_reads(helm4: Helm, tmp_path: pathlib.Path) -> None:
    data = of_kind(helm4.template("everything"), "ConfigMap")[0]["data"]
    (tmp_path / "config.yaml").write_text(data["config.yaml"])
    seen = once(tmp_path, f"--config={tmp_path / 'config.yaml'}")
    assert seen.returncode == 0, seen.stderr


def test_a_changed_configuration_restarts_the_exporters_and_changed_sources_do_not(helm4: Helm) -> None:
    def annotations(*arguments: str) -> dict[str, str]:
        daemonset = of_kind(helm4.template("static-discovery", arguments=arguments), "DaemonSet")[0]
        return dict(daemonset["spec"]["template"]["metadata"].get("annotations", {}))

    assert annotations() == annotations("--set=exporter.sources[0].pod.name=another") == {}
    one, two = (annotations(f"--set=exporter.config.cluster={name}") for name in ("one", "two"))
    assert one != two


def test_the_policy_is_one_that_the_operator_takes(helm4: Helm, tmp_path: pathlib.Path) -> None:
    for values in ("policy-observe", "policy-rendered", "server-memory", "everything"):
        policy = of_kind(helm4.template(values), "SourceLoadPolicy")[0]
        path = tmp_path / f"{values}.yaml"
        path.write_text(yaml.safe_dump(policy))
        checked = subprocess.run(
            [sys.executable, "-c", CALL, "mx_operator.cli", "check", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_policy_names_only_files_that_are_mounted(helm4: Helm) -> None:
    manifests = helm4.template("everything")
    mounts = [mount["mountPath"] for mount in containers(manifests)["operator"]["volumeMounts"]]
    policy = of_kind(manifests, "SourceLoadPolicy")[0]["spec"]
    files = [policy["server"]["tokenFile"], policy["prometheus"]["caFile"], policy["prometheus"]["bearerTokenFile"]]
    for file in files:
        assert any(file.startswith(mount + "/") for mount in mounts), file


def test_ports_are_those_that_the_programs_listen_on(helm4: Helm) -> None:
    for values in ("everything", "ipv6"):
        for container in containers(helm4.template(values)).values():
            listened = {int(a.rpartition(":")[2]) for a in container["args"] if re.match("--(metrics-)?listen=", a)}
            assert {port["containerPort"] for port in container["ports"]} == listened
