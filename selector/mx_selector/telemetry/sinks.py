"""Where updates go: the pod's own `/metrics` page, OpenTelemetry, or prometheus_client's registry inside an engine.

Each is made only where it is wanted and its library is there; `telemetry` decides.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mx_selector import settings
from mx_selector.telemetry import families, values
from mx_selector.telemetry.families import Family, Kind, Update
from mx_selector.telemetry.spool import Spool
from mx_selector.telemetry.values import Snapshot

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - Prometheus comes from another host
_KINDS = values.kinds_of(families.ALL)


class PageSink:
    """Keeps this process' values, shares them with the other ranks, and serves everybody's when it is its turn.

    Joining the others and serving happen in a thread: whoever records waits for nobody.
    """

    def __init__(self, environ: settings.Environment) -> None:
        from mx_selector.telemetry import endpoint, pages

        port, named = settings.metrics_port(environ), environ.get("MX_METRICS_DIR")
        self._values = values.Values()
        self._folder, self._shared = pathlib.Path(named or _default_folder(port)), bool(named)
        self._spool: Spool | None = None
        self._writing = threading.Lock()
        self._endpoint = endpoint.Endpoint(
            pages.Collector(families.ALL, self.read),
            environ.get("MX_METRICS_ADDRESS") or _EVERY_ADDRESS,
            port,
            settings.bind_retry_seconds(environ),
        )
        threading.Thread(target=self._run, name="mx-selector-metrics", daemon=True).start()

    def _run(self) -> None:
        try:
            self.join()
            self._endpoint.serve(self._folder / "turn" if self._spool else None)
        except Exception as error:  # noqa: BLE001 - a thread of ours must not print a traceback into an engine's log
            settings.say_once(f"metrics: no endpoint: {error!r}")

    def join(self) -> None:
        """Take a place among the ranks and show them what was recorded so far."""
        try:
            spool = Spool(self._folder, _KINDS, shared=self._shared)
        except OSError as error:
            settings.say_once(f"metrics: only of this process, not of the other ranks: {error}")
            return
        with self._writing:
            self._spool = spool
        self._share()

    def record(self, updates: Sequence[Update]) -> None:
        """Keep them and show them to the other ranks."""
        self._values.record(updates)
        self._share()

    def _share(self) -> None:
        with self._writing:
            if self._spool is None:
                return
            try:
                self._spool.write(self._values.snapshot())
            except OSError as error:  # kept here, and written with the next record
                settings.say_once(f"metrics: cannot be shared with the other ranks for now: {error}")

    def read(self) -> Snapshot:
        """The values of all ranks at this moment."""
        others = self._spool.others() if self._spool is not None else []
        return values.current(values.merge([self._values.snapshot(), *others], _KINDS), _KINDS, time.time())

    def close(self) -> None:
        """Stop serving and leave the folder."""
        self._endpoint.close()
        if self._spool is not None:
            self._spool.close()

    def close_after_fork(self) -> None:
        """In a forked child: everything here is the parent's."""
        self._endpoint.close_after_fork()
        if self._spool is not None:
            self._spool.close()


def _default_folder(port: int) -> str:
    return os.path.join(tempfile.gettempdir(), f"mx-selector-{os.geteuid()}-{port}")


class OpenTelemetrySink:
    """Feeds the process' MeterProvider, if it has one, through the API alone.

    As long as nobody has imported OpenTelemetry there can be no provider, and this does nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._instruments: dict[str, Any] = {}
        self._gauges = values.Values(clock)
        self._meter: Any = None

    def record(self, updates: Sequence[Update]) -> None:
        """Pass them on."""
        if "opentelemetry.metrics" not in sys.modules:
            return
        if self._meter is None:
            from opentelemetry import metrics

            self._meter = metrics.get_meter("mx_selector", settings.version())
        for update in updates:
            self._pass_on(update)

    def _pass_on(self, update: Update) -> None:
        family = update.family
        if family.name not in self._instruments:
            self._instruments[family.name] = self._instrument(family)
        if family.kind is Kind.GAUGE:
            self._gauges.record([update])
            return
        attributes = dict(zip(family.labels, update.labels, strict=True))
        if family.kind is Kind.COUNTER:
            self._instruments[family.name].add(update.value, attributes)
        else:
            self._instruments[family.name].record(update.value, attributes)

    def _instrument(self, family: Family) -> Any:
        # The unit becomes the suffix again on its way to Prometheus.
        name = family.name.removesuffix("_seconds") if family.unit else family.name
        if family.kind is Kind.COUNTER:
            return self._meter.create_counter(name, description=family.help)
        if family.kind is Kind.GAUGE:
            return self._meter.create_observable_gauge(
                name, [lambda _: self._observe(family.name)], description=family.help
            )
        about = {"unit": family.unit, "description": family.help}
        try:
            return self._meter.create_histogram(
                name, explicit_bucket_boundaries_advisory=[float(bound) for bound in family.buckets], **about
            )
        except TypeError:  # an API from before 1.30
            return self._meter.create_histogram(name, **about)

    def _observe(self, name: str) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        held = values.current(self._gauges.snapshot(), _KINDS, self._clock())
        return [
            Observation(value[0], dict(zip(labels, given, strict=True)))
            for (family, labels, given), value in held.items()
            if family == name
        ]


class RegistrySink:
    """Feeds prometheus_client's own registry, for use inside an engine that serves it (the released client's, vLLM's).

    Only our own families: those of the released client are recorded by itself there.
    """

    def __init__(self, registry: Any = None) -> None:
        import prometheus_client

        registry = registry or prometheus_client.REGISTRY
        self._metrics = {
            family.name: _client_metric(prometheus_client, family, registry)
            for family in (families.CHOSEN_LOAD, families.CHOSEN_LOAD_AGE, families.CHOSEN_UNKNOWN, families.FALLBACKS)
        }

    def record(self, updates: Sequence[Update]) -> None:
        """Pass on those of ours."""
        for update in updates:
            metric = self._metrics.get(update.family.name)
            if metric is not None:
                series = metric.labels(*update.labels)
                if update.family.kind is Kind.COUNTER:
                    series.inc(update.value)
                else:
                    series.observe(update.value)


def _client_metric(library: Any, family: Family, registry: Any) -> Any:
    if family.kind is Kind.COUNTER:
        return library.Counter(family.name, family.help, family.labels, registry=registry)
    return library.Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=registry)
