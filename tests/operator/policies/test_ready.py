"""The ready policies on a real Prometheus, with the series that a team with those exporters really has."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from mx_operator.core.planning import Decision
from mx_operator.core.targets import State
from mx_operator.policies import Mode, SourceLoadPolicy, read_policies
from tests.operator.parts.mx import FakeMx, serving
from tests.operator.parts.pages import serving_pages
from tests.operator.parts.running import cycles, running, until
from tests.parts.prometheus import Prometheus, debian, prometheus, version_3

READY = pathlib.Path(__file__).parents[3] / "operator" / "mx_operator" / "policies" / "ready"
MODEL = 'model_name="meta-llama/Llama-3.3-70B-Instruct"'


def _ready(name: str) -> SourceLoadPolicy:
    (policy,), warnings = read_policies(READY / f"{name}.yaml")
    assert warnings == ()
    return policy


def _job(address: str, path: str, labels: Mapping[str, str], honor: bool = False) -> dict[str, Any]:
    """A scrape job as a PodMonitor or a ServiceMonitor makes it: the target's own labels on every series."""
    static = [{"targets": [address], "labels": dict(labels)}]
    return {"job_name": path.strip("/"), "metrics_path": path, "honor_labels": honor, "static_configs": static}


def _scraped(address: str, pods: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Jobs for pages of pods, and for kube-state-metrics, which says what it says of others' labels."""
    jobs = [_job(address, path, labels) for path, labels in pods.items()]
    state = {"namespace": "monitoring", "pod": "kube-state-metrics-0", "container": "kube-state-metrics"}
    return {"scrape_configs": [*jobs, _job(address, "/kube-state", state, honor=True)]}


def _pod_info(namespace: str, pod: str, ip: str, node: str, host_network: bool = False) -> str:
    """A line of kube-state-metrics, labels and all."""
    return (
        f'kube_pod_info{{namespace="{namespace}",pod="{pod}",uid="u-{pod}",host_ip="192.168.0.1",pod_ip="{ip}",'
        f'node="{node}",created_by_kind="ReplicaSet",created_by_name="rs",priority_class="",'
        f'host_network="{str(host_network).lower()}"}} 1\n'
    )


def _gpu(namespace: str, pod: str, node: str) -> str:
    return (
        f'kube_pod_container_resource_requests{{namespace="{namespace}",pod="{pod}",uid="u-{pod}",container="c",'
        f'node="{node}",resource="nvidia_com_gpu",unit="integer"}} 8\n'
        f'kube_pod_container_resource_requests{{namespace="{namespace}",pod="{pod}",uid="u-{pod}",container="c",'
        f'node="{node}",resource="cpu",unit="core"}} 4\n'
    )


async def _decisions(policy: SourceLoadPolicy, server: Prometheus, sources: Mapping[str, int]) -> dict[str, Decision]:
    """One cycle's decisions by worker, for sources at these addresses with these ranks."""
    fake = FakeMx()
    for number, (host, rank) in enumerate(sources.items(), start=1):
        fake.heartbeat(fake.add(number, rank=rank, host=host.split("#")[0]))
    async with serving(fake) as address:
        here = dataclasses.replace(
            policy,
            server=dataclasses.replace(policy.server, address=address),
            prometheus=dataclasses.replace(policy.prometheus, url=server.url),
            interval=0.2,
        )
        async with running(here) as (_, recorder):
            await until(lambda: any(report.signal_ages for report in recorder.reports), "an answer", 30)
            await cycles(recorder, 2)
            assert recorder.last.prometheus.ok, recorder.last.prometheus
            plan = recorder.cycles[-1].plan
            assert plan is not None
            assert fake.writes == []
            return dict(zip(sources, sorted(plan.decisions, key=lambda d: int(d.row.key.worker_id[1:])), strict=True))


START = time.monotonic()


def _exporter_page() -> str:
    """One pod with one load, and one whose GPUs have loads of their own."""

    def line(pod: str, ip: str, gpu: str, load: float) -> str:
        labels = f'k8s_namespace_name="llm",k8s_pod_name="{pod}",k8s_pod_uid="u-{pod}",k8s_pod_ip="{ip}"'
        return f'mx_source_load{{{labels},gpu="{gpu}",nic_mapping="affinity"}} {load}\n'

    return line("a", "10.0.0.1", "", 0.25) + line("b", "10.0.0.2", "0", 0.5) + line("b", "10.0.0.2", "1", 0.75)


def _node_page(received: float, transmitted: float) -> Callable[[], str]:
    """A port at these shares of its 50 GB/s, one half as busy, and one that is down and has no rate."""

    def page() -> str:
        passed = 50e9 * (time.monotonic() - START)
        text = ""
        for device, rate, factor in (("mlx5_0", 5e10, 1.0), ("mlx5_1", 5e10, 0.5), ("mlx5_2", 0.0, 0.0)):
            port = f'{{device="{device}",port="1"}}'
            text += f"node_infiniband_port_data_received_bytes_total{port} {passed * received * factor}\n"
            text += f"node_infiniband_port_data_transmitted_bytes_total{port} {passed * transmitted * factor}\n"
            text += f"node_infiniband_rate_bytes_per_second{port} {rate}\n"
        return text

    return page


ENGINES = {
    "/vllm": lambda: f'vllm:kv_cache_usage_perc{{engine="0",{MODEL}}} 0.5\n',
    # From 0.9.2 to 0.10.2 both names.
    "/vllm-0-10": lambda: (
        f'vllm:gpu_cache_usage_perc{{engine="0",{MODEL}}} 0.375\nvllm:kv_cache_usage_perc{{engine="0",{MODEL}}} 0.375\n'
    ),
    "/vllm-dp": lambda: "".join(f'vllm:kv_cache_usage_perc{{engine="{n}",{MODEL}}} 0.{n}\n' for n in range(4)),
    "/sglang": lambda: f'sglang:token_usage{{{MODEL},engine_type="unified",tp_rank="0",pp_rank="0"}} 0.125\n',
    "/host": lambda: f'vllm:kv_cache_usage_perc{{engine="0",{MODEL}}} 0.875\n',
}
NODES = {"/node-1": _node_page(0.25, 0.75), "/node-2": _node_page(0.1, 0.05)}


def _kube_state_page() -> str:
    """Engines with GPUs on node 1 and 2; a pod on the node's network; a finished pod whose address is another's now."""
    engines = ("vllm", "vllm-0-10", "vllm-dp", "sglang")
    text = "".join(
        _pod_info("llm", pod, f"10.0.0.{number}", f"node-{1 + number % 2}") + _gpu("llm", pod, f"node-{1 + number % 2}")
        for number, pod in enumerate(engines, start=1)
    )
    text += _pod_info("llm", "host", "192.168.0.1", "node-1", host_network=True) + _gpu("llm", "host", "node-1")
    text += _pod_info("batch", "finished", "10.0.0.1", "node-2") + _pod_info("llm", "pending", "", "")
    text += _pod_info("web", "nginx", "10.0.0.9", "node-1")
    for number in (1, 2):
        pod = f"node-exporter-node-{number}"
        text += _pod_info("monitoring", pod, f"192.168.0.{number}", f"node-{number}", host_network=True)
    return text


@pytest.fixture(scope="module", params=["debian", "3"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus of each kind, which scrapes all of it."""
    binary = debian() if request.param == "debian" else version_3()
    if binary is None:
        pytest.skip(f"no Prometheus {request.param}: run scripts/{'setup' if request.param == 'debian' else 'tools'}")
    own = {"namespace": "mx", "pod": "mx-exporter-x", "container": "exporter"}
    pods = {
        "/exporter": own,
        "/exporter-again": own,  # two jobs that scrape the same pod
        **{path: {"namespace": "llm", "pod": path[1:], "container": "engine"} for path in ENGINES},
        **{path: {"namespace": "monitoring", "pod": f"node-exporter-{path[1:]}"} for path in NODES},
    }
    pages = {"/exporter": _exporter_page, "/exporter-again": _exporter_page, "/kube-state": _kube_state_page}
    with serving_pages(pages | ENGINES | NODES) as port:
        address = f"127.0.0.1:{port}"
        folder = tmp_path_factory.mktemp("prometheus")
        with prometheus(folder, binary=binary, config=_scraped(address, pods)) as running_server:
            running_server.wait_for("count_over_time(node_infiniband_port_data_received_bytes_total[30s]) >= 3", 6)
            running_server.wait_for("up == 1", 10)
            yield running_server


@pytest.mark.parametrize("name", ["exporter", "engines", "node-exporter"])
def test_a_ready_policy_starts_by_observing(name: str) -> None:
    assert _ready(name).mode is Mode.OBSERVE


async def test_our_exporter(server: Prometheus) -> None:
    sources = {"10.0.0.1#0": 0, "10.0.0.1#1": 1, "10.0.0.2#0": 0, "10.0.0.2#1": 1, "10.0.0.3": 0}
    decided = await _decisions(_ready("exporter"), server, sources)
    assert {source: decision.measured for source, decision in decided.items()} == {
        "10.0.0.1#0": 0.25,
        "10.0.0.1#1": 0.25,
        "10.0.0.2#0": 0.5,
        "10.0.0.2#1": 0.75,
        "10.0.0.3": None,
    }
    assert decided["10.0.0.3"].state is State.UNMATCHED
    ages = [decision.age for decision in decided.values() if decision.age is not None]
    assert len(ages) == 4
    assert all(0 <= age < 10 for age in ages)


async def test_engines_only(server: Prometheus) -> None:
    sources = {f"10.0.0.{number}": 0 for number in range(1, 5)} | {"192.168.0.1": 0}
    decided = await _decisions(_ready("engines"), server, sources)
    assert {source: decision.measured for source, decision in decided.items()} == {
        "10.0.0.1": 0.5,
        "10.0.0.2": 0.375,
        "10.0.0.3": 0.3,
        "10.0.0.4": 0.125,
        "192.168.0.1": None,
    }
    assert all((decision.age or 0.0) < 10 for decision in decided.values())


async def test_node_exporter_by_node(server: Prometheus) -> None:
    """The busier direction of the busier port counts; a pod without a GPU gets no series."""
    sources = {"10.0.0.1": 0, "10.0.0.2": 3, "10.0.0.3": 0, "10.0.0.9": 0, "192.168.0.1": 0}
    decided = await _decisions(_ready("node-exporter"), server, sources)
    measured = {source: decision.measured for source, decision in decided.items()}
    assert measured["10.0.0.9"] is None
    assert measured["192.168.0.1"] is None
    # Two scrapes of a busy machine are not exactly a second apart in the page's clock.
    assert measured["10.0.0.2"] == pytest.approx(0.75, abs=0.2)
    assert measured["10.0.0.1"] == pytest.approx(0.1, abs=0.05)
    assert measured["10.0.0.3"] == measured["10.0.0.1"]
