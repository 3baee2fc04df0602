"""One pull from one source: how long it took and how it ended, under the released client's metric names."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from mx_selector import telemetry


class Attempt:
    """A context manager around one pull.

    Leaving it normally is a success, unless `missing`, `incompatible` or `failed` said otherwise; leaving it with an
    exception is a failed transfer (or, from inside `metadata`, a missed lookup). The exception passes through.
    """

    def __init__(self, source: Any, policy: str, *, last: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        self.source = source
        self.policy = policy
        self._last = last
        self._clock = clock
        self._result: str | None = None
        self._pull_started: float | None = None
        #: Seconds of the transfer; None until it ended, and where none was started.
        self.seconds: float | None = None

    def __enter__(self) -> Attempt:
        self._pull_started = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        result = self._result or self._outcome(error)
        if result not in ("metadata_miss", "incompatible"):
            self.seconds = self._clock() - (self._pull_started or 0.0)
        telemetry.recorder().attempted(self.source, self.policy, result, self.seconds)

    def _outcome(self, error: BaseException | None) -> str:
        if error is None:
            return "success"
        # An interrupt or exit ends the load: no other source will be tried.
        return "transfer_fallback" if self._last or not isinstance(error, Exception) else "transfer_retry"

    def missing(self) -> None:
        """The server or the source knows no metadata of this source."""
        self._result = "metadata_miss"

    def incompatible(self) -> None:
        """The metadata says that this source cannot serve this target after all."""
        self._result = "incompatible"

    def failed(self) -> None:
        """The transfer failed without an exception."""
        self._result = "transfer_fallback" if self._last else "transfer_retry"

    @contextlib.contextmanager
    def metadata(self) -> Iterator[None]:
        """The lookup that precedes the transfer: timed by itself, and a miss where it raises."""
        try:
            with self.phase("metadata"):
                yield
        except BaseException:
            self.missing()
            telemetry.recorder().metadata_failed(self.policy)
            raise
        self._pull_started = self._clock()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time one phase: metadata, prepare, register, handshake, receive, finalize or release."""
        started, outcome = self._clock(), "error"
        try:
            yield
            outcome = "ok"
        finally:
            telemetry.recorder().phase(self.policy, name, outcome, self._clock() - started)
