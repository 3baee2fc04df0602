"""A real Redis on a port of its own."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence

from mx_lab.processes import Process, free_port, listens


class RedisServer:
    """A running server, which can be killed and started again on the same port."""

    def __init__(self, folder: pathlib.Path, arguments: Sequence[str]) -> None:
        self.port, self._folder, self._arguments = free_port(), folder, arguments
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: Process | None = None

    def start(self) -> None:
        """Start it; without persistence, so that a restart loses everything."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = Process("redis", [*command, *self._arguments], self._folder / "redis.log")
        self.process.wait_ready(lambda: listens(self.port))

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.kill()


@contextlib.contextmanager
def redis_server(folder: pathlib.Path, arguments: Sequence[str] = ()) -> Iterator[RedisServer]:
    """Run Redis with its log in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    server = RedisServer(folder, arguments)
    server.start()
    try:
        yield server
    finally:
        server.kill()
