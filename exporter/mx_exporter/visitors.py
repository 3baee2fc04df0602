"""Who is connected to our server: a bounded number, each given a bounded time to say what it wants and to take it.

aiohttp answers whoever asks and waits for whoever does not. `serving` puts this between it and the sockets, so that
clients that never finish a request, or never read the answer, cost a few file descriptors for a few seconds.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable

from aiohttp import typedefs, web


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """How many connections are held and for how long. Seconds."""

    asking: float = 10.0  # from the connection, or a further request's first byte, to the end of the request's headers
    #: From there until the answer is taken and the next request begins; a little more than aiohttp gives to the polite.
    resting: float = 80.0
    each: int = 64  # connections of one address; all of a cluster may come from one
    all: int = 256


class Visitors:
    """Every connection of one server. Where there are too many, the one whose last request is longest ago ends.

    Not the new one: it may be the scrape, while the others are held open by somebody who wants none.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._present: dict[asyncio.BaseTransport, _Visitor] = {}  # the longest silent first
        self._of_address: collections.Counter[str] = collections.Counter()

    def admitting(self, inner: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """A factory of protocols that watches over the connections of another one's."""
        return lambda: _Visitor(self, inner())

    @web.middleware
    async def asked(self, request: web.Request, handler: typedefs.Handler) -> web.StreamResponse:
        """Sees every request as soon as its headers are there."""
        transport = request.transport
        visitor = self._present.pop(transport, None) if transport is not None else None
        if visitor is not None and transport is not None:
            self._present[transport] = visitor
            visitor.asked()
        return await handler(request)

    def came(self, visitor: _Visitor) -> None:
        """One more; another goes where that is too many."""
        self._present[visitor.transport] = visitor
        self._of_address[visitor.address] += 1
        if self._of_address[visitor.address] > self.patience.each:
            next(one for one in self._present.values() if one.address == visitor.address).end()
        elif len(self._present) > self.patience.all:
            next(iter(self._present.values())).end()

    def leave(self) -> None:
        """All go."""
        for visitor in list(self._present.values()):
            visitor.end()

    def went(self, visitor: _Visitor) -> None:
        """One less."""
        if self._present.pop(visitor.transport, None) is not None:
            self._of_address[visitor.address] -= 1
            if not self._of_address[visitor.address]:
                del self._of_address[visitor.address]


class _Visitor(asyncio.Protocol):
    """One connection: hands everything on to aiohttp's protocol, and ends when its time is over."""

    transport: asyncio.Transport

    def __init__(self, visitors: Visitors, inner: asyncio.Protocol) -> None:
        self._visitors, self._inner = visitors, inner
        self._timer: asyncio.TimerHandle | None = None
        self._resting = False
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        self._inner.connection_made(transport)
        self._wait(self._visitors.patience.asking)
        self._visitors.came(self)

    def data_received(self, data: bytes) -> None:
        if self._resting:
            self._resting = False
            self._wait(self._visitors.patience.asking)
        self._inner.data_received(data)

    def asked(self) -> None:
        """Its request is there."""
        self._resting = True
        self._wait(self._visitors.patience.resting)

    def end(self) -> None:
        """End it, whatever is still to be sent: `close` would wait for a client that does not read."""
        self._visitors.went(self)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._visitors.went(self)
        self._inner.connection_lost(exc)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)
