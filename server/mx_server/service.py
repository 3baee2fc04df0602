"""The P2pService: each call checked by `requests`, carried out by the backend, answered by `answers`.

Registered on a gRPC server by `app`. What a caller did wrong comes back as `success=false` (or `found=false`) with
the field's name, as the upstream server does it; what the backend could not do comes back as UNAVAILABLE. No call
ends in UNKNOWN.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

import mx_wire
from mx_server.backends import Backend
from mx_server.core import answers, requests
from mx_server.core.records import Listing, Outcome, StatusUpdate, Verdict
from mx_server.core.rules import chosen
from mx_server.errors import BackendUnavailable, RegistrationRefused
from mx_server.logs import Seldom, log
from mx_server.sharing import SharedReads
from mx_server.telemetry import Telemetry
from mx_wire import (
    FILE_DESCRIPTOR,
    SERVICE,
    Dialect,
    GetMetadataRequest,
    GetMetadataResponse,
    ListSourcesRequest,
    ListSourcesResponse,
    P2pServiceServicer,
    PublishMetadataRequest,
    PublishMetadataResponse,
    UpdateStatusRequest,
    UpdateStatusResponse,
)

if TYPE_CHECKING:
    _Context = grpc.aio.ServicerContext[Any, Any]  # generic in the stubs only

_T = TypeVar("_T")
_Request = TypeVar("_Request")
_Response = TypeVar("_Response", bound=Message)
#: An answer and the word it is counted under.
_Answer = tuple[_Response, str]


class P2pService(P2pServiceServicer):
    """The four calls.

    Args:
        backend: Where rows live.
        telemetry: Where calls are counted.
        heartbeat_timeout: Milliseconds after which a READY row is no longer listed as READY.
        dialect: Which numbering of the load goes into rows.
        keeps_load: False takes the load and drops it, like a server from before the field.
        backend_timeout: Seconds to wait for the backend.
        most_bytes: Cap of an answer.
    """

    def __init__(
        self,
        backend: Backend,
        telemetry: Telemetry,
        heartbeat_timeout: int,
        *,
        dialect: Dialect = Dialect.BOTH,
        keeps_load: bool = True,
        backend_timeout: float = 5.0,
        most_bytes: int = 100 * 1024 * 1024,
    ) -> None:
        self._backend = backend
        self._telemetry = telemetry
        self._heartbeat_timeout = heartbeat_timeout
        self._dialect = dialect
        self._keeps_load = keeps_load
        self._backend_timeout = backend_timeout
        self._most_bytes = most_bytes
        self._seldom = Seldom()
        self._listings = SharedReads(self._listing)

    async def PublishMetadata(self, request: PublishMetadataRequest, context: _Context) -> PublishMetadataResponse:
        """Announce a worker."""
        return await self._answer("PublishMetadata", self._publish, request, context)

    async def ListSources(self, request: ListSourcesRequest, context: _Context) -> ListSourcesResponse:
        """List rows, newest first."""
        return await self._answer("ListSources", self._list, request, context)

    async def GetMetadata(self, request: GetMetadataRequest, context: _Context) -> GetMetadataResponse:
        """Everything about one worker."""
        return await self._answer("GetMetadata", self._get, request, context)

    async def UpdateStatus(self, request: UpdateStatusRequest, context: _Context) -> UpdateStatusResponse:
        """Heartbeat, status and load of one worker."""
        return await self._answer("UpdateStatus", self._update, request, context)

    async def _publish(self, request: PublishMetadataRequest) -> _Answer[PublishMetadataResponse]:
        registration = requests.registration(request)
        if isinstance(registration, requests.Refusal):
            return PublishMetadataResponse(message=registration.message), "refused"
        try:
            await self._asked("publish", self._backend.publish(registration))
        except RegistrationRefused as refusal:
            return PublishMetadataResponse(message=str(refusal)), "refused"
        rank = registration.worker.worker_rank
        log.info("published %r of source %s, rank %d", registration.worker_id, registration.source_id, rank)
        response = PublishMetadataResponse(
            success=True,
            message=f"published rank {rank} of {registration.identity.model_name!r}",
            mx_source_id=registration.source_id,
            worker_id=registration.worker_id,
        )
        return response, "ok"

    async def _list(self, request: ListSourcesRequest) -> _Answer[ListSourcesResponse]:
        wanted = requests.wanted(request)
        if isinstance(wanted, requests.Refusal):
            raise _Invalid(wanted.message)
        listing = await self._listings.get(wanted.source_id)
        rows = chosen(listing, wanted, self._heartbeat_timeout)
        return answers.listing(rows, self._dialect, self._keeps_load), "ok"

    async def _listing(self, source_id: str | None) -> Listing:
        return await self._asked("listing", self._backend.listing(source_id))

    async def _get(self, request: GetMetadataRequest) -> _Answer[GetMetadataResponse]:
        key = requests.worker_key(request)
        if isinstance(key, requests.Refusal):
            return GetMetadataResponse(found=False), "refused"
        if requests.known_form(key[0]):
            found = await self._asked("fetch", self._backend.fetch(*key))
            if found is not None:
                return found, "ok"
        return GetMetadataResponse(found=False, mx_source_id=key[0], worker_id=key[1]), "no_worker"

    async def _update(self, request: UpdateStatusRequest) -> _Answer[UpdateStatusResponse]:
        update = requests.status_update(request)
        if isinstance(update, requests.Refusal):
            return UpdateStatusResponse(message=update.message), "refused"
        outcome = Outcome(Verdict.NO_WORKER)
        if requests.known_form(update.source_id):
            outcome = await self._asked("update", self._backend.update(update))
        if outcome.verdict is Verdict.APPLIED:
            return UpdateStatusResponse(success=True, message="updated"), "ok"
        return UpdateStatusResponse(message=_refused(update, outcome)), outcome.verdict.value

    async def _asked(self, operation: str, asked: Awaitable[_T]) -> _T:
        """The backend's answer; BackendUnavailable too when there is none in time."""
        try:
            async with asyncio.timeout(self._backend_timeout):
                return await asked
        except TimeoutError:
            self._telemetry.backend_failed(operation)
            raise BackendUnavailable(f"no answer within {self._backend_timeout:g} s") from None
        except BackendUnavailable:
            self._telemetry.backend_failed(operation)
            raise

    def _check_size(self, response: Message) -> None:
        """Refuse what is above the cap: gRPC would do it with a traceback each, once it was counted as answered."""
        size = response.ByteSize()
        if size > self._most_bytes:
            raise _TooLarge(f"an answer of {size} bytes is more than --max-message-bytes {self._most_bytes}")

    async def _answer(
        self,
        rpc: str,
        handle: Callable[[_Request], Awaitable[_Answer[_Response]]],
        request: _Request,
        context: _Context,
    ) -> _Response:
        """Run one call: count it, time it, and give every failure the code that says whose it is."""
        started = time.perf_counter()
        result = "cancelled"
        try:
            if isinstance(request, Unreadable):
                raise _Invalid(f"request: these bytes are no {rpc}Request")
            response, result = await handle(request)
            self._check_size(response)
            return response
        except _TooLarge as large:
            result = "too_large"
            self._seldom.warning((rpc, result), f"{rpc}: {large}")
            await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(large))
        except _Invalid as refusal:
            result = "refused"
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        except BackendUnavailable as unavailable:
            result = "unavailable"
            self._seldom.warning((rpc, str(unavailable)), f"{rpc}: {self._backend.name} backend: {unavailable}")
            await _abort(context, grpc.StatusCode.UNAVAILABLE, f"{self._backend.name} backend: {unavailable}")
        except Exception:  # noqa: BLE001 - the last line of defence: a defect must not reach the caller as UNKNOWN
            result = "error"
            log.exception("%s failed; this is a defect of mx-server", rpc)
            await _abort(context, grpc.StatusCode.INTERNAL, f"{rpc}: a defect of mx-server; its log says more")
        finally:
            self._telemetry.answered(rpc, result, time.perf_counter() - started)


