"""Kubernetes discovery against a real API server, as an account that may do what it needs and nothing else."""

from __future__ import annotations

import os
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from mx_exporter.discovery.kubernetes import KubernetesDiscovery
from mx_exporter.discovery.settings import KubernetesSettings
from mx_exporter.model import Endpoint, Pod, Source
from mx_lab.processes import Process, free_port
from tests.exporter.discovery.gate import Gate
from tests.exporter.trees import nodes
from tests.parts import kubernetes

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")

NAMESPACE, ACCOUNT, NODE = "exporter-discovery", "mx-exporter", "node-a"
#: What the chart grants, so that what is shipped is what is tried.
RULES = yaml.safe_load((pathlib.Path(__file__).parents[3] / "charts/mx-source-load/rbac/exporter.yaml").read_text())
ROLE = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "mx-exporter"},
        "rules": RULES["discovery"],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "mx-exporter"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mx-exporter"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    },
]


class Cluster:
    """The server, a gate before it, and what a test does to its pods."""

    def __init__(self, api: kubernetes.ApiServer, gate: Gate, token_file: pathlib.Path) -> None:
        self.api, self.gate, self.token_file = api, gate, token_file

    def discovery(self, node: str = NODE, **more: Any) -> KubernetesDiscovery:
        url = f"https://127.0.0.1:{self.gate.port}"
        settings = KubernetesSettings(node, url, self.token_file, self.api.ca_file, **more)
        return KubernetesDiscovery(settings)

    def add(self, name: str, ip: str, node: str = NODE, **more: Any) -> None:
        container: dict[str, Any] = {"name": "engine", "image": "engine", "ports": [{"containerPort": 8000}]}
        container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        metadata = {"name": name, "annotations": more.get("annotations", {}), "labels": more.get("labels", {})}
        spec = {"nodeName": node, "containers": [container | more.get("container", {})]}
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        self.api.request("POST", pods, {"metadata": metadata, "spec": spec})
        if more.get("runs", True):
            self.status(name, "Running", ip)

    def status(self, name: str, phase: str, ip: str) -> None:
        body = {"status": {"phase": phase, "podIP": ip, "podIPs": [{"ip": ip}]}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status"
        self.api.request("PATCH", path, body, content="application/merge-patch+json")

    def delete(self, name: str) -> None:
        self.api.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.ApiServer]:
    """A server of our own: these tests kill it."""
    with kubernetes.api_server(tmp_path_factory.mktemp("discovery-api")) as server:
        server.service_account(NAMESPACE, ACCOUNT)
        server.apply(ROLE)
        yield server


@pytest.fixture
def cluster(api: kubernetes.ApiServer, tmp_path: pathlib.Path) -> Iterator[Cluster]:
    token_file = tmp_path / "token"
    token_file.write_text(api.service_account(NAMESPACE, ACCOUNT))
    with Gate(api.port) as gate:
        cluster = Cluster(api, gate, token_file)
        yield cluster
    for pod in api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]:
        cluster.delete(pod["metadata"]["name"])


@pytest.fixture
def watching(cluster: Cluster) -> Iterator[KubernetesDiscovery]:
    discovery = cluster.discovery()
    discovery.start()
    yield discovery
    discovery.stop()


def names(discovery: KubernetesDiscovery) -> list[str]:
    return [source.pod.name for source in discovery.sources()]


