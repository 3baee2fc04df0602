"""OTLP pushes, received by a receiver made of opentelemetry-proto and by a real Prometheus 3: as the scraped page."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import gzip
import http.server
import pathlib
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.sdk.resources import Resource

from mx_exporter.config import OtlpSettings
from mx_exporter.errors import ConfigurationError
from mx_exporter.otlp import Push, metrics_url
from tests.exporter.looking import START, Looking
from tests.exporter.test_exposition import full
from tests.parts import prometheus, tools

RESOURCE = Resource({"service.name": "mx-exporter", "service.instance.id": "n1", "k8s.cluster.name": "c1"})


@dataclasses.dataclass
class Receiver:
    """What was received, and with which headers."""

    endpoint: str = ""
    requests: list[service.ExportMetricsServiceRequest] = dataclasses.field(default_factory=list)
    headers: list[dict[str, str]] = dataclasses.field(default_factory=list)

    def metrics(self) -> dict[str, metrics_pb2.Metric]:
        """The metrics of the last push, by name."""
        scopes = [scope for found in self.requests[-1].resource_metrics for scope in found.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@contextlib.contextmanager
def over_http() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/metrics"
            receiver.requests.append(service.ExportMetricsServiceRequest.FromString(body))
            receiver.headers.append({key.lower(): value for key, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(service.ExportMetricsServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    receiver.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def over_grpc() -> Iterator[Receiver]:
    receiver = Receiver()

    def export(request: service.ExportMetricsServiceRequest, context: grpc.ServicerContext) -> object:
        receiver.requests.append(request)
        receiver.headers.append({str(key): str(value) for key, value in context.invocation_metadata()})
        return service.ExportMetricsServiceResponse()

    handler = grpc.unary_unary_rpc_method_handler(
        export, service.ExportMetricsServiceRequest.FromString, service.ExportMetricsServiceResponse.SerializeToString
    )
    name = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {"Export": handler})])
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


RECEIVERS = {"http/protobuf": over_http, "grpc": over_grpc}


@contextlib.contextmanager
def pushing(looking: Looking, settings: OtlpSettings) -> Iterator[Push]:
    push = Push(settings, RESOURCE, START, looking.present.get)
    push.start()
    try:
        yield push
    finally:
        push.stop()


def series(metric: metrics_pb2.Metric) -> dict[frozenset[tuple[str, str]], float]:
    """Labels -> value of a pushed metric."""
    points = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
    return {
        frozenset((attribute.key, attribute.value.string_value) for attribute in point.attributes): (
            point.as_double if point.HasField("as_double") else float(point.as_int)
        )
        for point in points
    }


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_push_says_what_the_page_says(tmp_path: pathlib.Path, protocol: str) -> None:
    looking = full(tmp_path)
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer t0ken\nx-scope: a\n")
    with RECEIVERS[protocol]() as receiver:
        settings = OtlpSettings(receiver.endpoint, protocol, interval=3600, headers_file=headers)
        with pushing(looking, settings) as push:
            push.flush()
            metrics = receiver.metrics()
        assert receiver.headers[0]["authorization"] == "Bearer t0ken"
        assert len(receiver.requests) == 2  # one asked for, one at the end
    page = looking.page()
    for name, printed in {
        "hw.network.io": "hw_network_io_bytes_total",
        "hw.network.bandwidth.limit": "hw_network_bandwidth_limit_bytes_per_second",
        "hw.network.bandwidth.utilization": "hw_network_bandwidth_utilization",
        "mx.source.load": "mx_source_load",
        "mx.kv_cache.usage": "mx_kv_cache_usage",
        "mx.exporter.unknown": "mx_exporter_unknown",
    }.items():
        lines = [line for line in page.splitlines() if line.startswith(printed + "{")]
        assert sorted(series(metrics[name]).values()) == sorted(float(line.rsplit(" ", 1)[1]) for line in lines), name
        assert len(lines) == len(series(metrics[name]))
    found = receiver.requests[0].resource_metrics[0].resource.attributes
    assert {one.key: one.value.string_value for one in found}["k8s.cluster.name"] == "c1"
    counter = metrics["hw.network.io"].sum
    assert counter.is_monotonic
    assert counter.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert "mx.build.info" in metrics


def test_nothing_is_pushed_before_the_first_tick_and_nothing_old_as_new(tmp_path: pathlib.Path) -> None:
    looking = full(tmp_path)
    with over_http() as receiver:
        settings = OtlpSettings(receiver.endpoint, "http/protobuf", interval=3600)
        silent = Push(settings, RESOURCE, START, lambda: None)
        silent.start()
        silent.flush()
        silent.stop()
        assert receiver.requests == []
        looking.clock.now += 60
        with pushing(looking, settings) as push:
            push.flush()
        assert "mx.source.load" not in receiver.metrics()
        assert "mx.exporter.unknown" in receiver.metrics()


def test_a_receiver_that_is_away_is_only_logged(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    looking = full(tmp_path)
    with pushing(looking, OtlpSettings("http://127.0.0.1:9", "http/protobuf", interval=3600, timeout=0.3)) as push:
        push.flush()
    assert "Failed to export" in caplog.text


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("interval", [0.05, 3600.0], ids=["in the middle of a push", "between two pushes"])
def test_a_receiver_that_hangs_does_not_keep_us_from_ending(
    tmp_path: pathlib.Path, protocol: str, interval: float
) -> None:
    """A pod that does not end within its grace period is killed."""
    looking = full(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = OtlpSettings(endpoint, protocol, interval=interval, timeout=10)
        with pushing(looking, settings):
            time.sleep(0.3)
            began = time.monotonic()
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("given", "posted"),
    [
        ("http://c:4318", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/metrics"),
        ("http://p:9090/api/v1/otlp", "http://p:9090/api/v1/otlp/v1/metrics"),
        ("https://v/custom/path", "https://v/custom/path"),
    ],
)
def test_a_base_gets_the_path(given: str, posted: str) -> None:
    assert metrics_url(given) == posted


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("line", ["no colon here", ": a", "a b: c", "ä: b", "a: ü", "a: b\x07c"])
def test_headers_that_are_none_are_said(tmp_path: pathlib.Path, line: str, protocol: str) -> None:
    """At start: what no transport can send would fail at every push."""
    (tmp_path / "h").write_text(line)
    with pytest.raises(ConfigurationError, match="give one `name: value` a line"):
        Push(OtlpSettings("http://c:1", protocol, headers_file=tmp_path / "h"), RESOURCE, START, lambda: None)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"ca_file": "none"}, "otlp: .*none: No such file or directory: name a PEM file of CA certificates"),
        ({"ca_file": "garbage"}, "otlp: .*garbage: .*: name a PEM file of CA certificates"),
        ({"cert_file": "garbage"}, "otlp needs both certFile and keyFile: give the other one too"),
        ({"key_file": "garbage"}, "otlp needs both certFile and keyFile: give the other one too"),
        (
            {"cert_file": "garbage", "key_file": "none"},
            "otlp: .*garbage, .*none: .*: give a PEM certificate and its key",
        ),
    ],
)
def test_files_that_cannot_be_used_are_said(
    tmp_path: pathlib.Path, files: dict[str, str], complaint: str, protocol: str
) -> None:
    (tmp_path / "garbage").write_text("garbage")
    named: dict[str, pathlib.Path] = {name: tmp_path / file for name, file in files.items()}
    with pytest.raises(ConfigurationError, match=complaint):
        Push(OtlpSettings("https://c:1", protocol, **named), RESOURCE, START, lambda: None)  # type: ignore[arg-type]


@pytest.mark.tools("prometheus")
def test_prometheus_3_stores_the_push_under_the_names_of_the_page(tmp_path: pathlib.Path) -> None:
    looking = full(tmp_path)
    looking.clock.wall = lambda: __import__("time").time()  # type: ignore[method-assign]
    looking.ticker._wall = looking.clock.wall
    looking.tick()
    arguments = ["--web.enable-otlp-receiver"]
    with prometheus.prometheus(tmp_path / "p", binary=tools.tool("prometheus"), arguments=arguments) as server:
        settings = OtlpSettings(f"{server.url}/api/v1/otlp", "http/protobuf", interval=3600)
        with pushing(looking, settings) as push:
            push.flush()
        server.wait_for("mx_source_load")
        stored = server.query('{__name__=~"(hw|mx)_.+"}')
    page = looking.page()
    ours: dict[str, list[float]] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            ours.setdefault(line.split("{")[0].split(" ")[0], []).append(float(line.rsplit(" ", 1)[1]))
    theirs: dict[str, list[float]] = {}
    for labels, value in stored:
        theirs.setdefault(labels["__name__"], []).append(value)
    theirs.pop("mx_build_info")  # left out of our page of the test
    assert theirs.keys() == ours.keys()
    assert {name: sorted(found) for name, found in theirs.items()} == {
        name: sorted(found) for name, found in ours.items()
    }
