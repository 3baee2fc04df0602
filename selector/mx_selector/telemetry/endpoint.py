"""One `/metrics` for all ranks of a pod, served by whichever of them lives.

Every rank waits for one lock; the kernel hands it on the moment its holder ends, and who has it serves. So there is no
interval to tune, no two ranks that both believe they serve, and a port taken by something else is told apart from one
taken by another rank.
"""

from __future__ import annotations

import os
import pathlib
import threading
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from mx_selector import settings
from mx_selector.telemetry import spool
from mx_selector.telemetry.pages import Collector


class Endpoint:
    """Serves `collector` as soon as this process may."""

    def __init__(
        self, collector: Collector, address: str, port: int, turn: pathlib.Path | None, retry_seconds: float
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)  # type: ignore[arg-type, unused-ignore]
        self._address, self._port, self._turn, self._retry = address, port, turn, retry_seconds
        self._lock: int | None = None
        self._server: Any = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Wait for the turn and serve, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="mx-selector-metrics", daemon=True).start()

    def _run(self) -> None:
        try:
            if self._turn is not None:
                self._lock = spool.locked(self._turn)
            while not self._stopped.is_set() and not self._bind():
                self._stopped.wait(self._retry)
        except Exception as error:  # noqa: BLE001 - a thread of ours must not print a traceback into an engine's log
            settings.say_once(f"metrics: no endpoint: {error!r}")

    def _bind(self) -> bool:
        try:
            self._server, _ = start_http_server(self._port, self._address, self._registry)
        except OSError as error:
            settings.say_once(
                f"metrics: {self._address}:{self._port} cannot be served ({error.strerror}); no rank of this pod has "
                f"it, so something else does or it is not permitted: set MX_METRICS_PORT. Trying again meanwhile"
            )
            return False
        if self._lock is not None:  # for people who look into the folder: who serves
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
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
