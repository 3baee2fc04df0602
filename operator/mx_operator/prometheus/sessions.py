"""A requests.Session for prometheus-api-client that makes up for what the library leaves open.

The library has no total deadline, puts a POST's query into the URL, and drops the answer's envelope with everything
that says it is incomplete. So this session moves the parameters into the body, reads within one deadline however
slowly the bytes come, caps them, and judges the envelope before the library unwraps it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import requests
import requests.adapters
import urllib3

from mx_operator.policies.spec import PartialResponse, Prometheus
from mx_operator.prometheus.errors import PrometheusError

#: Bytes of an answer; 10,000 sources with eight labels are about 6 MB.
MAX_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 256 * 1024
_WORDS: Final = 300


class Session(requests.Session):
    """One thread's session; `abort` may be called from any other."""

    def __init__(self, settings: Prometheus, read: Callable[[dict[str, Any]], Any] | None = None) -> None:
        """Make one.

        Args:
            settings: Whom to ask, and as whom.
            read: JSON object hook for answers.
        """
        super().__init__()
        self._read = read
        self.trust_env = False  # a .netrc must not replace our credentials
        self.verify = settings.ca_file or True
        self.cert = (settings.cert_file, settings.key_file) if settings.cert_file and settings.key_file else None
        self.headers.update(dict(settings.headers))
        self._settings = settings
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._aborted = False

    def use_own_adapter(self, url: str) -> None:
        """Replace the adapter that the library mounted for `url`."""
        self.mount(url, _Adapter(self))

    def abort(self) -> None:
        """End the request that is under way, if any: its thread returns with an error at once."""
        with self._lock:
            self._aborted = True
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            with contextlib.suppress(OSError):  # closed already
                one.shutdown(socket.SHUT_RDWR)

    def connected(self, one: socket.socket) -> None:
        """Remember an open socket for `abort`."""
        with self._lock:
            self._sockets = {known for known in self._sockets if known.fileno() >= 0} | {one}

    def resolve_redirects(self, *_: Any, **__: Any) -> Iterator[Any]:
        """None: even where they are not followed, requests would read the whole body of the answer for them."""
        return iter(())

    def request(  # type: ignore[override]
        self, method: str, url: str, params: dict[str, str], timeout: float, **arguments: Any
    ) -> requests.Response:
        """Send one query and read its whole answer, until it is here or `abort` is called.

        Args:
            method: POST.
            url: Of the query API.
            params: The query and what goes with it; sent in the body.
            timeout: Seconds for each step: connecting, each read. The deadline of the whole is the caller's.
            arguments: What the library adds.

        Raises:
            PrometheusError: The answer is aborted, too large, not Prometheus', or incomplete.
            requests.RequestException: There is none.
        """
        self._aborted = False
        try:
            with super().request(
                method, url, data=params, timeout=timeout, stream=True, allow_redirects=False, **arguments
            ) as response:
                if response.is_redirect:
                    where = response.headers.get("Location", "")
                    fix = "write the final address into prometheus.url"
                    raise PrometheusError("Redirect", f"redirects to {where}: {fix}")
                body = self._body(response)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            if self._aborted:
                raise PrometheusError("Timeout", "no complete answer in time") from error
            raise
        response._content = body
        if response.status_code == requests.codes.ok:
            envelope = self._envelope(body)
            response._content = b""  # parsed: a large fleet's answer need not be here twice
            response.json = lambda **_: envelope  # type: ignore[method-assign]
        return response

    def _body(self, response: requests.Response) -> bytes:
        parts, size = [], 0
        for part in response.iter_content(_CHUNK):
            size += len(part)
            if size > MAX_BYTES:
                raise PrometheusError(
                    "TooLarge", f"the answer is more than {MAX_BYTES >> 20} MiB: aggregate in the query"
                )
            parts.append(part)
        if self._aborted:
            raise PrometheusError("Timeout", "no complete answer in time")
        return b"".join(parts)

    def _envelope(self, body: bytes) -> dict[str, Any]:
        try:
            envelope = json.loads(body, object_hook=self._read)
            kind = envelope["data"]["resultType"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise PrometheusError("NotPrometheus", f"not a Prometheus answer: {said(body)}") from error
        if kind != "vector":
            raise PrometheusError("NotAVector", f"the query gives a {kind}, not an instant vector")
        if self._settings.partial_response is PartialResponse.REJECT:
            if envelope.get("isPartial"):
                raise PrometheusError("PartialResponse", "a part of the storage did not answer (isPartial)")
            if envelope.get("warnings"):
                raise PrometheusError("PartialResponse", str(envelope["warnings"][0])[:_WORDS])
        return dict(envelope)


def said(body: bytes) -> str:
    """What an answer that is an error says, in one line."""
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])[:_WORDS]
    except (ValueError, TypeError, KeyError, RecursionError):
        return " ".join(text.split())[:_WORDS]


class _Adapter(requests.adapters.HTTPAdapter):
    """Connections that tell their session which socket they use."""

    def __init__(self, session: Session) -> None:
        self._session = session
        super().__init__(max_retries=0)

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        session = self._session

        class Plain(urllib3.connection.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                session.connected(self.sock)

        class Secure(urllib3.connection.HTTPSConnection):
            def connect(self) -> None:
                super().connect()
                session.connected(self.sock)

        class PlainPool(urllib3.HTTPConnectionPool):
            ConnectionCls = Plain

        class SecurePool(urllib3.HTTPSConnectionPool):
            ConnectionCls = Secure

        self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}
