"""The operator as one running process: policies from a file or from the cluster, one fleet of loops, one HTTP door."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import pathlib
import signal
import sys
from typing import Any, Final

from mx_operator.loop.fleet import Fleet
from mx_operator.mx.making import make_server
from mx_operator.policies import Limits, PolicyError, read_policies
from mx_operator.prometheus.clients import HttpSignal
from mx_operator.telemetry.http import serving
from mx_operator.telemetry.metrics import Metrics
from mx_operator.telemetry.status import StatusLog, as_document

_LOG: Final = logging.getLogger(__name__)
#: Seconds between looks at whether the policy file changed.
_LOOK: Final = 2.0


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the door was given.

    Attributes:
        listen: Host and port of the HTTP door.
        policy: The policy file; None for the cluster's custom resources.
        limits: What policies may name.
        scheme: Label value of the clients' series.
        per_source: Whether to serve two series per listed source.
        written: Whether to serve two more, which say what was written last.
    """

    listen: tuple[str, int]
    policy: str | None
    limits: Limits
    scheme: str = ""
    per_source: bool = True
    written: bool = False


async def run(options: Options) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        PolicyError: The policy file cannot be used.
        OSError: The address cannot be listened on.
        NoCluster: There is neither a policy file nor a cluster.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics(options.scheme, options.per_source, options.written)
    if options.policy is not None:
        await _with_file(options, options.policy, metrics, stop)
    else:
        await _with_cluster(options, metrics, stop)


async def _with_file(options: Options, path: str, metrics: Metrics, stop: asyncio.Event) -> None:
    policies = _Files(path, options.limits)
    first = policies.read()
    sink = StatusLog()
    fleet = Fleet(make_server, HttpSignal, sink, metrics)
    async with serving(options.listen, fleet, metrics.page, sink.document) as address:
        _say(address, f"{len(first)} polic{'y' if len(first) == 1 else 'ies'} from {path}")
        fleet.apply(first)
        await _until(stop, fleet, _follow(policies, fleet, sink))


async def _with_cluster(options: Options, metrics: Metrics, stop: asyncio.Event) -> None:
    from mx_operator.kubernetes import AccessError, Bridge

    try:
        bridge = Bridge(limits=options.limits)
    except AccessError as error:
        raise NoCluster(str(error)) from error
    fleet = Fleet(make_server, HttpSignal, bridge, metrics)

    def status() -> Any:
        return dataclasses.asdict(bridge.health()) | {"policies": [as_document(r) for r in metrics.reports()]}

    async with serving(options.listen, fleet, metrics.page, status) as address:
        _say(address, "policies from the cluster")
        await _until(stop, fleet, bridge.run(fleet))


def _say(address: str, what: str) -> None:
    sys.stderr.write(f"mx-operator: serving http://{address}/metrics ({what})\n")


async def _until(stop: asyncio.Event, fleet: Fleet, work: Any) -> None:
    """Run `work` until the process is told to stop; then end the loops."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, stopping):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await fleet.close()


class NoCluster(Exception):  # noqa: N818 (reads as what it is)
    """There is neither a policy file nor a cluster; the message says what to do."""


class _Files:
    """The policy file, and whether it changed."""

    def __init__(self, path: str, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._version: object = None

    def read(self) -> Any:
        """The policies as the file has them now; says its warnings."""
        self._version = self._look()
        policies, warnings = read_policies(self._path, self._limits)
        for warning in warnings:
            _LOG.warning("%s: %s", self._path, warning)
        return policies

    def changed(self) -> bool:
        """Whether the file is another than the one read last (a mounted config map is replaced by a rename)."""
        return self._look() != self._version

    def _look(self) -> object:
        try:
            stat = os.stat(pathlib.Path(self._path))
        except OSError:
            return None
        return (stat.st_mtime_ns, stat.st_ino, stat.st_size)


async def _follow(files: _Files, fleet: Fleet, sink: StatusLog) -> None:
    """Take up what is written into the file; a file that cannot be used leaves the last good one running."""
    while True:
        await asyncio.sleep(_LOOK)
        if not files.changed():
            continue
        try:
            policies = files.read()
        except PolicyError as error:
            _LOG.error("the policies stay as they were: %s", error)
            continue
        _LOG.info("policies read again: %d", len(policies))
        fleet.apply(policies)
        sink.keep({policy.name for policy in policies})
