"""One answer for many who ask the same at the same time, none of it older than its asker.

Used by `service` for listings: when a rollout starts a hundred targets at once, the store is read twice, not a hundred
times. Who asks while a read runs does not get that one, which may have missed a write he knows of, but the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class SharedReads(Generic[_K, _V]):
    """Shares reads by key: at most one of a key runs, and at most one waits for it to end.

    Args:
        read: The read; it must end by itself, since no caller can end it for the others.
    """

    def __init__(self, read: Callable[[_K], Awaitable[_V]]) -> None:
        self._read = read
        self._running: dict[_K, asyncio.Task[_V]] = {}
        self._waiting: dict[_K, asyncio.Task[_V]] = {}

    async def get(self, key: _K) -> _V:
        """The value of a read that began after this call; raises what that read raised."""
        running = self._running.get(key)
        if running is None:
            task = self._running[key] = asyncio.create_task(self._run(key))
        elif key in self._waiting:
            task = self._waiting[key]
        else:
            task = self._waiting[key] = asyncio.create_task(self._run_after(key, running))
        return await asyncio.shield(task)

    async def _run_after(self, key: _K, running: asyncio.Task[_V]) -> _V:
        await asyncio.wait([running])
        # The read begins: who asks from here on waits for another.
        task = self._waiting.pop(key)
        self._running[key] = task
        return await self._run(key)

    async def _run(self, key: _K) -> _V:
        task = asyncio.current_task()
        assert task is not None
        # Callers may all be gone by the time it fails; then nobody else takes note of the error.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await self._read(key)
        finally:
            if self._running.get(key) is task:
                del self._running[key]
