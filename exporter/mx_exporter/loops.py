"""An event loop in a thread of its own, for what the exporter asks of others while nobody waits for the answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger(__name__)


class LoopThread:
    """Runs one coroutine in a loop of its own until `stop`, which cancels it and waits for its end."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._main = main
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the coroutine begins in it."""
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._main())
        self._thread.start()

    def join(self) -> None:
        """Wait until the coroutine has ended by itself."""
        self._thread.join()

    def stop(self, timeout: float = 5.0) -> None:
        """Cancel the coroutine; returns when it has ended, or after `timeout` seconds."""
        if self._loop is not None and self._task is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ended by itself in between
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(timeout)

    def _run(self) -> None:
        loop, task = self._loop, self._task
        assert loop is not None
        assert task is not None
        asyncio.set_event_loop(loop)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                loop.run_until_complete(task)
        except Exception:  # noqa: BLE001 - a thread has nobody to raise to
            _log.exception("%s has ended, which it should not", self._thread.name)
        finally:
            loop.run_until_complete(settle())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


async def settle() -> None:
    """Let transports that were closed say so: each layer of TLS takes a turn of the loop."""
    for _ in range(8):
        await asyncio.sleep(0)
