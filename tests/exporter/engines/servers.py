"""Engines that are not there: an HTTP server that answers as it is told, well or badly, and keeps count."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import Sequence

from tests.exporter.threaded import ThreadedServer

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclasses.dataclass
class Answer:
    """What a path answers."""

    body: bytes = b""
    status: int = 200
    kind: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    chunked: bool = False
    length: int | None = None  # what Content-Length claims, where it lies
    hang: bool = False  # before the first byte
    stall_after: int | None = None  # bytes of the body, then silence
    reset_after: int | None = None  # bytes of the body, then a reset
    endless: bytes = b""  # sent for ever after the body
    raw: bytes | None = None  # instead of an HTTP answer
    raw_endless: bytes = b""  # sent for ever after `raw`


@dataclasses.dataclass
class Request:
    path: str
    headers: dict[str, str]


class EngineServer(ThreadedServer):
    """Serves `answers` on a loopback port from a thread of its own. Change `answers` at any time."""

    def __init__(
        self,
        answers: dict[str, Answer] | None = None,
        tls: ssl.SSLContext | None = None,
        host: str | Sequence[str] = "127.0.0.1",
        port: int = 0,
        remember: bool = True,
    ) -> None:
        super().__init__(host, port, tls)
        self.answers = answers or {}
        self.requests: list[Request] = []
        self.connections = 0
        self._remember = remember

    def text(self, page: str, path: str = "/metrics", kind: str = TEXT) -> EngineServer:
        """Answer this page from now on."""
        self.answers[path] = Answer(page.encode(), kind=kind)
        return self

    def asked(self, path: str) -> int:
        return sum(request.path == path for request in self.requests)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ValueError):
            while request := await _request(reader):
                if self._remember:
                    self.requests.append(request)
                await self._answer(self.answers.get(request.path, Answer(status=404)), writer)

    async def _answer(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        if answer.hang:
            await asyncio.Event().wait()
        if answer.raw is not None:
            writer.write(answer.raw)
            await writer.drain()
            while answer.raw_endless:
                await _send(writer, answer.raw_endless, chunked=False)
            return
        length = len(answer.body) if answer.length is None else answer.length
        framing = "Transfer-Encoding: chunked" if answer.chunked or answer.endless else f"Content-Length: {length}"
        lines = [f"HTTP/1.1 {answer.status} OK", f"Content-Type: {answer.kind}", framing]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await self._body(answer, writer, answer.chunked or bool(answer.endless))

    async def _body(self, answer: Answer, writer: asyncio.StreamWriter, chunked: bool) -> None:
        limit = min(x for x in (answer.stall_after, answer.reset_after, len(answer.body)) if x is not None)
        for start in range(0, limit, 1 << 16):
            await _send(writer, answer.body[start : min(start + (1 << 16), limit)], chunked)
        if answer.reset_after is not None:
            writer.transport.abort()
        if answer.stall_after is not None:
            await asyncio.Event().wait()
        while answer.endless:
            await _send(writer, answer.endless, chunked)
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _send(writer: asyncio.StreamWriter, piece: bytes, chunked: bool) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    await writer.drain()
    await asyncio.sleep(0)  # a reader that keeps up must not keep the loop


async def _request(reader: asyncio.StreamReader) -> Request | None:
    first = await reader.readline()
    if not first:
        return None
    headers = {}
    while line := (await reader.readline()).strip().decode():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Request(first.split()[1].decode(), headers)
