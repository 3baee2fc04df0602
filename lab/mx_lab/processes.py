"""Child processes that never outlive us: what the lab starts its parts with, and the tests their real servers.

Each child leads a process group of its own, writes its output to a file, and is killed by the kernel when the thread
that started it ends without stopping it (PR_SET_PDEATHSIG, prctl(2); start children from the main thread).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_POLL_SECONDS: Final = 0.02
# Resolved before any fork: a child must not import or look up symbols between fork and exec.
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class ProcessError(RuntimeError):
    """A child that did not start, or ended when it should not have; the message ends with its last output."""


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on at `host` just now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts TCP connections at `host:port`."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False


def wait_until(
    true: Callable[[], bool], timeout: float, what: str, still_possible: Callable[[], bool] = lambda: True
) -> None:
    """Poll `true` until it holds.

    Raises:
        TimeoutError: It did not hold within `timeout` seconds, or `still_possible` became false.
    """
    end = time.monotonic() + timeout
    while not true():
        if not still_possible() or time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(_POLL_SECONDS)


def _begin() -> None:
    """In the child, before it becomes its program."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A shell makes its background jobs ignore SIGINT, and children inherit that: ours are to be interruptible.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Process:
    """One running child."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | os.PathLike[str]],
        log: pathlib.Path,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> None:
        """Start it.

        Args:
            name: How messages call it.
            command: Program and arguments; the program is looked up on PATH.
            log: File that takes its standard output and error.
            env: Its whole environment; ours when None.
            user: Numeric user and group to run as, where we are root.

        Raises:
            ProcessError: The program does not exist.
        """
        self.name, self.log = name, log
        program = shutil.which(os.fspath(command[0]))
        if program is None:
            raise ProcessError(f"{name}: no program {os.fspath(command[0])!r} on PATH")
        as_user = {"user": user, "group": user, "extra_groups": ()} if user is not None and os.geteuid() == 0 else {}
        with log.open("ab") as output:
            self._popen = subprocess.Popen(  # type: ignore[call-overload]
                [program, *(os.fspath(argument) for argument in command[1:])],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
                preexec_fn=_begin,
                **as_user,
            )

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return int(self._popen.pid)

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self._popen.poll() is None

    @property
    def output(self) -> str:
        """All it has written so far."""
        return self.log.read_text(errors="replace")

    def wait_ready(self, ready: Callable[[], bool], timeout: float = 20.0) -> None:
        """Wait until `ready` holds.

        Raises:
            ProcessError: It ended, or was not ready within `timeout` seconds.
        """
        try:
            wait_until(ready, timeout, self.name, lambda: self.running)
        except TimeoutError:
            state = f"was not ready within {timeout:g} s" if self.running else f"ended with {self._popen.returncode}"
            last = "\n".join(self.output.splitlines()[-15:])
            raise ProcessError(f"{self.name} {state}; its last output:\n{last}") from None

    def wait(self, timeout: float) -> int:
        """Wait for its end and give its exit status."""
        return int(self._popen.wait(timeout))

    def signal(self, number: signal.Signals) -> None:
        """Send `number` to its whole group, if it still runs."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the whole group at once, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()

    def stop(self, timeout: float = 5.0) -> None:
        """Ask it to end; after `timeout` seconds, or for children it left, make it."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)
        self.kill()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def stopping(processes: list[Process], timeout: float = 5.0) -> Iterator[list[Process]]:
    """Stop every process of the list at the end, those added meanwhile too, all at the same time."""
    try:
        yield processes
    finally:
        for process in processes:
            process.signal(signal.SIGTERM)
        end = time.monotonic() + timeout
        for process in reversed(processes):
            process.stop(max(0.0, end - time.monotonic()))
