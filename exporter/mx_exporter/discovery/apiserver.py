"""The API server: the seam through which pods are listed and watched.

Two requests and no client library: those take 40 MB and more, in a process that runs on every node.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from mx_exporter.connections import Sockets, cut
from mx_exporter.credentials import TokenFile
from mx_exporter.discovery.endpoints import is_url
from mx_exporter.discovery.lists import each_item
from mx_exporter.discovery.settings import KubernetesSettings
from mx_exporter.errors import ConfigurationError

#: Bookmarks come every minute; two of them missing means that nobody is there.
_SILENCE = 150.0
_WATCH_SECONDS = 300
_LIST_SECONDS = 30.0
_MAX_LIST = 64 << 20
_MAX_EVENT = 8 << 20

Object = Mapping[str, Any]


class ApiError(Exception):
    """The API server could not be asked, or refused; the text says what to do about it where that is known."""


class ExpiredError(ApiError):
    """What was to be watched from is too old: list again (410)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One change: ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    pod: Object

    @property
    def version(self) -> str:
        """The resource version to go on from."""
        metadata = self.pod.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        return version if isinstance(version, str) else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Location:
    """Where the API server is and which node is ours."""

    url: str
    node: str


def locate(settings: KubernetesSettings, environ: Mapping[str, str] = os.environ) -> Location:
    """Find the API server and our node, from the settings or from what Kubernetes puts into every pod.

    Raises:
        ConfigurationError: One of them is not known, or a file of the account is missing.
    """
    node = settings.node_name or environ.get("NODE_NAME", "")
    if not node:
        raise ConfigurationError("NODE_NAME: not set: set it from spec.nodeName through the downward API")
    url = settings.api_server or _in_cluster(environ)
    if not is_url(url):
        raise ConfigurationError(f"{url}: no address of an API server: it begins with https://")
    for path in (settings.token_file, settings.ca_file):
        if not os.access(path, os.R_OK):
            raise ConfigurationError(
                f"{path}: cannot be read: run in a pod with automountServiceAccountToken, or use --discovery static"
            )
    return Location(url.rstrip("/"), node)


def _in_cluster(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigurationError(
            "KUBERNETES_SERVICE_HOST: not set: run in a pod, or use --discovery static with a file of sources"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class ApiServer:
    """Lists and watches the pods of one node; lives in one event loop."""

    def __init__(self, settings: KubernetesSettings, location: Location) -> None:
        self._location = location
        self._token = TokenFile(settings.token_file)
        self._ca_file = settings.ca_file
        self._query = {"fieldSelector": f"spec.nodeName={location.node}"}
        if settings.pod_selector:
            self._query["labelSelector"] = settings.pod_selector
        self._sockets = Sockets()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        self._sockets.hang_up()

    async def list_pods(self, version: str, take: Callable[[Object], None]) -> str:
        """List the node's pods.

        Args:
            version: "0" for what the server has at hand, "" for what is true now.
            take: Called with each pod, one at a time: a node's pods all at once take 20 MB.

        Returns:
            The resource version to watch from.

        Raises:
            ApiError: They could not be listed.
        """
        query = self._query | ({"resourceVersion": version} if version else {})
        async with _understood(), asyncio.timeout(_LIST_SECONDS), self._get(query) as response:
            await _accept(response)
            body = await _read(response, _MAX_LIST)
        try:
            return each_item(body, take)
        except ValueError as error:
            raise ApiError(f"the list of pods is no list ({error})") from error

    async def watch(self, version: str) -> AsyncGenerator[Event, None]:
        """Watch from a version on; ends when the server ends it, which is every few minutes.

        Raises:
            ExpiredError: The version is too old.
            ApiError: Watching failed.
        """
        seconds = int(_WATCH_SECONDS * random.uniform(0.9, 1.1))
        more = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        query = self._query | more | {"resourceVersion": version}
        async with _understood(), self._get(query) as response:
            await _accept(response)
            yield Event("OPEN", {})
            try:
                async for line in _lines(response):
                    yield _event(line)
            finally:
                cut(response)

    def _get(self, query: Mapping[str, str]) -> Any:
        if self._session is None:
            self._session = _session(self._ca_file, self._sockets)
        headers = self._token.header()
        return self._session.get(f"{self._location.url}/api/v1/pods", params=query, headers=headers)


def _session(ca_file: pathlib.Path, sockets: Sockets) -> aiohttp.ClientSession:
    try:
        tls = ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ApiError(f"{ca_file}: no CA certificates can be read from it ({error})") from error
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, socket_factory=sockets.make),
        timeout=aiohttp.ClientTimeout(total=None, connect=10, sock_read=_SILENCE),
        headers={"Accept": "application/json", "User-Agent": "mx-exporter"},
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )


@contextlib.asynccontextmanager
async def _understood() -> AsyncIterator[None]:
    """Turn what a connection may throw into one kind of error."""
    try:
        yield
    except TimeoutError as error:
        raise ApiError("the API server does not answer in time") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ApiError(f"the API server cannot be reached ({_one_line(str(error))})") from error


async def _accept(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    said = _one_line((await _read(response, 64 << 10)).decode("utf-8", "replace"))
    if response.status == 410:
        raise ExpiredError(said)
    if response.status in (401, 403):
        raise ApiError(f"the API server refuses ({response.status}): the account needs list and watch on pods: {said}")
    raise ApiError(f"the API server answers with status {response.status}: {said}")


async def _read(response: aiohttp.ClientResponse, most: int) -> bytearray:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > most:
            raise ApiError(f"the API server's answer is longer than {most} bytes")
    return body


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytearray]:
    """Lines of any length that a pod may have; aiohttp's own are limited to 128 kB."""
    rest = bytearray()
    async for piece in response.content.iter_any():
        rest += piece
        if b"\n" in piece:
            *lines, rest = rest.split(b"\n")
            for line in filter(None, lines):
                yield line
        if len(rest) > _MAX_EVENT:
            raise ApiError(f"an event is longer than {_MAX_EVENT} bytes")


def _event(line: bytes | bytearray) -> Event:
    """Read one line of a watch.

    Raises:
        ExpiredError: The server says that the version is too old.
        ApiError: It is another error, or no event.
    """
    try:
        document = json.loads(line)
        kind, item = document["type"], document["object"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ApiError(f"an event that is none ({type(error).__name__})") from error
    if not isinstance(item, dict):
        raise ApiError("an event without an object")
    if kind == "ERROR":
        said = _one_line(f"{item.get('code')}: {item.get('message')}")
        raise (ExpiredError if item.get("code") == 410 else ApiError)(said)
    return Event(str(kind), item)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