def wait(condition: Callable[[], object], seconds: float = 10.0) -> float:
    """Wait until it holds; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "did not come true"
        time.sleep(0.02)
    return time.monotonic() - began


def test_lists_this_node_s_sources_and_follows_them(cluster: Cluster, watching: KubernetesDiscovery) -> None:
    cluster.add("one", "10.0.0.1")
    cluster.add("elsewhere", "10.0.1.1", node="node-b")
    wait(lambda: names(watching) == ["one"])
    uid = cluster.api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/one")["metadata"]["uid"]
    assert watching.sources() == (Source(Pod(NAMESPACE, "one", uid, "10.0.0.1"), (Endpoint(8000),)),)
    cluster.add("two", "10.0.0.2", container={"env": [{"name": "UCX_NET_DEVICES", "value": "mlx5_0:1"}]})
    wait(lambda: names(watching) == ["one", "two"])
    assert watching.sources()[1].nic_devices == ("mlx5_0:1",)
    cluster.delete("one")
    assert wait(lambda: names(watching) == ["two"]) < 2
    cluster.status("two", "Succeeded", "10.0.0.2")
    wait(lambda: names(watching) == [])


def test_annotations_change_and_ignore_takes_effect_at_once(cluster: Cluster, watching: KubernetesDiscovery) -> None:
    cluster.add("one", "10.0.0.1", annotations={"sourceload.dev/port": "9999", "sourceload.dev/scheme": "https"})
    wait(lambda: watching.sources())
    assert watching.sources()[0].endpoints == (Endpoint(9999, None, "https"),)
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/one"
    body = {"metadata": {"annotations": {"sourceload.dev/ignore": "true"}}}
    cluster.api.request("PATCH", path, body, content="application/merge-patch+json")
    wait(lambda: not watching.sources())


def test_a_selector_chooses_pods_without_an_accelerator(cluster: Cluster) -> None:
    bare: dict[str, Any] = {"resources": {"limits": {}}}
    cluster.add("chosen", "10.0.0.1", labels={"app": "llm"}, container=bare)
    cluster.add("other", "10.0.0.2", labels={"app": "web"}, container=bare)
    discovery = cluster.discovery(pod_selector="app=llm")
    discovery.start()
    wait(lambda: names(discovery) == ["chosen"])
    discovery.stop()


def test_keeps_what_it_knew_through_an_outage_and_says_how_old_it_is(
    cluster: Cluster, watching: KubernetesDiscovery
) -> None:
    cluster.add("one", "10.0.0.1")
    wait(lambda: names(watching) == ["one"])
    cluster.gate.shut()
    cluster.add("two", "10.0.0.2")
    cluster.delete("one")
    time.sleep(1.5)
    assert names(watching) == ["one"]
    assert 1.0 < (watching.age() or 0) < 4
    cluster.gate.open()
    wait(lambda: names(watching) == ["two"])
    assert (watching.age() or 9) < 1


def test_a_killed_server_comes_back_without_its_history(
    cluster: Cluster, watching: KubernetesDiscovery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A true 410: the changes happened while nobody listened, etcd forgot them and the server's cache is new.

    Until it is ready it may answer 429 (its storage is initializing) or nothing at all; neither is a reason to list.
    """
    monkeypatch.setattr("mx_exporter.discovery.kubernetes._LONGEST_PAUSE", 0.5)
    caplog.set_level("INFO", logger="mx_exporter.discovery.kubernetes")
    cluster.add("one", "10.0.0.1")
    wait(lambda: names(watching) == ["one"])
    before = len(listed(cluster))
    caplog.clear()
    cluster.gate.shut()
    cluster.delete("one")
    for number in range(3):
        cluster.add(f"new-{number}", f"10.0.0.{10 + number}")
    cluster.api.compact()
    cluster.api.stop_server()
    cluster.api.start_server()
    cluster.gate.open()
    wait(lambda: names(watching) == ["new-0", "new-1", "new-2"], 40)
    wait(lambda: len(listed(cluster)) > before)
    # Once, and for what is true now: what the server has at hand may be what has expired.
    assert ["resourceVersion" in uri for uri in listed(cluster)[before:]] == [False]
    again = [text for record in caplog.records if "listing again: " in (text := record.getMessage())]
    assert len(again) == 1
    assert "410" in again[0]


