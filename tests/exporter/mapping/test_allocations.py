"""What the kubelet says of a pod's devices, in the words of every plugin."""

from __future__ import annotations

import contextlib
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.mapping.allocations import Allocation, enriched, parse
from mx_exporter.mapping.kubelet import Kubelet
from mx_exporter.mapping.places import host_gpus
from mx_exporter.model import Gpu, HostGpu, Pod, Source
from mx_exporter.nics.sysfs import Tree
from tests.exporter.mapping.kubelets import Given, kubelet, response
from tests.exporter.trees import nodes

POD = Pod("ai", "vllm-0", "uid-0", "10.0.0.7")
HOST = tuple(HostGpu(f"0000:{0x14 + 16 * i:02x}:00.0", f"GPU-{i}", 7 - i) for i in range(8))


def allocation(*containers: tuple[str, ...], claims: tuple[tuple[str, str], ...] = ()) -> Allocation | None:
    return parse(response([Given("ai", "vllm-0", containers, claims)])).get(("ai", "vllm-0"))


@pytest.mark.parametrize(
    ("device", "gpu"),
    [("GPU-1b2c-3d", "GPU-1b2c-3d"), ("GPU-1b2c::3", "GPU-1b2c"), ("MIG-1b2c", "MIG-1b2c"), ("nvidia3", "3"),
     ("nvidia0/vgpu1", "0"), ("nvidia0/gi2/vgpu0", "0")],
)  # fmt: skip
def test_gpus_in_the_words_of_every_plugin(device: str, gpu: str) -> None:
    assert allocation((device,)) == Allocation((), (gpu,))


@pytest.mark.parametrize("device", ["17", "0", "", "eth0", "0000:1b:00", "FPGA-1", "\u0663"])
def test_devices_that_say_nothing_are_left_out(device: str) -> None:
    assert allocation((device,)) is None


def test_addresses_are_those_of_all_containers_once_and_in_lower_case() -> None:
    assert allocation(("0000:1B:00.2", "0000:1b:00.3"), ("0000:1b:00.2",)) == Allocation(
        ("0000:1b:00.2", "0000:1b:00.3"), ()
    )


def test_shared_gpus_are_one() -> None:
    assert allocation(("GPU-1::0", "GPU-1::1")) == Allocation((), ("GPU-1",))


def test_gpus_in_two_containers_have_no_numbers() -> None:
    assert allocation(("GPU-1",), ("GPU-2", "0000:1b:00.2")) == Allocation(("0000:1b:00.2",), ())


def test_claims_count_by_their_driver() -> None:
    claims = (("gpu.nvidia.com", "gpu-2"), ("gpu.example.com", "gpu-1"), ("dra.net", "pci-0000-1b-00-4"))
    assert allocation(claims=claims) == Allocation(("0000:1b:00.4",), ("2",))


def test_a_source_keeps_what_it_says_itself() -> None:
    told = {("ai", "vllm-0"): Allocation(("0000:1b:00.2", "0000:1c:00.0"), ("GPU-6", "GPU-2"))}
    made = enriched(Source(POD), told, HOST, lambda address: address == "0000:1b:00.2")
    assert made.nic_addresses == ("0000:1b:00.2",)
    assert [(gpu.index, gpu.uuid) for gpu in made.gpus] == [(0, "GPU-2"), (1, "GPU-6")]
    own = Source(POD, nic_addresses=("0000:aa:00.0",), gpus=(Gpu(0, "GPU-9"),))
    assert enriched(own, told, HOST, lambda _: True) == own
    assert enriched(Source(POD), {}, HOST, lambda _: True) == Source(POD)


def test_gpus_are_numbered_by_address_whatever_the_order_they_were_given_in() -> None:
    told = {("ai", "vllm-0"): Allocation((), ("0", "7", "3"))}  # minor numbers
    made = enriched(Source(POD), told, HOST, lambda _: True)
    assert [gpu.uuid for gpu in made.gpus] == ["GPU-0", "GPU-4", "GPU-7"]


def test_a_gpu_that_is_not_on_the_host_leaves_all_without_numbers() -> None:
    told = {("ai", "vllm-0"): Allocation((), ("GPU-1", "MIG-5"))}
    assert enriched(Source(POD), told, HOST, lambda _: True).gpus == ()


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_empty_never_a_crash(garbage: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse(garbage), dict)


@given(st.integers(0, 120))
def test_an_answer_that_was_cut_off_is_refused_or_shorter(cut: int) -> None:
    whole = response([Given("ai", "vllm-0", (("GPU-1",),)), Given("ai", "vllm-1", (("GPU-2",),))])
    try:
        parsed = parse(whole[:cut])
    except ValueError:
        return
    assert parsed.items() <= parse(whole).items()


def test_a_real_socket_is_asked_and_survived(tmp_path: pathlib.Path) -> None:
    socket = tmp_path / "kubelet.sock"
    asking = Kubelet(socket, timeout=2.0)
    asking.ask()
    assert asking.allocations == {}
    with kubelet(socket, [Given("ai", "vllm-0", (("GPU-1", "0000:1b:00.2"),))]) as answers:
        asking.ask()
        assert asking.allocations == {("ai", "vllm-0"): Allocation(("0000:1b:00.2",), ("GPU-1",))}
        answers.answer = b"\xff\xff"
        asking.ask()
    asking.ask()
    assert list(asking.allocations) == [("ai", "vllm-0")]  # what was known stays


def test_the_drivers_procfs_names_the_gpus(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    assert host_gpus(Tree(node.procfs))[1] == HostGpu("0000:24:00.0", "GPU-00000001-0000-0000-0000-000000000000", 1)
    assert host_gpus(Tree(tmp_path / "nothing")) == ()
