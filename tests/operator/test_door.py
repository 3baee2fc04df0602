"""The door: one clear line for every mistake, exit status 2, and a process that starts, follows its file and ends."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import signal
import socket
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml

from mx_lab.processes import Process, free_port, wait_until
from mx_operator.cli import main

POLICY = {
    "apiVersion": "sourceload.dev/v1alpha1",
    "kind": "SourceLoadPolicy",
    "metadata": {"name": "fleet"},
    "spec": {
        "server": {"address": "127.0.0.1:9"},
        "prometheus": {"url": "http://127.0.0.1:9", "timeout": "1s"},
        "signals": [{"name": "load", "query": "mx_source_load"}],
    },
}


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(POLICY))
    return path


def test_check_explains_a_policy(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(file)]) == 0
    said = capsys.readouterr().out
    assert "fleet writes the load of every source to the MX server 127.0.0.1:9" in said
    assert "a dead source stays selectable at most" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "/no/such/file.yaml"], "/no/such/file.yaml: (file): No such file"),
        (["plan", "/no/such/file.yaml"], "/no/such/file.yaml: (file): No such file"),
        (["run", "--policy", "/no/such/file.yaml"], "/no/such/file.yaml: (file): No such file"),
        (["run", "--policy", "FILE", "--listen", "nowhere"], "--listen 'nowhere': give HOST:PORT"),
        (["run", "--policy", "FILE", "--allow-endpoint", "*.svc:*"], "spec.server.address"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str], words: str, file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(file) if argument == "FILE" else argument for argument in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(words in line for line in lines)
    assert all(line.startswith("mx-operator: ") for line in lines)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MX_OPERATOR_LOG_LEVEL", "loud", "MX_OPERATOR_LOG_LEVEL=loud: write one of debug, info, warning, error"),
        ("MX_OPERATOR_LOG_FORMAT", "xml", "MX_OPERATOR_LOG_FORMAT=xml: write one of text, json"),
        ("MX_OPERATOR_SOURCE_METRICS", "1", "MX_OPERATOR_SOURCE_METRICS=1: write one of on, off"),
        ("MX_OPERATOR_LISTEN", "9600", "--listen '9600': give HOST:PORT"),
        ("MX_OPERATOR_ALLOW_ENDPOINTS", "a:1,b:2", "spec.server.address"),
    ],
)
def test_so_is_one_in_the_environment(
    variable: str,
    value: str,
    words: str,
    file: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["run", "--policy", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_every_mistake_of_a_policy_is_told_at_once(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec: Any = POLICY["spec"]
    file.write_text(yaml.safe_dump({**POLICY, "spec": {**spec, "deadband": 7, "signals": [], "mode": "wild"}}))
    assert main(["check", str(file)]) == 2
    lines = capsys.readouterr().err
    assert {"spec.deadband", "spec.signals", "spec.mode"} <= {word.rstrip(":") for word in lines.split()}


def test_a_certificate_that_cannot_be_read_is_told_by_plan(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec: Any = POLICY["spec"]
    server = {"address": "127.0.0.1:9", "tls": {"caFile": "/no/such/ca.pem"}}
    file.write_text(yaml.safe_dump({**POLICY, "spec": {**spec, "server": server}}))
    assert main(["plan", str(file)]) == 2
    assert "ca_file /no/such/ca.pem: No such file" in capsys.readouterr().err


def test_plan_says_what_is_wrong_and_fails(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(file)]) == 1
    said = capsys.readouterr().out
    assert "ServerReachable" in said
    assert "Unavailable" in said
    assert "Unreachable" in said


def test_without_a_file_and_without_a_cluster_both_ways_out_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MX_OPERATOR_POLICY", raising=False)
    assert main(["run", "--listen", "127.0.0.1:0"]) == 2
    assert "--policy FILE" in capsys.readouterr().err


def test_a_port_in_use_is_one_line_that_names_the_flag(file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["run", "--policy", str(file), "--listen", address, "--log-level", "error"]) == 2
    assert capsys.readouterr().err == (
        f"mx-operator: --listen {address}: address already in use: choose another HOST:PORT\n"
    )


def test_plan_says_host_and_cause_of_what_cannot_be_reached(
    file: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(file)]) == 1
    said = capsys.readouterr().out
    assert "Unreachable: signal load: 127.0.0.1:9: Connection refused\n" in said
    assert "Pool" not in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: COMMAND: see mx-operator --help"),
        (["run", "--polcy", "x"], "unrecognized arguments: --polcy x: see mx-operator --help"),
        (["check"], "the following arguments are required: FILE: see mx-operator check --help"),
    ],
)
def test_arguments_that_are_none_are_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"mx-operator: {complaint}\n"


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mx-operator {importlib.metadata.version('mx-source-load')}\n"


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_process_follows_its_file_and_ends_when_told(file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    port = free_port()
    command: list[str | pathlib.Path] = [pathlib.Path(sys.executable).with_name("mx-operator"), "run"]
    environment = {**os.environ, "MX_OPERATOR_POLICY": str(file), "MX_OPERATOR_LISTEN": f"127.0.0.1:{port}"}
    with Process("mx-operator", command, tmp_path / "log", env=environment) as process:
        process.wait_ready(lambda: "serving" in process.output)
        assert get(port, "/healthz") == (200, "ok\n")
        wait_until(lambda: "fleet" in json.loads(get(port, "/status")[1]), 20, "the first report")
        assert get(port, "/readyz") == (503, "no list from 127.0.0.1:9\n")
        assert 'mx_operator_dependency_up{dependency="server",policy="fleet"} 0.0' in get(port, "/metrics")[1]

        file.write_text("spec: [")
        wait_until(lambda: "the policies stay as they were" in process.output, 20, "the complaint")
        assert "fleet" in json.loads(get(port, "/status")[1])

        file.write_text(yaml.safe_dump({**POLICY, "metadata": {"name": "renamed"}}))
        wait_until(lambda: list(json.loads(get(port, "/status")[1])) == ["renamed"], 20, "the new policy")
        process.signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert "Traceback" not in process.output
