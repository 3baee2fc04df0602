"""The load inside a worker's own process, in the released client's calling convention."""

from __future__ import annotations

import inspect
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

import pytest

import mx_exporter
from mx_exporter.nics.tracks import Timing
from mx_exporter.provider import Provider, make_source_load_provider
from mx_lab.processes import wait_until
from tests.exporter.engines.servers import EngineServer
from tests.exporter.looking import Clock
from tests.exporter.trees import Node, nodes
from tests.parts import released


def provider(node: Node, device_id: int, environ: Mapping[str, str] | None = None) -> tuple[Provider, Clock]:
    clock = Clock()
    return Provider(device_id, environ or {}, sysfs=node.sysfs, procfs=node.procfs, clock=clock), clock


def follow(made: Provider, clock: Clock, node: Node, device: str, words: int) -> float | None:
    made.sample()
    clock.now += 1
    node.add(device, "counters/port_xmit_data", words)
    return made.sample()


def test_the_load_is_that_of_the_nic_beside_the_gpu(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    made, clock = provider(node, 3)
    assert made() is None  # nothing known is not idle
    assert follow(made, clock, node, "mlx5_3", 6_250_000_000) == 0.5
    assert made() == 0.5
    clock.now += 6
    assert made() is None  # nor is what was known for ever


@pytest.mark.parametrize(
    ("environ", "device"),
    [
        ({"CUDA_VISIBLE_DEVICES": "5,6"}, "mlx5_6"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-00000000,GPU-00000004"}, "mlx5_4"),
        ({"UCX_NET_DEVICES": "mlx5_2:1"}, "mlx5_2"),
        ({"MX_RDMA_NIC_PIN": "mlx5_7,mlx5_0:1", "UCX_NET_DEVICES": "mlx5_2:1"}, "mlx5_0"),
        ({"UCX_NET_DEVICES": "^mlx5_1"}, "mlx5_1"),
        ({"UCX_NET_DEVICES": "all", "MX_RDMA_NIC_PIN": "auto"}, "mlx5_1"),
    ],
)
def test_the_environment_says_which_nic(tmp_path: pathlib.Path, environ: dict[str, str], device: str) -> None:
    node = nodes.eight_rails(tmp_path)
    made, clock = provider(node, 1, environ)
    assert follow(made, clock, node, device, 1_250_000_000) == 0.1


@pytest.mark.parametrize("device_id", [-1, 8, 10**9])
def test_a_gpu_that_is_not_there_has_the_busiest_nic(tmp_path: pathlib.Path, device_id: int) -> None:
    node = nodes.eight_rails(tmp_path)
    made, clock = provider(node, device_id)
    assert follow(made, clock, node, "mlx5_6", 1_250_000_000) == 0.1


def test_a_pod_without_counters_knows_nothing(tmp_path: pathlib.Path) -> None:
    made, clock = provider(nodes.vf_pod(tmp_path), 0)
    made.sample()
    clock.now += 1
    assert made.sample() is None


@pytest.fixture
def engine() -> Iterator[str]:
    with EngineServer().text('vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.62\n') as server:
        yield f"http://127.0.0.1:{server.port}/metrics"


def test_the_engines_page_counts_too_and_the_larger_wins(tmp_path: pathlib.Path, engine: str) -> None:
    node = nodes.eight_rails(tmp_path)
    environ = {"MX_P2P_RUNTIME_METRICS_URL": engine}
    timing = Timing(interval=0.1, window=0.3)
    made = Provider(0, environ, sysfs=node.sysfs, procfs=node.procfs, timing=timing).start()
    try:
        wait_until(lambda: made() == 0.62, 10, "the engine's number")
    finally:
        made.stop()
    assert not any(thread.name == "mx-source-load" for thread in threading.enumerate())


def test_one_bad_look_does_not_end_all_others(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes.eight_rails(tmp_path)
    made = Provider(0, {}, sysfs=node.sysfs, procfs=node.procfs, timing=Timing(interval=0.05, window=0.1))
    looks = iter([RuntimeError("odd"), OSError("odder")])
    tick = made._nics.tick

    def look() -> object:
        if error := next(looks, None):
            raise error
        return tick()

    monkeypatch.setattr(made._nics, "tick", look)
    made.start()
    try:
        wait_until(lambda: made() == 0.0, 10, "a number")
    finally:
        made.stop()


@pytest.mark.released
def test_the_calling_convention_is_the_released_clients() -> None:
    theirs = released.module("nic_metrics").make_source_load_provider
    ours = inspect.signature(make_source_load_provider)
    assert list(ours.parameters) == list(inspect.signature(theirs).parameters)
    made = mx_exporter.make_source_load_provider(0)
    value = made()
    assert value is None or 0 <= value <= 1
    assert isinstance(made, Provider)
    made.stop()


def test_a_worker_pays_for_no_telemetry_library() -> None:
    heavy = ["opentelemetry.sdk", "aiohttp", "grpc", "yaml"]
    code = f"import sys, mx_exporter; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
