"""Laws of the blend: the larger of what is known, and nothing at all where nothing is."""

from __future__ import annotations

import pathlib

from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.blend import blend
from mx_exporter.model import Assignment, Device, Flow, Mapping, Pod, PortId, PortStatus, Source, Usage
from tests.exporter.looking import Looking
from tests.exporter.trees import nodes

POD = Pod("ai", "vllm-0", "uid-0", "10.0.0.7")
share = st.none() | st.floats(0, 1)


def port(name: str, transmit: float | None, receive: float | None = 0.0, up: bool | None = True) -> PortStatus:
    def flow(value: float | None) -> Flow:
        return Flow(utilization=value, reason=None if value is not None else "over_limit")

    return PortStatus(PortId(name, 1), Device(name, name, (1,)), up, 5e10, flow(transmit), flow(receive))


def usage(value: float | None, reason: str = "frozen") -> Usage:
    return Usage("vllm", "0", value, None if value is not None else reason, 0.0)


def load(
    ports: list[PortStatus], usages: list[Usage], mapping: Mapping = Mapping.EXPLICIT
) -> tuple[float | None, tuple[tuple[str, str], ...]]:
    assignment = Assignment("", mapping, tuple(one.port for one in ports))
    (made,) = blend(POD, [assignment], usages, {one.port: one for one in ports}, {})
    return made.load, made.unknown


@given(share, share, st.lists(share, min_size=1, max_size=3))
def test_a_load_is_the_largest_known_part_or_nothing(
    transmit: float | None, receive: float | None, caches: list[float | None]
) -> None:
    nic = None if transmit is None or receive is None else max(transmit, receive)
    known = [value for value in (nic, *caches) if value is not None]
    measured, unknown = load([port("a", transmit, receive)], [usage(value) for value in caches])
    assert measured == (max(known) if known else None)
    assert ("nic" in dict(unknown)) == (nic is None)
    assert ("kv" in dict(unknown)) == (None in caches)


def test_an_unknown_port_makes_the_nic_part_unknown_where_the_ports_are_known_to_be_used() -> None:
    ports = [port("a", 0.1), port("b", None)]
    assert load(ports, [usage(None)])[0] is None
    assert load(ports, [usage(None)], Mapping.BUSIEST)[0] == 0.1


def test_of_several_ports_the_busiest_counts() -> None:
    for mapping in (Mapping.EXPLICIT, Mapping.PCI, Mapping.AFFINITY, Mapping.BUSIEST):
        assert load([port("a", 0.1), port("b", 0.2, 0.7), port("c", 0.3)], [], mapping)[0] == 0.7


def test_a_port_that_is_down_carries_nothing() -> None:
    assert load([port("a", 0.3), port("b", None, up=False)], [])[0] == 0.3
    assert load([port("b", None, up=False)], []) == (None, (("nic", "down"), ("kv", "no_engine")))


def test_a_virtual_function_has_the_load_of_its_wire(tmp_path: pathlib.Path) -> None:
    """A pod on an idle virtual function of a busy port is not idle."""
    node = nodes.virtual_functions(tmp_path)
    looking = Looking(node, Source(POD, nic_devices=("mlx5_1",)))
    looking.tick()
    node.add("mlx5_2", "counters/port_xmit_data", 10_000_000_000)
    snapshot = looking.tick()
    assert [one.load for one in snapshot.loads] == [0.8]
    assert 'device="mlx5_1",hw_id="mlx5_1/1",network_io_direction="transmit",port="1"} 0.0' in looking.page()


def test_gpus_on_different_rails_have_loads_of_their_own(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    looking = Looking(node, Source(POD, nic_pins=("mlx5_0", "mlx5_1")))
    looking.engines.known = {POD: (usage(0.25),)}
    looking.tick()
    node.add("mlx5_1", "counters/port_xmit_data", 6_250_000_000)
    assert [(one.gpu, one.load) for one in looking.tick().loads] == [("0", 0.25), ("1", 0.5)]
