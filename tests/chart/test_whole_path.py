"""From a rendered chart to a load that a target reads, on real parts, and the audit log's verdict on every right.

The exporter, the operator and the server run as the chart's arguments and environment say and as the service accounts
it made, against a real API server; Prometheus scrapes the exporter. What a kubelet would do is done here: loopback
addresses in place of pods', and tokens in files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import yaml

import mx_wire
from mx_lab.processes import Process, free_port, listens, wait_until
from tests.chart import cluster, conftest
from tests.chart.helm import CHART, Manifest, of_kind
from tests.parts import kubernetes
from tests.parts.kubernetes import ApiServer
from tests.parts.prometheus import prometheus

pytestmark = [pytest.mark.tools("etcd", "kube-apiserver"), pytest.mark.timeout(240)]

NAMESPACE, NODE, AUDIENCE = "mx-system", "node-a", "modelexpress"
# Of the documentation's network: nobody connects to it.
POD_IP = "192.0.2.7"
BUSY = 0.83
MODEL_METADATA = CHART.parents[1] / "server" / "mx_server" / "manifests" / "modelmetadatas.yaml"
READY = mx_wire.SourceStatus.SOURCE_STATUS_READY
DOORS = {"exporter": "mx_exporter.cli", "operator": "mx_operator.cli", "server": "mx_server.cli"}
CALL = "import importlib, sys; sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))"


class BusyNic:
    """A 100 Gb/s port that transmits at a steady share of its rate, as files."""

    def __init__(self, sysfs: pathlib.Path) -> None:
        port = sysfs / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
        self._counters = port / "counters"
        self._counters.mkdir(parents=True)
        for name, text in {"state": "4: ACTIVE", "rate": "100 Gb/sec (4X EDR)", "link_layer": "InfiniBand"}.items():
            (port / name).write_text(f"{text}\n")
        (self._counters / "port_rcv_data").write_text("0\n")
        self._began, self._stop = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._move)
        self._move_once()

    def _move_once(self) -> None:
        words = int((time.monotonic() - self._began) * BUSY * 100e9 / 8 / 4)
        (self._counters / "next").write_text(f"{words}\n")
        (self._counters / "next").replace(self._counters / "port_xmit_data")

    def _move(self) -> None:
        while not self._stop.wait(0.02):
            self._move_once()

    def __enter__(self) -> BusyNic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Worker:
    """An unmodified MX worker: publishes itself, then heartbeats without a load of its own."""

    def __init__(self, address: str, token_file: pathlib.Path, worker_id: str = "w0", model: str = "a-model") -> None:
        self._channel = mx_wire.channel(address, tokens=mx_wire.TokenFile(token_file))
        self.stub = mx_wire.P2pServiceStub(self._channel)
        self._worker_id, self._model = worker_id, model
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._beat, daemon=True)
        self.source_id = ""

    def publish(self) -> None:
        identity = mx_wire.SourceIdentity(mx_version="0.7.0", model_name=self._model, tensor_parallel_size=1)
        tensors = [mx_wire.TensorDescriptor(name="w", addr=1, size=2, device_id=0, dtype="bf16")]
        worker = mx_wire.WorkerMetadata(
            worker_rank=0,
            nixl_metadata=b"n",
            worker_grpc_endpoint=f"{POD_IP}:6555",
            tensor_source=mx_wire.TensorSourceMetadata(tensors=tensors),
        )
        request = mx_wire.PublishMetadataRequest(identity=identity, worker=worker, worker_id=self._worker_id)
        answer = self.stub.PublishMetadata(request, timeout=5)
        assert answer.success, answer.message
        self.source_id = answer.mx_source_id

    def beat(self) -> None:
        beat = mx_wire.UpdateStatusRequest(
            mx_source_id=self.source_id, worker_id=self._worker_id, worker_rank=0, status=READY
        )
        assert self.stub.UpdateStatus(beat, timeout=5).success

    def start(self) -> None:
        self.publish()
        self._thread.start()

    def _beat(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(grpc.RpcError):
                self.beat()
            self._stop.wait(5)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def rows(self) -> list[Any]:
        return list(self.stub.ListSources(mx_wire.ListSourcesRequest(status_filter=READY), timeout=5).instances)

    def load(self) -> float | None:
        rows = [row for row in self.rows() if row.worker_id == self._worker_id]
        return mx_wire.read_load(rows[0]) if rows else None


@dataclasses.dataclass
class Place:
    """The cluster with the chart applied, and how a kubelet here runs its containers."""

    api: ApiServer
    manifests: list[Manifest]
    folder: pathlib.Path

    def account(self, component: str) -> str:
        namespace, name = cluster.account(self.manifests, component)
        return f"system:serviceaccount:{namespace}:{name}"

    def token(self, component: str, audience: str | None = None) -> str:
        return self.api.service_account(*cluster.account(self.manifests, component), audience)

    def file(self, name: str, content: str) -> pathlib.Path:
        path = self.folder / name
        path.write_text(content)
        return path

    @contextlib.contextmanager
    def run(self, component: str, port: int, *further: str, swap: dict[str, str] | None = None) -> Iterator[Process]:
        """Run a component's container: its arguments with loopback addresses, its environment filled in."""
        container = cluster.container(self.manifests, component)
        swapped = {"--listen": f"127.0.0.1:{port}", **(swap or {})}
        given = [argument.partition("=") for argument in container.get("args", [])]
        arguments = [f"{flag}={swapped.get(flag, value)}" if equals else flag for flag, equals, value in given]
        env = self.environment(component) | {name: text for name, text in swapped.items() if name.isupper()}
        command = [sys.executable, "-c", CALL, DOORS[component], *arguments, *further]
        with Process(component, command, self.folder / f"{component}.log", env=env) as process:
            process.wait_ready(lambda: listens(port), 30)
            yield process

    def environment(self, component: str) -> dict[str, str]:
        """What every process in a component's container finds in its environment."""
        fields = {"spec.nodeName": NODE, "metadata.namespace": NAMESPACE, "metadata.name": f"{component}-0"}
        entries = cluster.container(self.manifests, component).get("env", [])
        env = {e["name"]: e.get("value") or fields[e["valueFrom"]["fieldRef"]["fieldPath"]] for e in entries}
        config = self.api.kubeconfig(self.folder / f"{component}.kubeconfig", self.token(component))
        return env | {"PATH": os.environ["PATH"], "KUBECONFIG": str(config), "HOME": str(self.folder)}

    def looked(self, **swap: str) -> str:
        """What `kubectl exec ... mx-exporter --once` prints: the container's environment, none of its arguments."""
        command = [sys.executable, "-c", CALL, DOORS["exporter"], "--once"]
        env = self.environment("exporter") | swap
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[Place]:
    if reason := kubernetes.missing():
        pytest.skip(reason)
    manifests = conftest.found(4).template("whole-path", namespace=NAMESPACE)
    with kubernetes.api_server(tmp_path / "api") as api:
        for name in (NAMESPACE, "inference"):
            cluster.namespace(api, name)
        api.apply(MODEL_METADATA.read_text())
        cluster.apply(api, [m for m in manifests if m["kind"] != "SourceLoadPolicy"])
        yield Place(api, manifests, tmp_path)