def test_a_silent_server_does_not_stop_it_from_ending(cluster: Cluster) -> None:
    cluster.gate.silence()
    discovery = cluster.discovery()
    discovery.start()
    time.sleep(0.3)
    assert discovery.age() is None
    began = time.monotonic()
    discovery.stop()
    assert time.monotonic() - began < 1


def test_a_new_token_is_used_when_the_old_one_is_refused(cluster: Cluster) -> None:
    good = cluster.token_file.read_text()
    cluster.token_file.write_text("expired")
    cluster.add("one", "10.0.0.1")
    discovery = cluster.discovery()
    discovery.start()
    time.sleep(0.3)
    assert discovery.age() is None
    cluster.token_file.write_text(good)
    wait(lambda: names(discovery) == ["one"])
    discovery.stop()


def test_asks_for_what_the_chart_grants_and_of_its_node_only(cluster: Cluster, watching: KubernetesDiscovery) -> None:
    wait(lambda: watching.age() is not None)
    seen = {(event["verb"], event["objectRef"]["resource"]) for event in requests_of(cluster)}
    granted = {(verb, name) for rule in RULES["discovery"] for verb in rule["verbs"] for name in rule["resources"]}
    assert seen == granted == {("list", "pods"), ("watch", "pods")}
    assert all("fieldSelector=spec.nodeName" in event["requestURI"] for event in requests_of(cluster))
    with pytest.raises(urllib.error.HTTPError, match="403"):
        cluster.api.request("GET", "/api/v1/secrets", token=cluster.token_file.read_text())


def test_the_whole_exporter_stays_small_on_a_full_node(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    """Pods of 12 kB each, eight of them sources; 110 in a long run, which is the most that a kubelet takes."""
    count = 110 if os.environ.get("MX_TEST_LONG") else 40
    padding = {f"example.org/{i}": "x" * 200 for i in range(50)}
    for number in range(count):
        gpu = {"nvidia.com/gpu": "1"} if number < 8 else {"cpu": "1"}
        container = {"resources": {"limits": gpu}, "ports": [{"containerPort": 29500, "name": "nccl"}]}
        cluster.add(f"pod-{number}", f"10.0.0.{number + 1}", annotations=padding, container=container, runs=number < 8)
    config = tmp_path / "config.yaml"
    at, files = f"https://127.0.0.1:{cluster.gate.port}", {"tokenFile": str(cluster.token_file)}
    kubernetes_section = {"apiServer": at, "caFile": str(cluster.api.ca_file), **files}
    config.write_text(yaml.safe_dump({"kubernetes": kubernetes_section, "discovery": "kubernetes", "node": NODE}))
    url = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mx_exporter.cli", "--listen", url, "--config", str(config)]
    command += ["--sysfs", str(nodes.eight_rails(tmp_path / "node").sysfs)]
    process = Process("mx-exporter", command, tmp_path / "log")
    try:
        process.wait_ready(lambda: _page(url).count('reason="no_endpoint"') == 8, 20)
        cluster.gate.shut()
        cluster.gate.open()
        time.sleep(2)
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.kill()
    resident, peak = (int(re.findall(rf"{key}:\s+(\d+)", status)[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    sys.stderr.write(f"full node: {resident:.1f} MB resident, {peak:.1f} MB at most\n")
    assert resident < 60


def _page(url: str) -> str:
    try:
        return str(urllib.request.urlopen(f"http://{url}/metrics", timeout=5).read().decode())
    except OSError:
        return ""


def listed(cluster: Cluster) -> list[str]:
    """The lists that our account was given so far: what it asked for."""
    events = [event for event in requests_of(cluster) if event["verb"] == "list"]
    return [event["requestURI"] for event in events if event["responseStatus"]["code"] == 200]


def requests_of(cluster: Cluster) -> list[dict[str, Any]]:
    user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    events = [event for event in cluster.api.audit() if event["user"].get("username") == user]
    return [event for event in events if event["objectRef"]["resource"] != "secrets"]
