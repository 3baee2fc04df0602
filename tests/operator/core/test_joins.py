"""Which series is whose: exactly one, or nobody's."""

from __future__ import annotations

import math

import pytest

from mx_operator.core import joins
from mx_operator.core.joins import Absent, Reading, find, index, split_endpoint
from mx_operator.core.model import Identity, Row, Sample, SourceKey, device_of_port
from mx_operator.policies.spec import Reduce, Signal

ROW = Row(SourceKey("0123456789abcdef", "w"), 0, "m", 1, None)
POD = Identity("10.0.0.7", 1, "pod-a", "ns", "uid-a")


def found(signal: Signal, identity: Identity | None, *samples: tuple[dict[str, str], float]) -> Reading | Absent:
    return find(index(signal, [Sample(labels, value, 1.0) for labels, value in samples]), ROW, identity)


@pytest.mark.parametrize(
    ("label", "labels"),
    [
        ("k8s_pod_ip", {"k8s_pod_ip": "10.0.0.7"}),
        ("pod_ip", {"pod_ip": "10.0.0.7"}),
        ("instance", {"instance": "10.0.0.7:8000"}),
        ("pod", {"pod": "pod-a", "namespace": "ns"}),
        ("k8s_pod_name", {"k8s_pod_name": "pod-a", "k8s_namespace_name": "ns"}),
        ("uid", {"uid": "uid-a"}),
        ("mx_source_id", {"mx_source_id": "0123456789abcdef", "worker_id": "w"}),
    ],
)
def test_every_join_label_finds_its_source_and_no_other(label: str, labels: dict[str, str]) -> None:
    signal = Signal("s", "q", join_label=label)
    assert found(signal, POD, (labels, 0.4)) == Reading(0.4, 1.0)
    other = {name: "9" + value for name, value in labels.items()}
    assert found(signal, POD, (other, 0.4)) == joins.NO_SERIES


def test_addresses_are_compared_as_addresses() -> None:
    signal = Signal("s", "q", join_label="instance")
    identity = Identity(joins.address("fd00:0::7"))
    assert found(signal, identity, ({"instance": "[FD00::7]:8000"}, 0.4)) == Reading(0.4, 1.0)


@pytest.mark.parametrize(
    ("identity", "label", "why"),
    [
        (None, "k8s_pod_ip", joins.NO_IDENTITY),
        (Identity(None), "k8s_pod_ip", joins.NO_ENDPOINT),
        (Identity("10.0.0.7"), "uid", joins.NO_POD),
        (Identity("10.0.0.7"), "pod", joins.NO_POD),
    ],
)
def test_what_is_not_known_of_a_worker_is_said(identity: Identity | None, label: str, why: Absent) -> None:
    assert found(Signal("s", "q", join_label=label), identity) == why


def test_a_device_label_tells_ranks_apart_and_a_series_without_it_serves_all() -> None:
    signal = Signal("s", "q", device_label="gpu")
    mine, other = {"k8s_pod_ip": "10.0.0.7", "gpu": "1"}, {"k8s_pod_ip": "10.0.0.7", "gpu": "0"}
    everyone = {"k8s_pod_ip": "10.0.0.7", "gpu": ""}
    assert found(signal, POD, (mine, 0.4), (other, 0.9)) == Reading(0.4, 1.0)
    assert found(signal, POD, (other, 0.9), (everyone, 0.2)) == Reading(0.2, 1.0)
    assert found(signal, POD, (other, 0.9)) == joins.NO_DEVICE
    assert found(signal, Identity("10.0.0.7"), (mine, 0.4), (other, 0.9)) == joins.MANY_DEVICES


@pytest.mark.parametrize(("reduce", "value"), [(Reduce.MAX, 0.6), (Reduce.MIN, 0.2), (Reduce.MEAN, 0.4)])
def test_several_series_are_ambiguous_unless_reduced(reduce: Reduce, value: float) -> None:
    labels = {"k8s_pod_ip": "10.0.0.7"}
    assert found(Signal("s", "q"), POD, (labels, 0.2), (labels, 0.6)) == joins.MANY_SERIES
    reduced = found(Signal("s", "q", reduce=reduce), POD, (labels, 0.2), (labels, 0.6))
    assert isinstance(reduced, Reading)
    assert reduced.value == pytest.approx(value)


