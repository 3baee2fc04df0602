"""One query, values and ages, on the Prometheus that users run: what a fake can only repeat is seen here."""

from __future__ import annotations

import asyncio
import http.server
import math
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mx_operator.core.joins import NO_SERIES, Absent, Reading, find
from mx_operator.core.model import Identity, Row, SourceKey
from mx_operator.policies.spec import Prometheus, Reduce, Signal
from mx_operator.prometheus.clients import HttpSignal
from mx_operator.prometheus.errors import PrometheusError
from tests.parts import prometheus as parts

ROW = Row(SourceKey("0123456789abcdef", "w"), 0, "m", 1, None)


class Page:
    """A target whose page can be changed and taken away."""

    def __init__(self) -> None:
        self.text, self.up = "", True
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if page.up else 500)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(page.text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    yield made
    made.server.shutdown()
    made.server.server_close()


async def ask(url: str, query: str, host: str = "10.0.0.1", **changes: Any) -> Reading | Absent:
    client = HttpSignal(Prometheus(url, timeout=5.0), Signal("s", query, **changes))
    try:
        return find(await client.ask(), ROW, Identity(host))
    finally:
        client.close()


async def reason(url: str, query: str, **changes: Any) -> str:
    with pytest.raises(PrometheusError) as caught:
        await ask(url, query, **changes)
    return caught.value.reason


async def test_values_come_with_the_ages_of_their_samples(
    page: Page, prometheus_binary: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    pushed = round(time.time() * 1000)
    page.text = (
        'load{k8s_pod_ip="10.0.0.1",gpu="0"} 0.25\n'
        f'pushed{{k8s_pod_ip="10.0.0.1"}} 0.75 {pushed}\n'
        'odd{k8s_pod_ip="10.0.0.1"} NaN\nodd{k8s_pod_ip="10.0.0.2"} +Inf\n'
        'twice{k8s_pod_ip="10.0.0.1",engine="0"} 0.1\ntwice{k8s_pod_ip="10.0.0.1",engine="1"} 0.3\n'
    )
    target = f"127.0.0.1:{page.server.server_port}"
    with parts.prometheus(tmp_path / "p", {"exporter": [target]}, binary=prometheus_binary) as server:
        server.wait_for("count_over_time(load[1m]) > 2")
        url = server.url
        plain = await ask(url, "load")
        assert isinstance(plain, Reading)
        assert (plain.value, 0 <= plain.age < 1.6) == (0.25, True)

        derived = "max by (k8s_pod_ip) (load) # the largest"
        times = "min by (k8s_pod_ip) (timestamp(load))"
        aged = await ask(url, derived, freshness_query=times)
        assert isinstance(aged, Reading)
        assert (aged.value, 0 <= aged.age < 1.6) == (0.25, True)

        # A series with a time of its own does not end when its pod does, and looks fresh to a plain query.
        old = await ask(url, "pushed")
        assert isinstance(old, Reading)
        assert old.age == pytest.approx(time.time() - pushed / 1000, abs=1.0)
        assert old.age > 2

        nan = await ask(url, "odd")
        assert isinstance(nan, Reading)
        assert math.isnan(nan.value)
        infinite = await ask(url, "odd", "10.0.0.2")
        assert isinstance(infinite, Reading)
        assert math.isinf(infinite.value)

        several = await ask(url, "twice", reduce=Reduce.MAX)
        assert isinstance(several, Reading)
        assert several.value == 0.3
        assert isinstance(await ask(url, "twice"), Absent)

        long = "load" + "".join(f" or absent_{n}" for n in range(1000))
        assert isinstance(await ask(url, f"({long})", freshness_query="timestamp(load)"), Reading), "no 414"

        assert await reason(url, "load +") == "HTTP400"
        assert await reason(url, "load * on (k8s_pod_ip) twice", freshness_query="timestamp(load)") == "HTTP422"
        assert await reason(url, "scalar(load)", freshness_query="timestamp(load)") == "HTTP400"

        page.up = False
        await gone(url)
        assert isinstance(await ask(url, "pushed"), Reading), "and is still there when its target is down"


async def gone(url: str) -> None:
    """The first failed scrape ends a series."""
    for _ in range(40):
        if await ask(url, "load") == NO_SERIES:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("still there 4 s after its target went down")
