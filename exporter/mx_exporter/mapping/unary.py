"""One unary gRPC call over a unix socket, in the few HTTP/2 frames that takes (RFC 9113, gRPC over HTTP/2).

A gRPC library would cost every node ten megabytes of memory for one call every ten seconds to a local socket. This
speaks only what that call needs: no compression of headers, no second stream; the answer's headers are passed over,
since a whole message on a stream that ended is the answer and anything less is none.
"""

from __future__ import annotations

import pathlib
import socket
import struct
import time
from collections.abc import Iterator

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_STREAM = 1
_INITIAL_WINDOW_SIZE = 4  # the setting's number
_LARGEST_FRAME = 1 << 14  # what a peer may send unless told otherwise


def call(path: pathlib.Path, method: str, message: bytes, timeout: float, largest: int) -> bytes:
    """Calls a method and returns the answer's message.

    Args:
        path: The unix socket.
        method: Like `/package.Service/Method`.
        message: The encoded request.
        timeout: Seconds for all of it.
        largest: Bytes that the answer may have.

    Raises:
        OSError: Nobody listens, nothing came in time, or what came is no answer.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        peer = _Peer(connection, time.monotonic() + timeout)
        peer.connect(path)
        window = struct.pack(">HI", _INITIAL_WINDOW_SIZE, largest)
        peer.send(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, window)
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", largest))
            + _frame(_HEADERS, _END_HEADERS, _STREAM, _headers(method))
            + _frame(_DATA, _END_STREAM, _STREAM, b"\0" + struct.pack(">I", len(message)) + message)
        )
        return _message(_body(peer, largest))


def _headers(method: str) -> bytes:
    """The request's headers, each as a literal without indexing (RFC 7541, 6.2.2)."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    assert len(text) < 127, "longer ones take more than one byte for their length"
    return bytes([len(text)]) + text.encode("ascii")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


class _Peer:
    """A socket with one deadline for everything."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket = connection
        self._deadline = deadline

    def connect(self, path: pathlib.Path) -> None:
        self._wait()
        self._socket.connect(str(path))

    def send(self, content: bytes) -> None:
        self._wait()
        self._socket.sendall(content)

    def exactly(self, length: int) -> bytes:
        content = bytearray()
        while len(content) < length:
            self._wait()
            piece = self._socket.recv(length - len(content))
            if not piece:
                raise OSError("the connection was closed before the answer was whole")
            content += piece
        return bytes(content)

    def _wait(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left)


def _body(peer: _Peer, largest: int) -> bytes:
    """The data of our stream, up to its end."""
    body = bytearray()
    for kind, flags, payload in _frames(peer):
        if kind == _DATA:
            body += payload[1 : len(payload) - payload[0]] if flags & _PADDED and payload else payload
        if len(body) > largest:
            raise OSError(f"an answer of more than {largest} bytes")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return bytes(body)
    raise OSError("the call was refused")


def _frames(peer: _Peer) -> Iterator[tuple[int, int, bytes]]:
    """The frames of our stream, until it is reset; what the connection itself asks for is answered."""
    while True:
        head = peer.exactly(9)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
        if length > _LARGEST_FRAME:
            raise OSError("not HTTP/2")
        payload = peer.exactly(length)
        if kind in (_RST_STREAM, _GOAWAY):
            return
        if kind == _SETTINGS and not flags & _ACK:
            peer.send(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            peer.send(_frame(_PING, _ACK, 0, payload))
        elif stream == _STREAM:
            yield kind, flags, payload


def _message(body: bytes) -> bytes:
    """The one message of a body.

    Raises:
        OSError: There is none, or not one whole uncompressed one (an error without a message ends here, too).
    """
    if len(body) < 5 or body[0] != 0 or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise OSError("no whole message in the answer")
    return body[5:]
