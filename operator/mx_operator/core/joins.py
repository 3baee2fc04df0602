"""From series to sources: which reading, if any, is whose.

A signal's samples are indexed once by what their join label holds; each row then looks its identity up. Whatever is
not exactly one source's is nobody's: an ambiguous reading is reported, never guessed.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from mx_operator.core.model import Identity, Row, Sample
from mx_operator.policies.labels import JOIN_LABELS, Join
from mx_operator.policies.spec import Reduce, Signal

#: What a join label holds, with its companion: ("10.0.0.7",), ("namespace", "pod"), ("mx_source_id", "worker_id").
JoinKey = tuple[str, ...]

_PORT_DIGITS: Final = 5
#: Labels that name the measured pod; series of one address that differ in one are two pods' on one node's network.
#: Beside our own exporter's labels, `pod` is whoever was scraped: the exporter's own pod, not the measured one.
_OUR_POD_LABELS: Final = ("k8s_pod_uid", "k8s_pod_name")
_POD_LABELS: Final = ("uid", "exported_pod", "pod", *_OUR_POD_LABELS)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What one signal says of one source (or of one device of a pod).

    Attributes:
        value: Scaled, neither checked nor clamped.
        age: In seconds when Prometheus evaluated the query.
    """

    value: float
    age: float


#: Of one join key: by pod ("" where series name none), then by device ("" where series name none).
Found = Mapping[str, Mapping[str, Sequence[Reading]]]


@dataclasses.dataclass(frozen=True, slots=True)
class Index:
    """A signal's answer, by join key.

    Attributes:
        signal: What was asked.
        found: Everything that has the join label.
        youngest: Age of the youngest sample; None where none has one.
        series: How many the answer had.
    """

    signal: Signal
    found: Mapping[JoinKey, Found]
    youngest: float | None
    series: int


def labels_used(signal: Signal) -> frozenset[str]:
    """The labels of a series that a join of this signal looks at; the others need not be kept."""
    used = {signal.join_label, signal.device_label, JOIN_LABELS[signal.join_label].companion, *_pod_labels(signal)}
    return frozenset(label for label in used if label)


def _pod_labels(signal: Signal) -> tuple[str, ...]:
    return _OUR_POD_LABELS if signal.join_label.startswith("k8s_") else _POD_LABELS


def index(signal: Signal, samples: Iterable[Sample]) -> Index:
    """Sort a signal's samples by source; series without the join label are left out."""
    found: dict[JoinKey, dict[str, dict[str, list[Reading]]]] = {}
    youngest, series, pod_labels = math.inf, 0, _pod_labels(signal)
    for sample in samples:
        series += 1
        if math.isfinite(sample.age):
            youngest = min(youngest, sample.age)
        key = _key(signal, sample.labels)
        if key is None:
            continue
        pod = next((sample.labels[label] for label in pod_labels if sample.labels.get(label)), "")
        device = sample.labels.get(signal.device_label, "") if signal.device_label else ""
        reading = Reading(sample.value * signal.scale, sample.age)
        found.setdefault(key, {}).setdefault(pod, {}).setdefault(device, []).append(reading)
    return Index(signal, found, None if youngest is math.inf else youngest, series)


def _key(signal: Signal, labels: Mapping[str, str]) -> JoinKey | None:
    value = labels.get(signal.join_label)
    if not value:
        return None
    match signal.join:
        case Join.ADDRESS:
            return (address(value),)
        case Join.INSTANCE:
            return (address(split_endpoint(value)[0]),)
        case Join.POD_UID:
            return (value,)
        case Join.POD_NAME | Join.SOURCE:
            companion = labels.get(JOIN_LABELS[signal.join_label].companion or "")
            if not companion:
                return None
            return (companion, value) if signal.join is Join.POD_NAME else (value, companion)


