"""The one seam to a Kubernetes API server: a few JSON requests over aiohttp.

Used by the Kubernetes backend and by token reviews. The official clients take 42 to 71 MB and bring a model of every
kind; what is needed here is five verbs on two kinds.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pathlib
import ssl
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from mx_server.clocks import Clock, ServerClock, wall
from mx_server.errors import ApiError, BackendUnavailable
from mx_server.settings import BadSetting, Kubernetes
from mx_wire import TokenFile

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
_MOUNT: Final = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The server's own troubles and ours with it; what is left of 4xx is an answer about the object.
_UNAVAILABLE: Final = frozenset({401, 403, 408, 429})


class KubeClient:
    """Requests to one API server.

    Args:
        place: Which server, and how it and we are identified.
        timeout: Seconds for one request, answer included.
        clock: This host's clock, in milliseconds since 1970.

    Attributes:
        clock: The API server's, as far as its answers tell.

    Raises:
        BadSetting: No server is named and this is no pod, or the CA file cannot be read.
    """

    def __init__(self, place: Kubernetes, timeout: float = 4.0, clock: Clock = wall) -> None:
        self.clock = ServerClock(clock)
        self._url, token_file, ca_file = _place(place)
        self._tokens = TokenFile(token_file) if token_file else None
        try:
            tls = ssl.create_default_context(cafile=ca_file) if self._url.startswith("https:") else True
        except OSError as error:
            raise BadSetting(f"--kube-ca-file {ca_file}: {error.strerror or error}") from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=64, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=timeout),
        )

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """One request; the parsed answer.

        Raises:
            ApiError: The server refused it for what is in it.
            BackendUnavailable: The server could not be reached, did not answer in time, or does not let us in.
        """
        try:
            return await self._once(method, path, body, content, query)
        except (aiohttp.ServerDisconnectedError, ConnectionResetError):
            # A kept connection that the server closed meanwhile. All requests made here can be repeated.
            pass
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(error) from error
        try:
            return await self._once(method, path, body, content, query)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _unreachable(error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()
        # aiohttp closes TLS connections in the next turns of the loop only.
        await asyncio.sleep(0)

    async def _once(
        self, method: str, path: str, body: object, content: str, query: Mapping[str, str] | None
    ) -> dict[str, Any]:
        headers = {"Content-Type": content, "Accept": JSON, "User-Agent": "mx-server"}
        if self._tokens is not None and (token := self._tokens.token()):
            headers["Authorization"] = f"Bearer {token}"
        # As a stream: aiohttp sends large bytes in one piece, holding up the loop.
        data = None if body is None else io.BytesIO(json.dumps(body, ensure_ascii=False).encode())
        async with self._session.request(method, self._url + path, params=query, data=data, headers=headers) as answer:
            text = await answer.read()
            self.clock.saw(answer.headers.get("Date", ""))
        return _parsed(answer.status, text)


def _place(place: Kubernetes) -> tuple[str, pathlib.Path | None, pathlib.Path | None]:
    """URL, token file and CA file; a pod's own where none is given."""
    if place.server is not None:
        if not place.server.startswith(("http://", "https://")):
            raise BadSetting(f"--kube-api-server {place.server!r}: give a URL, such as https://10.0.0.1:6443")
        return place.server.rstrip("/"), place.token_file, place.ca_file
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BadSetting("outside a pod, --kube-api-server (and --kube-token-file) must say where the cluster is")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return url, place.token_file or _MOUNT / "token", place.ca_file or _MOUNT / "ca.crt"


def _parsed(status: int, text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
        message = str(answer.get("message", "")) if status >= 400 else ""
    except (ValueError, AttributeError) as error:
        raise BackendUnavailable(f"API server answered {status} with something that is not JSON") from error
    if status >= 500 or status in _UNAVAILABLE:
        raise BackendUnavailable(f"API server answered {status}: {message}")
    if status >= 400:
        raise ApiError(status, message)
    return dict(answer)


def _unreachable(error: Exception) -> BackendUnavailable:
    detail = str(error) or "no answer in time"
    return BackendUnavailable(f"API server: {type(error).__name__}: {detail}")
