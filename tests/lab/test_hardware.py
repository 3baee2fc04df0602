"""The simulated hardware as files and pages: what an exporter would read."""

from __future__ import annotations

import pathlib

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mx_lab.engines import page
from mx_lab.fleet import MODEL, Busy, LabSource
from mx_lab.sysfs import NodeSysfs
from mx_lab.traffic import Nic


def nic(engine: str = "vllm", device: str = "mlx5_0") -> Nic:
    return Nic(LabSource("worker-0", 0, device, "127.9.1.10", engine, "00", Busy.NO, 0.1, 0.5))


def test_the_tree_is_the_kernels(tmp_path: pathlib.Path) -> None:
    tree = NodeSysfs(tmp_path / "sys", [nic(), nic(device="mlx5_1")])
    classes = tmp_path / "sys/class/infiniband"
    assert sorted(entry.name for entry in classes.iterdir()) == ["mlx5_0", "mlx5_1"]
    port = classes / "mlx5_0/ports/1"
    assert (port / "rate").read_text() == "400 Gb/sec (4X NDR)\n"
    assert (port / "state").read_text() == "4: ACTIVE\n"
    assert (classes / "mlx5_0").is_symlink()
    assert (classes / "mlx5_0/device").resolve().name == "0000:11:00.0"
    assert (classes / "mlx5_1/device").resolve().name == "0000:12:00.0"
    tree.close()


def test_counters_are_in_words_of_four_octets_and_change_in_place(tmp_path: pathlib.Path) -> None:
    of = nic()
    tree = NodeSysfs(tmp_path / "sys", [of])
    counter = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    inode = counter.stat().st_ino
    of.transmitted, of.received = 4e9, 40.0
    tree.write()
    assert counter.read_text() == "1000000000\n"
    assert (counter.parent / "port_rcv_data").read_text() == "10\n"
    assert counter.stat().st_ino == inode
    tree.close()


@pytest.mark.parametrize(("engine", "gauge"), [("vllm", "vllm:kv_cache_usage_perc"), ("sglang", "sglang:token_usage")])
def test_an_engines_page_is_strict_exposition_and_holds_the_gauge(engine: str, gauge: str) -> None:
    of = nic(engine)
    families = {family.name: family for family in text_string_to_metric_families(page(of, 10.0, 100.0))}
    (sample,) = families[gauge].samples
    assert sample.labels["model_name"] == MODEL
    assert sample.value == pytest.approx(of.kv(10.0), abs=0.005)
    buckets = [s.value for s in families[f"{engine}:time_to_first_token_seconds"].samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 800
