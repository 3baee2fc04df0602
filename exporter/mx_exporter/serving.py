"""Our own HTTP server: the page, health and readiness, TLS and a login where they are configured.

It runs in a thread with its own event loop, so that neither sampling nor scraping engines ever waits for a reader.
Pages come from memory; nothing a client sends reaches anything but this module.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
import threading
from collections.abc import Callable

from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError

from mx_exporter.access import Certificates, Gate
from mx_exporter.errors import ConfigurationError
from mx_exporter.exposition import Pages
from mx_exporter.loops import settle
from mx_exporter.negotiation import takes_gzip
from mx_exporter.snapshot import Present
from mx_exporter.visitors import Patience, Visitors

_REFRESH = 30.0  # seconds between two looks at the certificate
_NO_SAMPLE = "no sample yet\n"


class Server:
    """Serves the latest snapshot."""

    def __init__(
        self,
        host: str,
        port: int,
        pages: Pages,
        present: Present,
        gate: Gate,
        certificates: Certificates | None = None,
        patience: Patience | None = None,
    ) -> None:
        """Makes a server that does not listen yet.

        Args:
            host: The address to listen on; none, or `::`, for all of them, of both families.
            port: The port; 0 takes a free one.
            pages: What renders snapshots.
            present: What to show.
            gate: Who may read /metrics.
            certificates: For TLS; None for plain HTTP.
            patience: How many clients are held and for how long.
        """
        self._host, self._port = host, port
        self._pages = pages
        self._present = present
        self._gate = gate
        self._certificates = certificates
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mx-server", daemon=True)
        self._visitors = Visitors(patience or Patience())
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._refreshing: asyncio.Task[None] | None = None

    def start(self) -> tuple[str, int]:
        """Listen; returns the address and port that were bound.

        Raises:
            ConfigurationError: The address cannot be listened on.
        """
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def stop(self) -> None:
        """Stop listening; requests under way are given a moment."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    async def _listen(self) -> tuple[str, int]:
        app = web.Application(middlewares=[self._visitors.asked])
        app.add_routes(
            [
                web.get("/", self._front),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=75.0, logger=_http_log()
        )
        await self._runner.setup()
        assert self._runner.server is not None
        try:
            self._listener = await self._bound(self._visitors.admitting(self._runner.server))
        except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
            why = (getattr(error, "strerror", None) or str(error)).split("] ")[-1]
            raise ConfigurationError(f"--listen {self._host}:{self._port}: {why}: choose another") from None
        if self._certificates is not None:
            self._refreshing = asyncio.create_task(self._refresh(self._certificates))
        host, port = self._listener.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def _bound(self, protocols: Callable[[], asyncio.Protocol]) -> asyncio.Server:
        tls = self._certificates.context if self._certificates else None
        handshake = self._visitors.patience.asking if tls else None
        listen = functools.partial(
            asyncio.get_running_loop().create_server, protocols, ssl=tls, ssl_handshake_timeout=handshake, backlog=128
        )
        if self._host in ("", "::") and socket.has_dualstack_ipv6():
            # By itself asyncio would listen to IPv6 alone on `::`.
            both = socket.create_server(("::", self._port), family=socket.AF_INET6, dualstack_ipv6=True)
            return await listen(sock=both)
        return await listen(self._host or "0.0.0.0", self._port)  # noqa: S104 - `:9500` is how one asks for that

    async def _close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
        if self._listener is not None:
            await _stop_taking(self._listener)
        if self._runner is not None:
            await self._runner.cleanup()
        self._visitors.leave()
        await settle()

    async def _refresh(self, certificates: Certificates) -> None:
        while True:
            await asyncio.sleep(_REFRESH)
            certificates.refresh()

    async def _front(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text="mx-exporter: /metrics /healthz /readyz\n")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        # Only the page asks for a login: probes come from the kubelet, which has none.
        if not self._gate.allows(request.headers.get(hdrs.AUTHORIZATION, "")):
            headers = {hdrs.WWW_AUTHENTICATE: self._gate.challenge}
            return web.Response(status=401, headers=headers, text="login needed\n")
        snapshot = self._present.get()
        if snapshot is None:
            return web.Response(status=503, text=_NO_SAMPLE)
        compressed = takes_gzip(request.headers.get(hdrs.ACCEPT_ENCODING, ""))
        body, content_type = self._pages.page(snapshot, request.headers.get(hdrs.ACCEPT, ""), compressed)
        headers = {hdrs.CONTENT_TYPE: content_type, hdrs.VARY: "Accept, Accept-Encoding"}
        if compressed:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=body, headers=headers)

    async def _healthz(self, _request: web.Request) -> web.StreamResponse:
        age = self._present.age()
        if age is None or age > self._present.stale_after:
            return web.Response(status=503, text=_NO_SAMPLE if age is None else f"last sample {age:.1f} s ago\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.StreamResponse:
        latest = self._present.latest
        if latest is None:
            return web.Response(status=503, text=_NO_SAMPLE)
        if latest.discovery_age is None:
            return web.Response(status=503, text="discovery has not answered yet\n")
        return web.Response(text="ok\n")


def _http_log() -> logging.Logger:
    """The log of requests that failed, without those that were none: a line of garbage is not worth a traceback."""
    log = logging.getLogger("mx_exporter.http")
    if _is_ours not in log.filters:
        log.addFilter(_is_ours)
    return log


def _is_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def _stop_taking(listener: asyncio.Server) -> None:
    """Close a listener after who is being taken has been: asyncio (3.11) drops them without closing their sockets."""
    for taking in listener.sockets:
        asyncio.get_running_loop().remove_reader(taking.fileno())
    await settle()
    listener.close()
