"""Metrics of selection: opt-in, bounded, and never in the way.

`recorder()` is what the rest of the package calls; what it feeds is decided here, at the first call of a process, from
the environment:

- `MX_METRICS_ENABLED=1` serves a page with the values of all ranks of the pod (`sinks.PageSink`);
- OpenTelemetry is fed wherever the process has it (`sinks.OpenTelemetrySink`);
- inside the released client, whose page exists already, our families join it (`ride_along`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from mx_selector import settings
from mx_selector.telemetry import events, sinks
from mx_selector.telemetry.recorder import Recorder, Sink

_lock = threading.Lock()
_recorder: Recorder | None = None
_riding_along = False


def recorder() -> Recorder:
    """This process' recorder; made at the first call, and anew in a forked child. Never raises."""
    global _recorder
    if _recorder is None:
        with _lock:
            if _recorder is None:
                _recorder = _make(os.environ)
    return _recorder


def ride_along() -> None:
    """Join the page that the released client serves in this process instead of serving one."""
    global _riding_along, _recorder
    with _lock:
        if not _riding_along:
            _riding_along, _recorder = True, None


def _make(environ: settings.Environment) -> Recorder:
    labels = events.Labels(environ.get("MX_METRICS_SCHEME", ""), settings.flag(environ, "MX_METRICS_SOURCE_ID_LABEL"))
    made: list[Sink | None] = [_try(sinks.OpenTelemetrySink)]
    if settings.flag(environ, "MX_METRICS_ENABLED"):
        made.append(_try(sinks.RegistrySink if _riding_along else lambda: sinks.PageSink(environ)))
    fresh = Recorder([sink for sink in made if sink is not None], labels)
    fresh.started(settings.version())
    return fresh


def _try(make: Callable[[], Sink]) -> Sink | None:
    try:
        return make()
    except ImportError as error:
        settings.say_once(f"metrics: {error.name} is missing: pip install 'mx-source-load[selector]'")
    except Exception as error:  # noqa: BLE001 - telemetry never stops a load
        settings.say_once(f"metrics: switched off: {error!r}")
    return None


def _after_fork() -> None:
    global _recorder, _lock
    _lock = threading.Lock()
    settings.forget_threads()
    if _recorder is not None:
        _recorder.close_after_fork()
        _recorder = None


os.register_at_fork(after_in_child=_after_fork)
