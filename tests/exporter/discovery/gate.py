"""A TCP gate in front of a server: open, shut (connections refused) or silent (taken and left alone)."""

from __future__ import annotations

import asyncio
import contextlib

from tests.exporter.threaded import ThreadedServer


class Gate(ThreadedServer):
    """Passes bytes to `port` on the loopback while open; whatever changes the state cuts what was connected."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._behind = port
        self._silent = False

    def open(self) -> None:
        self._silent = False
        super().open()

    def silence(self) -> None:
        """Take connections and bytes, and answer nothing."""
        self._silent = True
        super().open()

    def shut(self) -> None:
        self.close()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._silent:
            await asyncio.Event().wait()
        back, far = await asyncio.open_connection("127.0.0.1", self._behind)
        try:
            await asyncio.gather(_copy(reader, far), _copy(back, writer))
        finally:
            far.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
