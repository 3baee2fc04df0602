"""All endpoints at once: who is served follows the policies, and nobody's trouble is another's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import mx_wire
from mx_operator.loop import reporting
from mx_operator.loop.endpoints import CycleObserver, Endpoint, EndpointKey
from mx_operator.loop.queries import MakeClient
from mx_operator.mx.servers import MxServer
from mx_operator.policies.spec import Server, SourceLoadPolicy
from mx_operator.ports import StatusSink

_LOG: Final = logging.getLogger(__name__)
#: A loop that has not ended a cycle for so many intervals hangs.
_LATE_TICKS: Final = 3
#: Longest honest cycle in seconds: list, queries, identities, writes, a rank, each at its deadline.
_LONGEST_CYCLE: Final = 12.0
_POLLS_TO_UNREADY: Final = 3
#: Seconds before an endpoint whose certificates cannot be read is tried again.
_TRY_AGAIN: Final = 30.0

MakeServer = Callable[[Server], MxServer]


class Fleet:
    """Runs one `Endpoint` for each distinct MX server of the policies; a `ports.PolicyConsumer`."""

    def __init__(self, server: MakeServer, signals: MakeClient, sink: StatusSink, observer: CycleObserver) -> None:
        """Make it inside a running event loop; it serves nobody until `apply`."""
        self._server, self._signals, self._sink, self._observer = server, signals, sink, observer
        self._endpoints: dict[EndpointKey, Endpoint] = {}
        self._tasks: dict[EndpointKey, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._broken: dict[EndpointKey, list[SourceLoadPolicy]] = {}
        self._now = asyncio.get_running_loop().time
        self._applied = False

    def apply(self, policies: Sequence[SourceLoadPolicy], unsupported: Collection[str] = ()) -> None:
        """Serve exactly these; see `ports.PolicyConsumer`."""
        self._applied = True
        wanted: dict[EndpointKey, list[SourceLoadPolicy]] = {}
        for policy in policies:
            wanted.setdefault(EndpointKey.of(policy), []).append(policy)
        for key in self._endpoints.keys() - wanted.keys():
            self._stop(key)
        self._broken = {key: policies for key, policies in self._broken.items() if key in wanted}
        for key, theirs in wanted.items():
            if key in self._endpoints:
                self._endpoints[key].use(theirs, unsupported)
            else:
                self._start(key, theirs, unsupported)

    def _start(self, key: EndpointKey, policies: Sequence[SourceLoadPolicy], unsupported: Collection[str]) -> None:
        try:
            server = self._server(key.server)
        except mx_wire.ConfigurationError as error:
            self._unusable(key, policies, unsupported, error)
            return
        self._broken.pop(key, None)
        endpoint = Endpoint(key, server, self._signals, self._sink, self._observer)
        endpoint.use(policies, unsupported)
        self._endpoints[key] = endpoint
        self._tasks[key] = asyncio.create_task(endpoint.run(), name=f"endpoint {key.server.address}")

    def _unusable(
        self,
        key: EndpointKey,
        policies: Sequence[SourceLoadPolicy],
        unsupported: Collection[str],
        error: mx_wire.ConfigurationError,
    ) -> None:
        """Certificates may be mounted later: say it, try again in a while, and let the other endpoints go on."""
        _LOG.error("%s: %s", key.server.address, error)
        self._broken[key] = list(policies)
        for policy in policies:
            self._sink.publish(reporting.unusable(policy, "Configuration", str(error), time.time()))

        def again() -> None:
            if (now := self._broken.get(key)) is not None:
                self._start(key, now, unsupported)

        asyncio.get_running_loop().call_later(_TRY_AGAIN, again)

    def _stop(self, key: EndpointKey) -> None:
        self._endpoints.pop(key).use(())
        task = self._tasks.pop(key)
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    @property
    def alive(self) -> bool:
        """Whether every loop still turns: what a liveness probe asks. Nobody else's outage changes it."""
        return all(
            not self._tasks[key].done()
            and self._now() - endpoint.ticked < _LATE_TICKS * endpoint.interval + _LONGEST_CYCLE
            for key, endpoint in self._endpoints.items()
        )

    @property
    def ready(self) -> bool:
        """Whether every endpoint was listed not long ago: what a readiness probe asks."""
        return self._applied and not self.unready()

    def unready(self) -> list[str]:
        """Addresses of the endpoints that did not answer three lists in a row, or never did."""
        silent = [
            key.server.address
            for key, endpoint in self._endpoints.items()
            if self._now() - endpoint.last_good_list >= _POLLS_TO_UNREADY * max(endpoint.interval, 2.0)
        ]
        return silent + [key.server.address for key in self._broken]

    async def close(self) -> None:
        """Stop everything and wait until it has."""
        self._broken.clear()
        for key in list(self._endpoints):
            self._stop(key)
        for task in list(self._ending):
            with contextlib.suppress(asyncio.CancelledError):
                await task
