"""One source followed hop by hop: counter, exporter, Prometheus, operator's write, listing, score.

Each hop is asked where a person would look: the counter file, the exporter's page, Prometheus' API, the server's
listing. Called once at the end of a run; blocking, from a thread.
"""

from __future__ import annotations

import json
import pathlib
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

import mx_selector
import mx_wire
from mx_lab.fleet import EXPORTER_PORT, MODEL, Fleet, LabSource
from mx_lab.results import Hop
from mx_lab.sources import ACCELERATOR, IDENTITY
from mx_lab.traffic import LINK
from mx_operator.core import marks
from mx_selector import explanations

_WINDOW: Final = 3.0  # seconds; the exporter's own

#: Seconds for one answer of the server, and between two looks at it.
_ANSWER: Final = 5.0
_AGAIN: Final = 0.25

Rows = list[mx_wire.SourceInstanceRef]
Samples = list[tuple[str, Mapping[str, str], float]]


def follow(source: LabSource, fleet: Fleet, sysfs: pathlib.Path, prometheus: str, server: str) -> list[Hop]:
    """Every station of `source`'s load, in order; a station that has nothing says why."""
    counter = _counter(source, sysfs)  # first: it takes the whole window
    page = _page(f"http://{fleet.nodes[source.node].ip}:{EXPORTER_PORT}/metrics")
    return [counter, *_exporter(source, page), _prometheus(source, prometheus), *_server(source, server)]


def _counter(source: LabSource, sysfs: pathlib.Path) -> Hop:
    file = sysfs / "class/infiniband" / source.device / "ports/1/counters/port_xmit_data"
    before, start = int(file.read_text()), time.monotonic()
    time.sleep(_WINDOW)
    words, seconds = int(file.read_text()) - before, time.monotonic() - start
    rate = words * 4 / seconds
    note = f"port_xmit_data +{words:,} words in {seconds:.1f} s = {rate / 1e9:.1f} GB/s of {LINK / 1e9:.0f}"
    return Hop("NIC counter", rate / LINK, 0.0, note)


def _page(url: str) -> Samples:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310
            text = answer.read().decode()
    except OSError:
        return []
    return [(s.name, s.labels, s.value) for family in text_string_to_metric_families(text) for s in family.samples]


def _exporter(source: LabSource, page: Samples) -> list[Hop]:
    if not page:
        return [Hop("exporter", None, None, "no exporter answers on this node")]
    sampled = [value for name, _, value in page if name == "mx_exporter_sample_timestamp_seconds"]
    age = time.time() - sampled[0] if sampled else None
    tx = [
        value
        for name, labels, value in page
        if name == "hw_network_bandwidth_utilization"
        and labels["device"] == source.device
        and labels["network_io_direction"] == "transmit"
    ]
    loads = [(labels, value) for name, labels, value in page if name == "mx_source_load" and _is(labels, source)]
    kv = [value for name, labels, value in page if name == "mx_kv_cache_usage" and _is(labels, source)]
    note = f"max of NIC and KV cache ({kv[0]:.2f})" if kv else "no KV cache reading"
    mapping = loads[0][0]["nic_mapping"] if loads else "?"
    return [
        Hop("NIC utilization", tx[0] if tx else None, age, f"transmit of {source.device}, {_WINDOW:g} s window"),
        Hop("source load", loads[0][1] if loads else None, age, f"{note}; NIC by {mapping}"),
    ]


def _is(labels: Mapping[str, str], source: LabSource) -> bool:
    return labels.get("k8s_pod_name") == source.name


def query(prometheus: str, expression: str) -> list[tuple[Mapping[str, str], float, float]]:
    """An instant vector as (labels, value, evaluation time); empty where Prometheus does not answer."""
    parameters = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://{prometheus}/api/v1/query?{parameters}", timeout=5) as answer:
            result = json.load(answer)["data"]["result"]
    except (OSError, ValueError, KeyError):
        return []
    return [(series["metric"], float(series["value"][1]), float(series["value"][0])) for series in result]


def _prometheus(source: LabSource, prometheus: str) -> Hop:
    selector = f'mx_source_load{{k8s_pod_name="{source.name}"}}'
    value, stamp = query(prometheus, selector), query(prometheus, f"timestamp({selector})")
    if not value or not stamp:
        return Hop("Prometheus", None, None, "no such series")
    return Hop("Prometheus", value[0][1], stamp[0][2] - stamp[0][1], "time since the scrape")


def _server(source: LabSource, server: str) -> list[Hop]:
    with mx_wire.channel(server) as channel:
        stub = mx_wire.P2pServiceStub(channel)
        ready = mx_wire.SourceStatus.SOURCE_STATUS_READY
        request = mx_wire.ListSourcesRequest(identity=IDENTITY, status_filter=ready)
        rows = settled(lambda timeout: list(stub.ListSources(request, timeout=timeout).instances), source.worker_id)
    row = _of(source.worker_id, rows)
    if row is None:
        return [Hop("MX server", None, None, "not listed")]
    return [*_stored(row, time.time()), _score(row.worker_id, rows)]


def settled(
    look: Callable[[float], Rows],
    worker_id: str,
    patience: float = 5.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Rows:
    """A listing in which a worker has a load: just after its own heartbeat, which carries none, it has none.

    Args:
        look: Lists once, within so many seconds.
        worker_id: Whose load.
        patience: Seconds to wait for it; the last listing is given where they run out.
        clock: Monotonic seconds.
        sleep: Waits so many seconds.
    """
    until = clock() + patience
    while True:
        rows = look(_ANSWER)
        row = _of(worker_id, rows)
        left = until - clock()
        if (row is not None and mx_wire.read_load(row) is not None) or left <= 0:
            return rows
        sleep(min(_AGAIN, left))


def _of(worker_id: str, rows: Rows) -> mx_wire.SourceInstanceRef | None:
    return next((row for row in rows if row.worker_id == worker_id), None)


def _stored(row: mx_wire.SourceInstanceRef, now: float) -> list[Hop]:
    load, age = mx_wire.read_load(row), now - row.updated_at / 1000
    if not marks.is_marked(load):
        wrote = Hop("operator's write", None, None, "none since the source's last heartbeat")
    else:
        wrote = Hop("operator's write", load, age, f"UpdateStatus, marked with nonce {marks.nonce_of(load)}")
    return [wrote, Hop("listed row", load, age, "ListSources, as a target sees it")]


def _score(worker_id: str, rows: Rows) -> Hop:
    target = mx_selector.Target(MODEL, "a-new-replica", 0, ACCELERATOR)
    standings = explanations.standings(rows, target, mx_selector.resolve("load_aware"), time.time())
    ours = next(standing for standing in standings if standing.worker_id == worker_id)
    blind = [row.worker_id for row in mx_selector.rank(rows, target, "rendezvous_hash")]
    note = (
        f"load_aware: unit hash {ours.unit_hash:.3f} less the load; place {ours.rank} of {len(rows)} for one target, "
        f"{blind.index(worker_id) + 1} without its load"
    )
    return Hop("score", ours.score, None, note)
