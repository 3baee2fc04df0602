"""A TCP proxy that can cut connections, refuse them, or keep them open without letting a byte through."""

from __future__ import annotations

import contextlib
import enum
import select
import socket
import threading
from collections.abc import Iterator


class Mode(enum.Enum):
    PASS = "pass"
    REFUSE = "refuse"  # new connections are closed at once
    HANG = "hang"  # new connections are taken and never answered
    HOLD = "hold"  # new connections are taken and go on once the mode is another


class Proxy:
    """Forwards to a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.mode = Mode.PASS
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: set[socket.socket] = set()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """Close every open connection; how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def silence(self) -> int:
        """Let no byte through on the connections that are open now, for good; they stay open. How many there are."""
        with self._lock:
            self._silent.update(end for pair in self._pairs for end in pair)
            return len(self._pairs)

    def close(self) -> None:
        self._closed.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        while self.mode is Mode.HOLD and not self._closed.is_set():
            self._closed.wait(0.05)
        if self.mode is Mode.REFUSE:
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            client.close()
            return
        with self._lock:
            self._pairs.append((client, server))
            if self.mode is Mode.HANG:
                self._silent.update((client, server))
        self._forward(client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        with contextlib.suppress(OSError, ValueError), client, server:
            while not self._closed.is_set():
                readable, _, _ = select.select(list(other), [], [], 0.2)
                if (client, server) not in self._pairs:
                    return
                for end in readable:
                    if end in self._silent:
                        self._closed.wait(0.05)
                        continue
                    data = end.recv(65536)
                    if not data:
                        return
                    other[end].sendall(data)


@contextlib.contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
