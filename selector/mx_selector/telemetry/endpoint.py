"""One `/metrics` for all ranks of a pod, served by whichever of them lives.

Every rank waits for one lock; the kernel hands it on the moment its holder ends, and who has it serves. So there is no
interval to tune, no two ranks that both believe they serve, and a port taken by something else is told apart from one
taken by another rank.
"""

from __future__ import annotations

import os
import pathlib
import threading
import time
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server

from mx_selector import settings
from mx_selector.telemetry import spool
from mx_selector.telemetry.pages import Collector

_GRACE_SECONDS: Final = 2.0


class Endpoint:
    """Serves `collector` as soon as this process may. A port of 0 is never served."""

    def __init__(self, collector: Collector, address: str, port: int, retry_seconds: float) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._address, self._port, self._retry = address, port, retry_seconds
        self._lock: int | None = None
        self._server: Any = None
        self._stopped = threading.Event()

    def serve(self, turn: pathlib.Path | None) -> None:
        """Wait for the lock `turn`, if there is one, then for the port; returns when it is served, or closed."""
        if self._port and turn is not None:
            self._lock = spool.locked(turn)
            os.ftruncate(self._lock, 0)  # for people who look into the folder: whose turn it is
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        grace = time.monotonic() + _GRACE_SECONDS
        while self._port and not self._stopped.is_set() and not self._bind(patient=time.monotonic() < grace):
            # Of a rank that was killed, the lock can be free a moment before its port is.
            self._stopped.wait(0.01 if time.monotonic() < grace else self._retry)

    def _bind(self, *, patient: bool) -> bool:
        try:
            with _binding:
                self._server, _ = start_http_server(self._port, self._address, self._registry)
        except OSError as error:
            if not patient:
                settings.say_once(
                    f"metrics: {self._address}:{self._port} cannot be served ({error.strerror}); no rank of this pod "
                    f"has it, so something else does or it is not permitted: set MX_METRICS_PORT. Trying on"
                )
            return False
        settings.logger.info("metrics of all ranks are served on %s:%d", self._address, self._port)
        return True

    def close(self) -> None:
        """Stop serving and hand the turn on."""
        self._stopped.set()
        if self._server is not None:
            self._server.shutdown()
        self.close_after_fork()

    def close_after_fork(self) -> None:
        """In a forked child: let go of the parent's socket, which would otherwise outlive the parent unserved."""
        if self._server is not None:
            self._server.socket.close()
        if self._lock is not None:
            os.close(self._lock)


# A fork in the middle of a bind would give the child a socket that nobody knows of: it would keep the port from
# everybody, itself included, once the parent is gone. So forks wait for the bind, which takes a millisecond.
_binding = threading.Lock()
os.register_at_fork(before=_binding.acquire, after_in_parent=_binding.release, after_in_child=_binding.release)
