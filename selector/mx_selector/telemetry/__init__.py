"""Metrics of selection: opt-in, bounded, and never in the way.

`recorder()` is what the rest of the package calls; which sinks it feeds is decided here, once per process, from the
environment.
"""

from __future__ import annotations

from mx_selector.telemetry.recorder import Recorder

_recorder = Recorder()


def recorder() -> Recorder:
    """This process' recorder."""
    return _recorder
