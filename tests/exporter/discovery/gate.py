"""A TCP gate in front of a server: open, shut (connections refused) or silent (taken and left alone)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any


class Gate:
    """Passes bytes to `port` on the loopback while open; whatever changes the state cuts what was connected."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._silent = False
        self.port = 0

    def __enter__(self) -> Gate:
        self._thread.start()
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self) -> None:
        self._run(self._begin(silent=False))

    def silence(self) -> None:
        """Take connections and bytes, and answer nothing."""
        self._run(self._begin(silent=True))

    def shut(self) -> None:
        self._run(self._end())

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _begin(self, silent: bool) -> None:
        await self._end()
        self._silent = silent
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # what was cut is closed a turn later

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            if self._silent:
                await asyncio.Event().wait()
            back, far = await asyncio.open_connection("127.0.0.1", self._behind)
            await asyncio.gather(_copy(reader, far), _copy(back, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()
            self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