def add_pod(api: ApiServer) -> None:
    """A worker's pod on our node, running, with a NIC of its own and no page of metrics."""
    container = {
        "name": "engine",
        "image": "engine",
        "ports": [{"containerPort": 6555}],
        "env": [{"name": "UCX_NET_DEVICES", "value": "mlx5_0:1"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    spec = {"nodeName": NODE, "containers": [container]}
    path = "/api/v1/namespaces/inference/pods"
    api.request("POST", path, {"metadata": {"name": "worker-0"}, "spec": spec})
    status = {"status": {"phase": "Running", "podIP": POD_IP, "podIPs": [{"ip": POD_IP}]}}
    api.request("PATCH", f"{path}/worker-0/status", status, content="application/merge-patch+json")


def columns(api: ApiServer, *names: str) -> tuple[str, ...]:
    """Columns of `kubectl get slp`."""
    head, row = (line.split() for line in api.kubectl("get", "slp", "default").splitlines())
    shown = dict(zip(head, row, strict=False))
    return tuple(shown.get(name, "") for name in names)


def events(api: ApiServer) -> str:
    """What `kubectl describe slp` would show of the policy's Events."""
    chosen = "--field-selector=involvedObject.kind=SourceLoadPolicy,involvedObject.name=default"
    return api.kubectl("get", "events", "--namespace=default", chosen, "-o", "yaml")


def access_file(place: Place) -> str:
    """What a pod has at its service account's mount, as the exporter's configuration names it."""
    token = place.file("exporter.token", place.token("exporter"))
    where = {"apiServer": place.api.url, "tokenFile": str(token), "caFile": str(place.api.ca_file)}
    return str(place.file("exporter.yaml", yaml.safe_dump({"kubernetes": where})))


def test_a_policy_made_with_kubectl_becomes_the_load_that_a_target_reads(place: Place) -> None:
    api = place.api
    ports = {name: free_port() for name in ("exporter", "operator", "server", "metrics", "prometheus")}
    server_token = place.file("server.token", place.token("server"))
    worker_token = place.file("worker.token", api.service_account("inference", "worker", AUDIENCE))
    operator_token = place.file("operator.token", place.token("operator", AUDIENCE))
    add_pod(api)
    with contextlib.ExitStack() as running:
        running.enter_context(BusyNic(place.folder / "sys"))
        cluster_access = [
            f"--kube-api-server={api.url}",
            f"--kube-token-file={server_token}",
            f"--kube-ca-file={api.ca_file}",
        ]
        metrics = {"--metrics-listen": f"127.0.0.1:{ports['metrics']}"}
        running.enter_context(place.run("server", ports["server"], *cluster_access, swap=metrics))
        node = {"MX_EXPORTER_SYSFS": str(place.folder / "sys"), "MX_EXPORTER_CONFIG": access_file(place)}
        local = node | {"MX_EXPORTER_LISTEN": f"127.0.0.1:{ports['exporter']}"}
        running.enter_context(place.run("exporter", ports["exporter"], swap=local))
        seen = place.looked(**node)
        assert "inference/worker-0" in seen
        assert "mlx5_0/1  explicit" in seen
        operator = running.enter_context(place.run("operator", ports["operator"]))
        worker = Worker(f"127.0.0.1:{ports['server']}", worker_token)
        worker.start()
        assert worker.load() in (None, 0.0)
        dead = Worker(f"127.0.0.1:{ports['server']}", worker_token, "w1", "a-model-of-no-policy")
        dead.publish()
        dead.beat()

        policy = of_kind(place.manifests, "SourceLoadPolicy")[0]
        assert policy["spec"]["server"]["tokenFile"] == "/var/run/secrets/tokens/modelexpress"
        policy["spec"]["server"] |= {"address": f"127.0.0.1:{ports['server']}", "tokenFile": str(operator_token)}
        policy["spec"]["prometheus"]["url"] = f"http://127.0.0.1:{ports['prometheus']}"
        api.kubectl("create", "-f", "-", stdin=yaml.safe_dump(policy))
        wait_until(lambda: "PrometheusReachable is False" in events(api), 30, "an Event about Prometheus")
        targets = {"mx-exporter": [f"127.0.0.1:{ports['exporter']}"]}
        running.enter_context(prometheus(place.folder / "prometheus", targets, port=ports["prometheus"]))
        wait_until(lambda: abs((worker.load() or 0) - BUSY) < 0.1, 40, "the load in the listing")
        # Status is patched a few times a minute at most.
        shown = ("True", "Writing", "1/1")
        wait_until(lambda: columns(api, "READY", "WHY", "MEASURED") == shown, 75, "kubectl to show it")

        api.kubectl("patch", "slp", "default", "--type=merge", "-p", '{"spec":{"mode":"observe"}}')
        wait_until(lambda: not worker.load(), 20, "the source's own heartbeat to have the last word")
        patch = '{"spec":{"mode":"write","server":{"writer":"kubernetes","namespace":"mx-system"}}}'
        api.kubectl("patch", "slp", "default", "--type=merge", "-p", patch)
        wait_until(lambda: abs((worker.load() or 0) - BUSY) < 0.1, 30, "the Kubernetes writer's load")
        found = worker.stub.GetMetadata(
            mx_wire.GetMetadataRequest(mx_source_id=worker.source_id, worker_id="w0"), timeout=5
        )
        assert found.worker.tensor_source.tensors[0].name == "w"

        api.kubectl("delete", "slp", "default")
        wait_until(lambda: not worker.load(), 20, "silence to decay")
        worker.stop()
        objects = "/apis/modelexpress.nvidia.com/v1alpha1/namespaces/mx-system/modelmetadatas"
        wait_until(lambda: len(api.request("GET", objects)["items"]) < 2, 40, "the server to forget a dead worker")
        assert operator.running
    for component in ("exporter", "operator", "server"):
        user = place.account(component)
        assert cluster.refused(api, user) == []
        assert cluster.granted(cluster.rules_of(place.manifests, component)) - cluster.used(api, user) == set()
