"""One MX server over gRPC: the four things the loop asks of it, as the operator's own nouns.

Nothing is repeated here or below (`grpc.enable_retries` is off): a repeated UpdateStatus is a late one, and late
writes are what keeps dead sources alive. Every call has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Final, Protocol

import grpc

import mx_wire
from mx_operator.core.joins import address, split_endpoint
from mx_operator.core.model import Identity, Row, SourceKey, Write, device_of_port
from mx_operator.mx.errors import DeniedError, MxError, RefusedError
from mx_operator.policies.spec import Server

_LOG: Final = logging.getLogger(__name__)

_METADATA_DEADLINE: Final = 5.0
_WORDS: Final = 300
_DENIED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class MxServer(Protocol):
    """What the loop needs of a server; the fake beside the tests has it too."""

    async def list_ready(self, deadline: float, worker_rank: int | None = None) -> list[Row]:
        """Every row that is READY now.

        Raises:
            MxError: There was no answer.
        """

    async def identity(self, key: SourceKey) -> Identity | None:
        """Where a worker can be reached; None when the server does not know it.

        Raises:
            MxError: There was no answer.
        """

    async def write(self, write: Write, deadline: float) -> bool | None:
        """Send one load, once.

        Returns:
            Whether the answer shows it as stored; None where answers do not say.

        Raises:
            RefusedError: The server says that nothing was stored; the message is its own.
            DeniedError: Our credentials are not accepted.
            MxError: Nobody knows whether it was stored.
        """

    async def reconnect(self) -> None:
        """Throw the connection away; the next call makes a new one."""

    async def close(self) -> None:
        """Let go of everything."""


class GrpcServer:
    """The seam over grpc.aio."""

    def __init__(self, settings: Server) -> None:
        """Connect lazily.

        Args:
            settings: Address, TLS and token.

        Raises:
            mx_wire.ConfigurationError: They cannot be used.
        """
        self._settings = settings
        self._tokens = mx_wire.TokenFile(settings.token_file) if settings.token_file else None
        self._channel = self._connect()
        self._stub = mx_wire.aio_stub(self._channel)

    def _connect(self) -> grpc.aio.Channel:
        # A channel of its own: gRPC shares connections between equal channels, and a broken one would come back.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 5000)]
        return mx_wire.aio_channel(self._settings.address, tls=self._settings.tls, tokens=self._tokens, options=options)

    def _check_token(self) -> None:
        """A token that gRPC cannot carry would fail every call in words that help nobody."""
        token = self._tokens.token() if self._tokens else ""
        if not (token.isascii() and token.isprintable()):
            raise MxError("NoCredentials", f"{self._settings.token_file} is not one line of plain text")

    async def list_ready(self, deadline: float, worker_rank: int | None = None) -> list[Row]:
        """See `MxServer`."""
        request = mx_wire.ListSourcesRequest(status_filter=mx_wire.SourceStatus.SOURCE_STATUS_READY)
        if worker_rank is not None:
            request.worker_rank_filter = worker_rank
        self._check_token()
        with _translated():
            answer = await self._stub.ListSources(request, timeout=deadline)
        return list(_rows(answer.instances))

    async def identity(self, key: SourceKey) -> Identity | None:
        """See `MxServer`; endpoints never change while a worker lives."""
        request = mx_wire.GetMetadataRequest(mx_source_id=key.mx_source_id, worker_id=key.worker_id)
        self._check_token()
        with _translated():
            answer = await self._stub.GetMetadata(request, timeout=_METADATA_DEADLINE)
        return identity_of(answer.worker) if answer.found else None

    async def write(self, write: Write, deadline: float) -> bool | None:
        """See `MxServer`; the status is READY and nothing else, ever."""
        request = mx_wire.UpdateStatusRequest(
            mx_source_id=write.key.mx_source_id,
            worker_id=write.key.worker_id,
            worker_rank=write.worker_rank,
            status=mx_wire.SourceStatus.SOURCE_STATUS_READY,
            source_load=write.load,
        )
        self._check_token()
        with _translated():
            answer = await self._stub.UpdateStatus(request, timeout=deadline)
        if not answer.success:
            raise RefusedError("Refused", _quoted(answer.message) or "success=false")
        return None

    async def reconnect(self) -> None:
        """See `MxServer`."""
        try:
            fresh = self._connect()
        except mx_wire.ConfigurationError as error:
            _LOG.warning("%s: the old connection stays: %s", self._settings.address, error)
            return
        old, self._channel = self._channel, fresh
        self._stub = mx_wire.aio_stub(self._channel)
        await old.close(grace=0)

    async def close(self) -> None:
        """See `MxServer`."""
        await self._channel.close(grace=0)


class _translated(contextlib.AbstractContextManager[None]):  # noqa: N801 (reads as a word)
    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            words = _quoted(error.details()) or error.code().name
            if error.code() in _DENIED:
                raise DeniedError(_camel(error.code()), f"{error.code().name}: {words}") from error
            raise MxError(_camel(error.code()), f"{error.code().name}: {words}") from error
        if isinstance(error, (grpc.aio.UsageError, asyncio.InvalidStateError)):
            raise MxError("ChannelClosed", str(error)) from error


def _quoted(words: str | None) -> str:
    """What a server said, as one line for logs and statuses."""
    return " ".join((words or "").split())[:_WORDS]


def _camel(code: grpc.StatusCode) -> str:
    return "".join(part.capitalize() for part in code.name.split("_"))


def _rows(instances: Iterable[mx_wire.SourceInstanceRef]) -> Iterable[Row]:
    for ref in instances:
        key = SourceKey(ref.mx_source_id, ref.worker_id)
        yield Row(key, ref.worker_rank, ref.model_name, ref.updated_at, mx_wire.read_load(ref))


def identity_of(worker: mx_wire.WorkerMetadata) -> Identity:
    """Where a worker can be reached, from what it published."""
    host, port = split_endpoint(worker.worker_grpc_endpoint)
    if not host:
        host, _ = split_endpoint(worker.metadata_endpoint)
        return Identity(address(host) if host else None)
    return Identity(address(host), None if port is None else device_of_port(port))
