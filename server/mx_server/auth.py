"""Whose calls are taken: bearer tokens of service accounts, judged by the cluster's own TokenReview.

An interceptor that `app` puts before every call when security is on. Health checks pass without a token, since a
kubelet has none. Codes as in the upstream server: UNAUTHENTICATED for a bad token, PERMISSION_DENIED for an account
that is not on the list, UNAVAILABLE when the cluster cannot be asked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import grpc

from mx_server.errors import ApiError, BackendUnavailable
from mx_server.settings import Security
from mx_server.telemetry import Telemetry

_HEALTH: Final = "/grpc.health.v1.Health/"
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_PREFIX: Final = "system:serviceaccount:"
#: Verdicts remembered at most; a flood of made-up tokens must not fill the memory.
_REMEMBERED: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Denial:
    """Why a call is not taken."""

    code: grpc.StatusCode
    message: str


_BAD_TOKEN: Final = Denial(grpc.StatusCode.UNAUTHENTICATED, "missing or invalid service account token")
_NOT_ASKED: Final = Denial(grpc.StatusCode.UNAVAILABLE, "the token cannot be checked now: the cluster does not answer")


class Requests(Protocol):
    """The part of KubeClient that reviews need."""

    async def request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One request."""


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The token of `authorization: Bearer ...`; None where there is none."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value[:7].lower() == "bearer ":
            return value[7:].strip() or None
    return None


def account(review: Mapping[str, Any], audiences: Iterable[str]) -> str | None:
    """The service account, `namespace:name`, that a TokenReview vouches for; None where it vouches for none.

    Args:
        review: The answered TokenReview.
        audiences: One of them must be among those that the token was found to have.
    """
    status = review.get("status") or {}
    wanted = set(audiences)
    if not status.get("authenticated") or (wanted and not wanted & set(status.get("audiences") or ())):
        return None
    name = str((status.get("user") or {}).get("username", ""))
    namespace, _, account_name = name.removeprefix(_PREFIX).partition(":")
    if not (name.startswith(_PREFIX) and namespace and account_name):
        return None
    return f"{namespace}:{account_name}"


class Guard:
    """Judges tokens, and remembers for a while what the cluster said of each.

    Args:
        client: Where to ask.
        security: Whom to let in.
        clock: Seconds, monotonic.
    """

    def __init__(self, client: Requests, security: Security, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._security = security
        self._clock = clock
        # By hash: a dump of this process' memory should not hand out other workers' tokens.
        self._known: dict[bytes, tuple[float, str | None]] = {}
        self._asking: dict[bytes, asyncio.Task[str | None]] = {}

    async def denial(self, token: str | None) -> Denial | None:
        """Why the bearer of this token is not let in; None when it is."""
        if token is None:
            return _BAD_TOKEN
        try:
            caller = await self._account(token)
        except (BackendUnavailable, ApiError):
            return _NOT_ASKED
        if caller is None:
            return _BAD_TOKEN
        if caller not in self._security.allowed:
            message = f"service account {caller} is not among --allowed-service-accounts"
            return Denial(grpc.StatusCode.PERMISSION_DENIED, message)
        return None

    async def _account(self, token: str) -> str | None:
        key = hashlib.sha256(token.encode()).digest()
        until, caller = self._known.get(key, (0.0, None))
        if self._clock() < until:
            return caller
        if key not in self._asking:
            # One question for all calls that wait for it, whichever of them is cancelled.
            self._asking[key] = asyncio.create_task(self._review(key, token))
            self._asking[key].add_done_callback(lambda task: self._asking.pop(key) and task.cancelled())
        return await asyncio.shield(self._asking[key])

    async def _review(self, key: bytes, token: str) -> str | None:
        spec = {"token": token} | ({"audiences": list(self._security.audiences)} if self._security.audiences else {})
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        caller = account(await self._client.request("POST", _REVIEWS, body), self._security.audiences)
        self._known.pop(key, None)
        while len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = self._clock() + self._security.cache_seconds, caller
        return caller


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Puts a Guard before every call but health checks."""

    def __init__(self, guard: Guard, telemetry: Telemetry) -> None:
        self._guard = guard
        self._telemetry = telemetry

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Pass the call on, or answer it with the denial."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_HEALTH):
            return handler
        denial = await self._guard.denial(bearer(handler_call_details.invocation_metadata or ()))
        self._telemetry.judged("allowed" if denial is None else denial.code.name.lower())
        return handler if denial is None else _denying(handler, denial)


def _denying(handler: Any, denial: Denial) -> Any:
    async def deny(_: object, context: Any) -> None:
        await context.abort(denial.code, denial.message)

    async def deny_stream(_: object, context: Any) -> Any:
        await context.abort(denial.code, denial.message)
        yield None

    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(deny_stream)
    return grpc.unary_unary_rpc_method_handler(deny)
