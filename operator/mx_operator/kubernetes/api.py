"""Our own requests to the API server: list policies, store their status, post Events, patch ModelMetadata.

The seam to Kubernetes beside kopf's watch, over aiohttp, so that no second Kubernetes client is loaded. Every request
has a deadline, none is repeated here.
"""

from __future__ import annotations

import asyncio
import http
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from mx_operator.kubernetes.access import Access
from mx_operator.policies import GROUP, PLURAL, VERSION

_POLICIES: Final = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
_JSON_PATCH: Final = "application/json-patch+json"
_PAGE: Final = 500
#: Credentials are read again this often, and at once when the server refuses them.
_RENEW_SECONDS: Final = 60.0


class ApiError(Exception):
    """A request that did not succeed.

    Attributes:
        code: HTTP status; None where there was no answer.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """A client for one API server. Use it as an async context manager, in one event loop."""

    def __init__(self, access: Access, timeout: float = 10.0) -> None:
        """Make one; nothing is sent.

        Args:
            access: Where to get credentials.
            timeout: Seconds for one whole request.
        """
        self._access = access
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None
        self._server = ""
        self._headers: dict[str, str] = {}
        self._renewed = 0.0

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def policies(self) -> list[dict[str, Any]]:
        """Every SourceLoadPolicy there is.

        Raises:
            ApiError: No complete list; code 404 where the kind does not exist.
        """
        items: list[dict[str, Any]] = []
        proceed = ""
        while True:
            query = {"limit": str(_PAGE)} | ({"continue": proceed} if proceed else {})
            page = await self._request("GET", _POLICIES, query=query)
            items += page.get("items") or []
            proceed = (page.get("metadata") or {}).get("continue") or ""
            if not proceed:
                return items

    async def store_status(self, name: str, uid: str, status: Mapping[str, Any]) -> None:
        """Replace the status of the policy `name`, if it still is the resource `uid`.

        Raises:
            ApiError: Code 404 where it is gone, 422 where another has taken its name.
        """
        # A status request ignores what a merge patch says of metadata; a test operation is heeded.
        same = {"op": "test", "path": "/metadata/uid", "value": uid}
        body = [same, {"op": "add", "path": "/status", "value": status}]
        await self._request("PATCH", f"{_POLICIES}/{name}/status", body, content=_JSON_PATCH)

    async def post_event(self, event: Mapping[str, Any]) -> None:
        """Create an Event.

        Raises:
            ApiError: It was not stored.
        """
        await self._request("POST", f"/api/v1/namespaces/{event['metadata']['namespace']}/events", event)

    async def _request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        try:
            session = await self._ready()
            headers = self._headers | {"Accept": "application/json"} | ({"Content-Type": content} if body else {})
            asked = session.request(method, self._server + path, params=query, json=body, headers=headers)
            async with asked as answer:
                return await self._answer(answer, f"{method} {path}")
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            await self._close()  # a connection that hangs is not used again
            raise ApiError(f"{method} {path}: {_why(error)}") from error

    async def _answer(self, answer: aiohttp.ClientResponse, what: str) -> dict[str, Any]:
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            self._renewed = 0.0
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(f"{what}: {answer.status} {await _said(answer)}", answer.status)
        content = await answer.json()
        return content if isinstance(content, dict) else {}

    async def _ready(self) -> aiohttp.ClientSession:
        """The session, with credentials that are not old; the CA is read when it is made."""
        now = time.monotonic()
        if self._session is None or now - self._renewed >= _RENEW_SECONDS:
            info = self._access()
            self._server, self._headers = info.server.rstrip("/"), info.as_http_headers()
            self._renewed = now
            if self._session is None:
                connector = aiohttp.TCPConnector(ssl=info.as_ssl_context(), limit=16)
                self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._session

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _why(error: BaseException) -> str:
    return "no answer in time" if isinstance(error, asyncio.TimeoutError) else str(error) or type(error).__name__


async def _said(answer: aiohttp.ClientResponse) -> str:
    """The message of the API server's Status object, or what else it sent."""
    text = (await answer.text())[:2000]
    try:
        content = await answer.json(content_type=None)
    except ValueError:
        return text
    return str(content.get("message", text)) if isinstance(content, dict) else text