def test_one_value_that_is_none_spoils_a_reduction() -> None:
    labels = {"k8s_pod_ip": "10.0.0.7"}
    reduced = found(Signal("s", "q", reduce=Reduce.MAX), POD, (labels, 0.2), (labels, math.nan))
    assert isinstance(reduced, Reading)
    assert math.isnan(reduced.value)


def test_a_sample_without_a_time_spoils_a_reduction() -> None:
    labels = {"k8s_pod_ip": "10.0.0.7"}
    for ages in ((1.0, math.nan), (math.nan, 1.0)):
        samples = [Sample(labels, 0.5, age) for age in ages]
        reduced = find(index(Signal("s", "q", reduce=Reduce.MAX), samples), ROW, POD)
        assert isinstance(reduced, Reading)
        assert math.isnan(reduced.age)


def test_pods_that_share_an_address_are_told_apart_by_owner_or_not_at_all() -> None:
    signal = Signal("s", "q", reduce=Reduce.MAX)
    a = ({"k8s_pod_ip": "10.0.0.7", "k8s_pod_uid": "uid-a"}, 0.2)
    b = ({"k8s_pod_ip": "10.0.0.7", "k8s_pod_uid": "uid-b"}, 0.9)
    assert found(signal, POD, a, b) == Reading(0.2, 1.0)
    assert found(signal, Identity("10.0.0.7"), a, b) == joins.SHARED_ADDRESS
    assert found(signal, POD, b) == joins.SHARED_ADDRESS, "the neighbour's series is not mine for want of my own"
    assert found(signal, Identity("10.0.0.7"), a) == Reading(0.2, 1.0)


def test_the_pod_that_was_scraped_is_not_the_one_that_was_measured() -> None:
    exporters = {"k8s_pod_ip": "10.0.0.7", "k8s_pod_uid": "", "pod": "mx-exporter-x", "namespace": "monitoring"}
    assert found(Signal("s", "q"), POD, (exporters, 0.2)) == Reading(0.2, 1.0)
    engines = {"instance": "10.0.0.7:8000", "pod": "pod-b"}
    assert found(Signal("s", "q", join_label="instance"), POD, (engines, 0.2)) == joins.SHARED_ADDRESS


def test_scale_and_series_without_the_join_label() -> None:
    signal = Signal("s", "q", scale=0.01)
    assert found(signal, POD, ({"k8s_pod_ip": "10.0.0.7"}, 40.0), ({}, 90.0)) == Reading(0.4, 1.0)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("10.0.0.7:6555", ("10.0.0.7", 6555)),
        ("10.0.0.7", ("10.0.0.7", None)),
        ("[fd00::7]:6556", ("fd00::7", 6556)),
        ("fd00::7", ("fd00::7", None)),
        ("tcp://host:1", ("host", 1)),
        ("host:", ("host:", None)),
        ("", ("", None)),
        ("host:²", ("host:²", None)),
        ("host:٣", ("host:٣", None)),
        (f"host:{'9' * 5000}", (f"host:{'9' * 5000}", None)),
    ],
)
def test_endpoints_are_split(text: str, parts: tuple[str, int | None]) -> None:
    assert split_endpoint(text) == parts


@pytest.mark.parametrize(("port", "device"), [(6555, 0), (6562, 7), (6554, None), (8000, None)])
def test_the_port_says_which_device(port: int, device: int | None) -> None:
    assert device_of_port(port) == device


def test_one_series_with_a_strange_label_harms_no_other() -> None:
    signal = Signal("s", "q", join_label="instance")
    strange, mine = {"instance": "node:²"}, {"instance": "10.0.0.7:8000"}
    assert found(signal, POD, (strange, 0.9), (mine, 0.4)) == Reading(0.4, 1.0)


def test_only_an_age_that_is_one_is_the_youngest() -> None:
    labels = {"k8s_pod_ip": "10.0.0.7"}
    ages = (-math.inf, math.nan, 7.0, math.inf)
    assert index(Signal("s", "q"), [Sample(labels, 0.5, age) for age in ages]).youngest == 7.0
    assert index(Signal("s", "q"), [Sample(labels, 0.5, -math.inf)]).youngest is None
