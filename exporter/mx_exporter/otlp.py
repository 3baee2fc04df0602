"""Pushing the same metrics over OTLP, where an endpoint is configured; only then is any of it imported.

A push sends what a scrape at that moment would show, with the same names and values. What cannot be delivered is logged
by the SDK and dropped: the next push carries the present again.
"""

from __future__ import annotations

import logging
import pathlib
import re
import ssl
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.resources import Resource

from mx_exporter.config import OtlpSettings
from mx_exporter.documents import read
from mx_exporter.errors import ConfigurationError
from mx_exporter.exposition import metrics_data
from mx_exporter.snapshot import Snapshot
from mx_exporter.telemetry import families

_LOG = logging.getLogger("mx_exporter")
_LAST_PUSH = 3.0  # seconds
_HEADER = re.compile(r"[A-Za-z0-9_.-]+")  # what both transports can send


class Push:
    """Pushes the present every interval, from a thread of its own, until it is stopped."""

    def __init__(
        self, settings: OtlpSettings, resource: Resource, start: float, present: Callable[[], Snapshot | None]
    ) -> None:
        """Makes the exporter; nothing is sent yet.

        Args:
            settings: Where to and how; with an endpoint.
            resource: What the metrics describe.
            start: Since when the counters count, in seconds since 1970.
            present: What a scrape would show now; None before the first tick.

        Raises:
            ConfigurationError: A file that the settings name cannot be used.
        """
        self._settings = settings
        self._resource = resource
        self._start = start
        self._present = present
        self._exporter = _exporter(settings)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to push."""
        self._thread = threading.Thread(target=self._run, name="mx-otlp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._settings.interval):
            self.flush()
        self.flush()  # the last one

    def flush(self) -> None:
        """Push now and wait for it."""
        snapshot = self._present()
        if snapshot is None:
            return
        data = metrics_data(families(snapshot), self._resource, self._start, snapshot.wall)
        try:
            self._exporter.export(data, timeout_millis=self._settings.timeout * 1e3)
        except Exception:  # noqa: BLE001 - whatever a transport raises, the next push is tried all the same
            _LOG.exception("OTLP: nothing was pushed to %s", self._settings.endpoint)

    def stop(self) -> None:
        """One last push, then no more. A receiver that hangs is not waited for: a pod has seconds to end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(min(self._settings.timeout, _LAST_PUSH))
            self._exporter.shutdown(timeout_millis=0)


def metrics_url(endpoint: str) -> str:
    """The URL that OTLP over HTTP posts to: a base (`http://collector:4318`, Prometheus' `.../otlp`) gets the path."""
    path = urlsplit(endpoint).path.rstrip("/")
    return endpoint.rstrip("/") + "/v1/metrics" if path == "" or path.endswith("/otlp") else endpoint


def _exporter(settings: OtlpSettings) -> MetricExporter:
    headers = _headers(settings.headers_file)
    _check(settings)
    assert settings.endpoint is not None
    if settings.protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        return HttpExporter(
            metrics_url(settings.endpoint),
            certificate_file=_name(settings.ca_file),
            client_key_file=_name(settings.key_file),
            client_certificate_file=_name(settings.cert_file),
            headers=headers,
            timeout=settings.timeout,
        )
    import grpc
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

    secure = settings.endpoint.startswith("https://")
    credentials = None
    if secure:
        files = [_bytes(path) for path in (settings.ca_file, settings.key_file, settings.cert_file)]
        credentials = grpc.ssl_channel_credentials(*files)
    return GrpcExporter(
        settings.endpoint, insecure=not secure, credentials=credentials, headers=headers, timeout=settings.timeout
    )


def _check(settings: OtlpSettings) -> None:
    """Look at the files, which a transport would first do at a push.

    Raises:
        ConfigurationError: One of them cannot be used.
    """
    ca, cert, key = settings.ca_file, settings.cert_file, settings.key_file
    if (cert is None) != (key is None):
        raise ConfigurationError("otlp needs both certFile and keyFile: give the other one too")
    files, mend = f"{ca}", "name a PEM file of CA certificates"
    try:
        context = ssl.create_default_context(cafile=_name(ca))
        if cert is not None:
            files, mend = f"{cert}, {key}", "give a PEM certificate and its key"
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise ConfigurationError(f"otlp: {files}: {error.strerror or error}: {mend}") from error


def _name(path: pathlib.Path | None) -> str | None:
    return None if path is None else str(path)


def _bytes(path: pathlib.Path | None) -> bytes | None:
    return None if path is None else read(path, "a PEM file").encode()


def _headers(path: pathlib.Path | None) -> dict[str, str] | None:
    """Headers from a file of `name: value` lines, so that a token is no command line argument."""
    if path is None:
        return None
    headers = {}
    for line in filter(None, map(str.strip, read(path, "a file of headers").splitlines())):
        name, colon, value = line.partition(":")
        if not colon or not _HEADER.fullmatch(name.strip()) or not (value.isascii() and value.isprintable()):
            raise ConfigurationError(f"{path}: give one `name: value` a line, in ASCII")
        headers[name.strip().lower()] = value.strip()
    return headers
