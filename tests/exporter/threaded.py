"""Servers for tests: an event loop in a thread, and one way to end every connection at once."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import Self  # since 3.11

_T = TypeVar("_T")


class LoopThread:
    """An event loop in a thread of its own while entered."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(_cancel_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, what: Coroutine[Any, Any, _T]) -> _T:
        """Run it in the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)


class ThreadedServer(LoopThread):
    """A TCP server on the loopback that keeps its port while it is closed and opened again. Override `converse`."""

    def __init__(
        self, host: str | Sequence[str] = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__()
        self.host, self.port = host, port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        super().__enter__()
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        super().__exit__()

    def open(self) -> None:
        """Listen; who was connected is cut off first."""
        self.run(self._open())

    def close(self) -> None:
        """Cease to listen and cut everybody off: the process is gone."""
        self.run(self._close())

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk to one client. The connection ends with it; errors of the connection are no errors."""
        raise NotImplementedError

    async def _open(self) -> None:
        await self._close()
        self._server = await asyncio.start_server(self._serve, self.host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0.01)  # what was cut is closed a turn later

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self.converse(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
