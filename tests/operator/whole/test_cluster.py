"""The operator as its users run it: a process, policies as resources on a real API server, loads written."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
import urllib.request
from typing import Any

import pytest
import yaml

from mx_lab.processes import Process, free_port, wait_until
from mx_operator.core.marks import is_marked
from tests.operator.parts.mx import FakeMx, serving
from tests.operator.parts.prometheus_http import fake_prometheus, says
from tests.operator.parts.running import until
from tests.parts.kubernetes import ADMIN_TOKEN, ApiServer

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")

CRD = pathlib.Path(__file__).parents[3] / "charts" / "mx-source-load" / "crd" / "sourceloadpolicies.yaml"
PATH = "/apis/sourceload.dev/v1alpha1/sourceloadpolicies"


@pytest.fixture
def kubeconfig(api_server: ApiServer, tmp_path: pathlib.Path) -> pathlib.Path:
    api_server.apply(CRD.read_text())
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [
            {"name": "test", "cluster": {"server": api_server.url, "certificate-authority": str(api_server.ca_file)}}
        ],
        "users": [{"name": "test", "user": {"token": ADMIN_TOKEN}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    wait_until(lambda: bool(served(api_server)), 30, "the kind is served")
    for item in served(api_server)["items"]:
        api_server.request("DELETE", f"{PATH}/{item['metadata']['name']}")
    return path


def served(api: ApiServer) -> Any:
    try:
        return api.request("GET", PATH)
    except OSError:
        return None


def resource(address: str, url: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "sourceload.dev/v1alpha1",
        "kind": "SourceLoadPolicy",
        "metadata": {"name": "whole"},
        "spec": {
            "server": {"address": address},
            "prometheus": {"url": url, "timeout": "1s"},
            "signals": [{"name": "load", "query": "mx_source_load"}],
            "interval": "1s",
            "sourceHeartbeat": "5s",
            **spec,
        },
    }


async def test_a_policy_is_served_shown_switched_and_gone(
    api_server: ApiServer, kubeconfig: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    fake, port = FakeMx(), free_port()
    fake.heartbeat_every = 5.0
    source = fake.add(1)
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}
    command: list[str | pathlib.Path] = [pathlib.Path(sys.executable).with_name("mx-operator"), "run"]
    command += ["--listen", f"127.0.0.1:{port}", "--log-format", "json"]

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def conditions() -> dict[str, str]:
        status = api_server.request("GET", f"{PATH}/whole").get("status") or {}
        return {condition["type"]: condition["status"] for condition in status.get("conditions") or []}

    async def beaten() -> None:
        for _ in range(12):
            fake.heartbeat(source)
            await asyncio.sleep(1.3)
            if is_marked(source.load):
                return
        raise AssertionError("never written")

    async with serving(fake) as address:
        with (
            fake_prometheus(says({"10.0.0.1": 0.7})) as prometheus,
            Process("mx-operator", command, tmp_path / "log", env=environment) as process,
        ):
            await until(lambda: "serving" in process.output, "the start", 20)
            api_server.request("POST", PATH, resource(address, prometheus.url))
            await beaten()
            await until(lambda: conditions().get("Ready") == "True", "the status", 20)
            assert json.loads(get("/status"))["policies"][0]["sources"]["matched"] == 1
            assert 'mx_operator_sources{policy="whole",state="listed"} 1.0' in get("/metrics")

            merge = "application/merge-patch+json"
            api_server.request("PATCH", f"{PATH}/whole", {"spec": {"mode": "observe"}}, content=merge)
            await asyncio.sleep(2)
            count = len(fake.writes)
            fake.heartbeat(source)
            await asyncio.sleep(3)
            assert len(fake.writes) == count, "observing"

            api_server.request("DELETE", f"{PATH}/whole")
            await until(lambda: "policy=" not in get("/metrics"), "the policy's end", 20)
            assert process.running
    assert "Traceback" not in process.output
    assert all(json.loads(line) for line in process.output.splitlines() if line.startswith("{"))
