"""Ends of connections that are not left to politeness: who hangs must not make us wait, and an outage must be noticed.

Closing a TLS connection in asyncio waits for the other side's farewell, up to half a minute.
"""

from __future__ import annotations

import contextlib
import socket
import weakref
from typing import Any

import aiohttp

_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class Sockets:
    """The sockets of one session: each notices within a minute that the other end is gone, and all end together."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: Any) -> socket.socket:
        """A socket for an address as `getaddrinfo` gives it; for `aiohttp.TCPConnector(socket_factory=)`."""
        made = socket.socket(*address[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._made.add(made)
        return made

    def hang_up(self) -> None:
        """End every connection now; who waits on one sees its end."""
        for made in list(self._made):
            with contextlib.suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)


def cut(response: aiohttp.ClientResponse) -> None:
    """End the connection of a response that is not read to its end; one that was keeps its connection."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