def address(text: str) -> str:
    """An IP address in its one canonical form; anything else in lower case."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text.lower()


def split_endpoint(text: str) -> tuple[str, int | None]:
    """Host and port of `10.0.0.7:6555`, `[fd00::7]:6555`, `tcp://host:1` or a bare host."""
    text = text.rpartition("://")[2]
    host, colon, port = text.rpartition(":")
    number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS
    if not colon or not number or (":" in host and not host.startswith("[")):
        return text.strip("[]"), None
    return host.strip("[]"), int(port)


@dataclasses.dataclass(frozen=True, slots=True)
class Absent:
    """Why a source has no reading of a signal.

    Attributes:
        reason: One word, as metrics and reports have it.
        ambiguous: There was more than one to choose from.
    """

    reason: str
    ambiguous: bool = False


NO_SERIES: Final = Absent("no_series")
NO_IDENTITY: Final = Absent("no_identity")
NO_ENDPOINT: Final = Absent("no_endpoint")
NO_POD: Final = Absent("no_pod")
NO_DEVICE: Final = Absent("no_device")
SHARED_ADDRESS: Final = Absent("shared_address")
MANY_SERIES: Final = Absent("many_series", ambiguous=True)
MANY_DEVICES: Final = Absent("many_devices", ambiguous=True)


def find(answer: Index, row: Row, identity: Identity | None) -> Reading | Absent:
    """One signal's reading of one source."""
    key = _wanted(answer.signal, row, identity)
    if isinstance(key, Absent):
        return key
    found = answer.found.get(key)
    if found is None:
        return NO_SERIES
    devices = _of_pod(found, identity)
    if isinstance(devices, Absent):
        return devices
    readings = _of_device(devices, identity)
    if isinstance(readings, Absent):
        return readings
    return _reduced(readings, answer.signal.reduce)


def _wanted(signal: Signal, row: Row, identity: Identity | None) -> JoinKey | Absent:
    if signal.join is Join.SOURCE:
        return (row.key.mx_source_id, row.key.worker_id)
    if identity is None:
        return NO_IDENTITY
    if signal.join in (Join.ADDRESS, Join.INSTANCE):
        return (identity.host,) if identity.host else NO_ENDPOINT
    if signal.join is Join.POD_UID:
        return (identity.pod_uid,) if identity.pod_uid else NO_POD
    if identity.pod_name and identity.pod_namespace:
        return (identity.pod_namespace, identity.pod_name)
    return NO_POD


def _of_pod(found: Found, identity: Identity | None) -> Mapping[str, Sequence[Reading]] | Absent:
    known = () if identity is None else tuple(name for name in (identity.pod_uid, identity.pod_name) if name)
    for pod in known:
        if pod in found:
            return found[pod]
    (pod, devices), *others = found.items()
    # A series that names another pod than the row's own is a neighbour's on the same node network.
    return SHARED_ADDRESS if others or (known and pod) else devices


def _of_device(devices: Mapping[str, Sequence[Reading]], identity: Identity | None) -> Sequence[Reading] | Absent:
    device = None if identity is None or identity.device is None else str(identity.device)
    if device is not None and device in devices:
        return devices[device]
    if "" in devices:
        return devices[""]
    return MANY_DEVICES if device is None and len(devices) > 1 else NO_DEVICE


_REDUCERS: Final[Mapping[Reduce, Callable[[Sequence[float]], float]]] = {
    Reduce.MAX: max,
    Reduce.MIN: min,
    Reduce.MEAN: statistics.fmean,
}


def _reduced(readings: Sequence[Reading], how: Reduce) -> Reading | Absent:
    if len(readings) == 1:
        return readings[0]
    values = [reading.value for reading in readings]
    age = max((reading.age for reading in readings), key=lambda age: math.inf if math.isnan(age) else age)
    if how is Reduce.NONE:
        return MANY_SERIES
    if not all(map(math.isfinite, values)):
        return Reading(math.nan, age)
    return Reading(_REDUCERS[how](values), age)
