"""The released client's own load beside ours: the same counters and the same engine pages, both read for real.

The measuring rows of the table in docs/comparison.md. A test here that fails on the released client's side says that
its fault is mended: then the row goes.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from mx_exporter.engines import gauges, readings
from mx_exporter.provider import Provider
from tests.exporter.looking import Clock, Looking, values
from tests.exporter.trees import Node, nodes
from tests.parts import released

pytestmark = pytest.mark.released
RATE = 50_000_000_000  # bytes per second of a 400 Gb/s port
FULL = RATE // 4  # its counter's words in a second
GPU = 0


class Both:
    """One source's load as either sees it, on one tree and one clock: theirs once a heartbeat, ours each second."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch, device: str = "mlx5_0") -> None:
        module = released.module("nic_metrics")
        monkeypatch.setattr(module, "_IB_SYSFS", str(node.sysfs / "class/infiniband"))
        self._node, self._device, self._clock = node, device, Clock()
        self._theirs: Any = module.NicUtilizationSampler(device, _clock=self._clock, _nl_counters=lambda *_: {})
        self._ours = Provider(GPU, {}, sysfs=node.sysfs, procfs=node.procfs, clock=self._clock)
        self.beat()
        self._ours.sample()

    def pass_by(self, seconds: int, words: int = 0, port: int = 1) -> float | None:
        """Let time pass with so many words a second transmitted; our load at its end."""
        load = None
        for _ in range(seconds):
            self._clock.now += 1
            if words:
                self._node.add(self._device, "counters/port_xmit_data", words, port)
            load = self._ours.sample()
        return load

    def beat(self) -> float | None:
        """What the released client would publish with a heartbeat now."""
        load: float | None = self._theirs.sample()
        return load


def test_a_pull_of_three_seconds_shows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an average over a heartbeat of 30 s it reads as a tenth, and that at the next heartbeat."""
    both = Both(nodes.eight_rails(tmp_path), monkeypatch)
    both.pass_by(25)
    assert both.pass_by(3, FULL) == pytest.approx(1.0)
    both.pass_by(2)
    assert both.beat() == pytest.approx(0.1)


def test_a_pull_that_is_over_is_over(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(nodes.eight_rails(tmp_path), monkeypatch)
    both.pass_by(24, FULL)
    assert both.pass_by(6) == 0.0
    assert both.beat() == pytest.approx(0.8)


def test_a_counter_that_starts_again_is_no_idle_link(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes.eight_rails(tmp_path)
    both = Both(node, monkeypatch)
    both.pass_by(29, FULL)
    node.file("mlx5_0", "counters/port_xmit_data").write_text("0")
    assert both.pass_by(1) is None
    assert both.beat() == 0.0


def test_a_link_that_comes_up_faster_has_its_new_rate(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down, a port says 10 Gb/s or less; who reads the rate once divides by that for ever."""
    node = nodes.eight_rails(tmp_path)
    node.file("mlx5_0", "rate").write_text("10 Gb/sec (4X SDR)")
    both = Both(node, monkeypatch)
    node.file("mlx5_0", "rate").write_text("400 Gb/sec (4X NDR)")
    assert both.pass_by(30, FULL // 20) == pytest.approx(0.05)
    assert both.beat() == 1.0


def test_a_second_port_counts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes.eight_rails(tmp_path)
    node.port("mlx5_0", 2, counters=nodes.words())
    both = Both(node, monkeypatch)
    assert both.pass_by(30, FULL // 2, port=2) == pytest.approx(0.5)
    assert both.beat() == 0.0


@pytest.mark.parametrize(("kind", "device"), [(nodes.efa, "rdmap16s27"), (nodes.bnxt, "bnxt_re0")])
def test_drivers_that_count_bytes_elsewhere(
    kind: Any, device: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EFA and bnxt_re have their bytes under hw_counters."""
    node = kind(tmp_path)
    both = Both(node, monkeypatch, device)
    looking = Looking(node)
    looking.tick()
    for _ in range(3):
        node.add(device, "hw_counters/tx_bytes", RATE // 2)
        looking.tick()
    both.pass_by(3)
    assert both.beat() is None
    assert max(values(looking.page(), "hw_network_bandwidth_utilization").values()) == pytest.approx(0.5)


KV = "vllm:kv_cache_usage_perc"
PAGES = {
    # page: (the released client's load, ours)
    f'{KV}{{engine="0"}} 0.62\n': (0.62, 0.62),  # where both are right
    f'{KV}{{engine="0"}} 0.62 1720000000000\n': (None, 0.62),
    f'{KV}{{model_name="a}}b"}} 0.62\n': (None, 0.62),
    "trtllm_kv_cache_utilization 0.62\n": (None, 0.62),
    'ray_vllm_kv_cache_usage_perc{engine="0"} 0.62\n': (None, 0.62),
    f"{KV} -1\n": (0.0, None),  # a sentinel is not idle
    f"{KV} 62.0\n": (1.0, None),  # nor is a percentage full
    f'{KV}{{engine="0"}} 0.0\nsglang:token_usage 0.9\n': (0.0, 0.9),
}


@pytest.mark.parametrize("page", PAGES)
def test_an_engines_page(page: str) -> None:
    theirs, ours = PAGES[page]
    provider = released.module("runtime_load").RuntimeLoadProvider("http://engine", _fetch=lambda *_: page)
    assert provider.sample() == theirs
    table = gauges.builtin()
    known = [one.value for one in readings.read(table, page.encode().splitlines()).readings if one.value is not None]
    assert max(known, default=None) == ours