@dataclasses.dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a request whose bytes are none."""


def handlers(service: P2pService) -> grpc.GenericRpcHandler:
    """The service, ready to be added to a server.

    Unlike the generated registration, bytes that are no message reach the service: gRPC itself would answer UNKNOWN
    and write a traceback for each.
    """
    methods = {
        method.name: grpc.unary_unary_rpc_method_handler(
            getattr(service, method.name),
            request_deserializer=_lenient(getattr(mx_wire, method.input_type.name)),
            response_serializer=getattr(mx_wire, method.output_type.name).SerializeToString,
        )
        for method in FILE_DESCRIPTOR.services_by_name["P2pService"].methods
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _lenient(message: type[Message]) -> Callable[[bytes], Message | Unreadable]:
    def read(data: bytes) -> Message | Unreadable:
        try:
            return message.FromString(data)
        except DecodeError:
            return Unreadable()

    return read


class _Invalid(Exception):  # noqa: N818
    """A request whose response has no room for a message."""


class _TooLarge(Exception):  # noqa: N818
    """An answer above the cap."""


async def _abort(context: _Context, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("abort() does not return")


def _refused(update: StatusUpdate, outcome: Outcome) -> str:
    if outcome.verdict is Verdict.OTHER_RANK:
        return f"worker_rank {update.rank} is not worker_id {update.worker_id!r}'s, which is {outcome.rank}"
    return f"worker_id {update.worker_id!r} of mx_source_id {update.source_id!r} is not registered; publish it first"
