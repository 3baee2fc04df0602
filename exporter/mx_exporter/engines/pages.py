"""The HTTP seam: reads one page of one pod, or says in one word why not.

Nothing of a page is believed before it has arrived whole, and nothing that a target does (hang, stop half way, send
too much, redirect, compress) reaches beyond its own scrape.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import ssl
import zlib
from collections.abc import AsyncGenerator

import aiohttp
import yarl

from mx_exporter.connections import Sockets, cut
from mx_exporter.credentials import TokenFile
from mx_exporter.engines.gauges import Table
from mx_exporter.engines.lines import LineFilter
from mx_exporter.engines.settings import ScrapeSettings
from mx_exporter.engines.targets import Target
from mx_exporter.errors import ConfigurationError

# Text first: every engine has it and it is the cheaper one to make. Not compressed: the engine would pay for it.
_HEADERS = {
    "Accept": "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": "mx-exporter",
}
_PIECE = 64 << 10


class PageError(Exception):
    """There is no page. `reason` is one of a fixed set of words; `detail` is for the log."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """The wanted lines of a page that was read to its end."""

    lines: tuple[bytes, ...]
    overlong: int  # wanted lines that were too long to keep


class Pages:
    """A session of kept-alive connections; lives in one event loop."""

    def __init__(self, table: Table, settings: ScrapeSettings) -> None:
        self._table, self._settings = table, settings
        self._tls = _Tls(settings)
        self._token = TokenFile(settings.bearer_token_file)
        self._sockets = Sockets()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                limit_per_host=2,
                keepalive_timeout=3 * settings.interval + settings.max_backoff,
                socket_factory=self._sockets.make,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=_HEADERS,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        self._sockets.hang_up()

    async def read(self, target: Target, path: str) -> Page:
        """Read one page.

        Args:
            target: The port of the pod.
            path: A path of it.

        Raises:
            PageError: There is none.
        """
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await self._read(target, path)
        except TimeoutError:
            raise PageError("timeout", f"not read within {self._settings.timeout} s") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise PageError("tls", str(error)) from error
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise PageError("tls", str(error)) from error
        except aiohttp.ClientConnectorError as error:
            raise PageError(_no_connection(error.os_error), str(error)) from error
        except aiohttp.ClientPayloadError as error:
            raise PageError("truncated", str(error)) from error
        except (aiohttp.ClientResponseError, aiohttp.InvalidURL) as error:
            raise PageError("not_http", str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise PageError("reset", str(error)) from error

    async def _read(self, target: Target, path: str) -> Page:
        request = self._session.get(
            _url(target, path),
            allow_redirects=False,
            ssl=self._tls.context() if target.scheme == "https" else True,
            server_hostname=self._settings.server_name if target.scheme == "https" else None,
            headers=self._authorization(target),
        )
        async with request as response:
            try:
                openmetrics = _check(response)
                lines = LineFilter(self._table, self._settings.max_line)
                async with contextlib.aclosing(_pieces(response)) as pieces:
                    async for piece in pieces:
                        lines.feed(piece)
                        if lines.size > self._settings.max_page:
                            raise PageError("too_large", f"more than {self._settings.max_page} bytes")
                        if lines.overfull:
                            raise PageError("too_many_series")
            finally:
                cut(response)  # nothing to cut where the body was read to its end: that connection is kept
        return _whole(lines, openmetrics)

    def _authorization(self, target: Target) -> dict[str, str]:
        verified = target.scheme == "https" and not self._settings.insecure_skip_verify
        return self._token.header() if verified or self._settings.bearer_over_http else {}


def _no_connection(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return "reset" if isinstance(error, ConnectionError) else "unreachable"


def _url(target: Target, path: str) -> yarl.URL:
    host = f"[{target.pod.ip}]" if ":" in target.pod.ip else target.pod.ip
    return yarl.URL(f"{target.scheme}://{host}:{target.port}{path}", encoded=True)


def _check(response: aiohttp.ClientResponse) -> bool:
    """Refuse what is no page of metrics; whether it calls itself OpenMetrics."""
    if 300 <= response.status < 400:
        raise PageError("redirect", "redirects are not followed")
    if response.status == 404:
        raise PageError("not_found")
    if response.status != 200:
        raise PageError("http_status", f"status {response.status}")
    kind = response.content_type
    if kind.endswith("json"):
        raise PageError("json", "JSON is no page of metrics")
    if kind in ("text/html", "application/vnd.google.protobuf"):
        raise PageError("not_metrics", kind)
    return kind == "application/openmetrics-text"


async def _pieces(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The body in pieces of bounded size, decompressed."""
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("identity", ""):
        async for piece in response.content.iter_any():
            yield piece
        return
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise PageError("encoding", f"{encoding[:40]} was not asked for")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        async for packed in response.content.iter_any():
            if unpack.eof:
                raise PageError("encoding", "more after the end of the compressed body")
            while packed:
                # Bounded, so that a small body cannot become a large one before its size is looked at.
                yield unpack.decompress(packed, _PIECE)
                packed = unpack.unconsumed_tail
    except zlib.error as error:
        raise PageError("encoding", str(error)) from error
    if unpack.unused_data:
        raise PageError("encoding", "more after the end of the compressed body")
    if not unpack.eof:
        raise PageError("truncated", "the compressed body ends early")


def _whole(lines: LineFilter, openmetrics: bool) -> Page:
    if lines.size == 0:
        raise PageError("empty")
    if lines.first in b"[{":
        raise PageError("json", "JSON is no page of metrics, whatever it calls itself")
    if openmetrics and not lines.ended:
        raise PageError("truncated", "no # EOF")
    if not (lines.whole or (openmetrics and lines.ended)):
        raise PageError("truncated", "the last line does not end")
    return Page(tuple(lines.lines), lines.overlong)


class _Tls:
    """How certificates are verified; made at the first https page, again when the CA file changes."""

    def __init__(self, settings: ScrapeSettings) -> None:
        self._settings = settings
        self._stamp: int | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """The context to use now.

        Raises:
            PageError: The CA file cannot be used.
        """
        try:
            ca = self._settings.ca_file
            stamp = os.stat(ca).st_mtime_ns if ca else None
            if self._context is None or stamp != self._stamp:
                self._context, self._stamp = _context(self._settings), stamp
        except (OSError, ssl.SSLError) as error:
            if self._context is None:
                raise PageError("tls", str(error)) from error
        return self._context


def _context(settings: ScrapeSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
    if settings.insecure_skip_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def check(settings: ScrapeSettings) -> None:
    """Look at the files that the settings name, before anything starts.

    Raises:
        ConfigurationError: One of them cannot be used.
    """
    if settings.ca_file is not None:
        try:
            _context(settings)
        except (OSError, ssl.SSLError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(f"{settings.ca_file}: {why}: name a PEM file of CA certificates") from error
    path = settings.bearer_token_file
    if path is not None and not os.access(path, os.R_OK):
        raise ConfigurationError(f"{path}: cannot be read: name a file that holds the bearer token")
