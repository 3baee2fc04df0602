"""What the chart gives to the programs is what the programs take: flags, files, ports and paths."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from mx_exporter import config
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
        arguments = container.get("args", [])
        given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert given or component == "exporter"
        assert given <= flags[component]


def variables(container: dict[str, Any]) -> dict[str, str]:
    """What the pod's specification says of its environment, as far as it says it itself."""
    return {entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}


@pytest.mark.parametrize("values", named_values())
def test_the_exporters_settings_are_variables_that_it_knows(helm4: Helm, values: str) -> None:
    """Arguments are one process' own: `kubectl exec ... mx-exporter --once` would see less than the exporter."""
    exporter = containers(helm4.template(values)).get("exporter")
    if exporter is None:
        return
    given = variables(exporter)
    ours = {name for name in given if name.startswith("MX_EXPORTER_")}
    assert {"MX_EXPORTER_SYSFS", "MX_EXPORTER_DISCOVERY", "MX_EXPORTER_LISTEN"} <= ours
    assert ours <= {option.variable for option in config.OPTIONS} | {"MX_EXPORTER_CONFIG"}
    assert [argument for argument in exporter.get("args", []) if argument != "--verbose"] == []


def test_what_is_run_by_hand_in_the_exporters_container_sees_what_the_exporter_sees(
    helm4: Helm, tmp_path: pathlib.Path
) -> None:
    """`mx-exporter --once` with the container's environment and files, and nothing of its arguments."""
    manifests = helm4.template("static-discovery", arguments=["--set-json=exporter.window=0.3,exporter.interval=0.1"])
    (tmp_path / "sys").mkdir()
    sources = tmp_path / "sources.yaml"
    sources.write_text(of_kind(manifests, "ConfigMap")[0]["data"]["sources.yaml"])
    given = variables(containers(manifests)["exporter"])
    moved = {"MX_EXPORTER_SYSFS": str(tmp_path / "sys"), "MX_EXPORTER_SOURCES": str(sources)}
    assert moved.keys() <= given.keys()
    seen = run_exporter("--once", env=given | moved)
    assert seen.returncode == 0, seen.stderr
    assert "worker-0" in seen.stdout


def test_a_variable_of_the_users_own_stands_in_for_the_charts(helm: Helm) -> None:
    """Twice the same name is refused by a server-side apply."""
    given = "exporter.extraEnv[0].name=MX_EXPORTER_LISTEN,exporter.extraEnv[0].value=127.0.0.1:9500"
    env = containers(helm.template(arguments=["--set", given]))["exporter"]["env"]
    assert [entry["value"] for entry in env if entry["name"] == "MX_EXPORTER_LISTEN"] == ["127.0.0.1:9500"]
    assert len({entry["name"] for entry in env}) == len(env)


def run_exporter(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The exporter, to its end; with this environment and no other where one is given."""
    command = [sys.executable, "-c", CALL, "mx_exporter.cli", *arguments]
    path = {"PATH": os.environ["PATH"]}
    given = None if env is None else path | env
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=given)


def once(tmp_path: pathlib.Path, *further: str) -> subprocess.CompletedProcess[str]:
    """What the exporter sees on a node with nothing."""
    (tmp_path / "sys").mkdir(exist_ok=True)
    return run_exporter("--once", f"--sysfs={tmp_path / 'sys'}", "--window=0.3", "--interval=0.1", *further)


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
            said = [a for a in container.get("args", []) if re.match("--(metrics-)?listen=", a)]
            said += [value for name, value in variables(container).items() if name == "MX_EXPORTER_LISTEN"]
            listened = {int(address.rpartition(":")[2]) for address in said}
            assert {port["containerPort"] for port in container["ports"]} == listened
