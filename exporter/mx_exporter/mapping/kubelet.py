"""The seam to the kubelet: its pod-resources socket, asked now and then from a thread of its own.

Nothing waits for the kubelet: what it said last is used, and a pod it does not know yet is mapped by other means until
it does.
"""

from __future__ import annotations

import logging
import pathlib
import threading

from mx_exporter.mapping.allocations import Allocations, parse
from mx_exporter.mapping.unary import call

_LOG = logging.getLogger("mx_exporter")
_METHOD = "/v1.PodResourcesLister/List"
_LARGEST = 16 << 20  # bytes


class Kubelet:
    """Keeps the allocations of this node's pods."""

    def __init__(self, socket: pathlib.Path, every: float = 10.0, timeout: float = 5.0) -> None:
        """Asks nothing yet.

        Args:
            socket: The pod-resources socket (/var/lib/kubelet/pod-resources/kubelet.sock).
            every: Seconds between two questions; `hurry` asks sooner.
            timeout: Seconds to wait for an answer.
        """
        self.socket = socket
        self._every = every
        self._timeout = timeout
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        #: Why the last question had no answer; None when it had one, and before the first.
        self.problem: str | None = None
        #: What the kubelet said last; empty before it said anything.
        self.allocations: Allocations = {}

    def start(self) -> None:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._run, name="mx-kubelet", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; while it waits for an answer it is left to end by itself."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def hurry(self) -> None:
        """Ask soon: somebody met a pod that was not known when the kubelet was last asked."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self.ask()
            self._wake.wait(self._every)
            if self._wake.is_set() and not self._stopping:
                threading.Event().wait(1.0)  # not more often than this, however many new pods there are
            self._wake.clear()

    def ask(self) -> None:
        """Asks once; what was known stays when there is no answer."""
        try:
            self.allocations = parse(call(self.socket, _METHOD, b"", self._timeout, _LARGEST))
            problem = None
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if problem != self.problem:
            _LOG.warning("--pod-resources %s %s", self.socket, f"cannot be asked: {problem}" if problem else "answers")
        self.problem = problem
