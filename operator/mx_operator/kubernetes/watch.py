"""The watch: kopf in a thread and an event loop of its own, started again whenever it ends.

Only `kopf.on.event` is used: it leaves no finalizer, no annotation and no request behind. A Kubernetes problem ends
kopf (an ERROR inside a watch, a 403 that lasts), and kopf ending cancels every task of its loop: so it has its own,
and the load loop never notices. What kopf misses, the bridge's lists find.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import kopf

from mx_operator.kubernetes.access import Access
from mx_operator.policies import GROUP, PLURAL, VERSION

_LOG: Final = logging.getLogger(__name__)
#: Seconds before kopf is started again, doubled each time it ends within a minute.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_GOODBYE: Final = 0.1

#: Called in the watch's thread with the event's type (None for what was there at the start) and the resource.
Seen = Callable[[str | None, Mapping[str, Any]], None]


class Watch:
    """A thread that watches the policies."""

    def __init__(self, access: Access, seen: Seen) -> None:
        """Make one; nothing is started.

        Args:
            access: Where to get credentials.
            seen: Takes each event.
        """
        self._access = access
        self._seen = seen
        self._stop = threading.Event()
        self._run = threading.Event()  # stops one run of kopf
        self._thread = threading.Thread(target=self._keep_running, name="kopf", daemon=True)
        #: How often kopf ended and was started again.
        self.restarts = 0
        #: How many events came; the first ones are what is there at the start.
        self.events = 0

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self, timeout: float = 8.0) -> None:
        """Stop, and wait for the thread at most `timeout` seconds."""
        self._stop.set()
        self._run.set()
        self._thread.join(timeout)

    def renew(self) -> None:
        """Start kopf again: it has missed something, as it does once its watcher is dead and nobody notices."""
        self._run.set()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def _keep_running(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            started = time.monotonic()
            self._run_once()
            if self._stop.is_set():
                return
            self.restarts += 1
            pause = _FIRST_PAUSE if time.monotonic() - started > _LONGEST_PAUSE else min(pause * 2, _LONGEST_PAUSE)
            self._stop.wait(pause)

    def _run_once(self) -> None:
        loop, self._run = asyncio.new_event_loop(), threading.Event()
        if self._stop.is_set():
            self._run.set()
        try:
            kopf.run(
                loop=loop,
                registry=self._registry(),
                settings=settings(),
                clusterwide=True,
                standalone=True,
                stop_flag=self._run,
            )
        except Exception as error:  # noqa: BLE001 - whatever ended it, it is started again
            _LOG.warning("the watch on policies ended and is started again: %s", error or type(error).__name__)
        finally:
            self._run.set()  # a thread of kopf waits for it, whatever else ended kopf
            loop.run_until_complete(_wind_up(loop))
            loop.close()

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.ConnectionInfo:
            return self._access()

        @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
        async def seen(event: Mapping[str, Any], **_: Any) -> None:
            self.events += 1
            self._seen(event.get("type"), event["object"])

        return registry


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Let closed TLS connections say goodbye; kopf leaves that to whoever owns the loop."""
    await asyncio.sleep(_GOODBYE)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def settings() -> kopf.OperatorSettings:
    """Kopf's settings for a watch that notices a dead connection and adds nothing of its own to the cluster."""
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True  # a stray peering object must not freeze us
    chosen.posting.enabled = False
    chosen.watching.server_timeout = 300
    chosen.watching.connect_timeout = 30
    chosen.networking.request_timeout = 30
    chosen.networking.error_backoffs = (1, 2, 3, 5)
    chosen.process.ultimate_exiting_timeout = None  # it would kill the whole process
    return chosen
