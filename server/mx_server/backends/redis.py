"""Workers in Redis: shared by any number of replicas, which all go by Redis' own clock.

Opened by `mx_server.backends.opening`. What must happen at once happens in a Lua script (folder `lua`). Nothing is
kept in this process, so that a Redis that restarts empty simply knows no worker: heartbeats are then refused, which
makes sources register again.

Keys, all under one hash tag, so that a Redis Cluster keeps them together: `{P}:sources` (set of source ids),
and per source the hashes `{P}:heads:ID`, `{P}:states:ID` and `{P}:workers:ID`, by worker id. A head is the listing's
row without its changing parts, a worker the whole registration, a state 16 or 20 bytes: rank and status (uint32),
stamp (double, milliseconds), then the load (float32) where there is one; little-endian.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import struct
import urllib.parse
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError
from redis import asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import RedisError

from mx_server.core import answers
from mx_server.core.records import Listing, Outcome, Registration, Row, StatusUpdate, Verdict
from mx_server.errors import BackendUnavailable
from mx_server.settings import BadSetting
from mx_wire import GetMetadataResponse, PublishMetadataRequest, SourceInstanceRef, SourceStatus

_STATE: Final = struct.Struct("<IId")
_LOAD: Final = struct.Struct("<f")
_VERDICTS: Final = {1: Verdict.APPLIED, 0: Verdict.NO_WORKER, -1: Verdict.OTHER_RANK}
_CONNECTIONS: Final = 32


class RedisBackend:
    """See Backend.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        prefix: What every key starts with.
        connect_timeout: Seconds to wait for a connection. How long an answer may take is the callers' affair, who set
            a limit to the whole call: redis-py's own limit is set up twice for each command, which costs a sixth.

    Raises:
        BadSetting: The URL cannot be used.
    """

    name = "redis"

    def __init__(self, url: str, prefix: str = "mx-source-load", connect_timeout: float = 2.0) -> None:
        try:
            _check_database(url)
            pool = aioredis.BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=None,
                socket_timeout=None,
                socket_connect_timeout=connect_timeout,
                # A pooled connection that died with a restarted Redis is found out by using it.
                retry=Retry(ExponentialBackoff(cap=0.1, base=0.01), 2),
                retry_on_error=[LostConnection],
            )
            pool.make_connection()  # type: ignore[no-untyped-call]  # refuses what a URL's query says and nobody knows
        except TypeError as error:  # from the connection's constructor, which takes the query's parameters
            unknown = str(error).rpartition("argument ")[2] or str(error)
            raise BadSetting(f"--redis-url: unknown parameter {unknown}: leave it out") from error
        except ValueError as error:
            raise BadSetting(f"--redis-url: {error}") from error
        self._redis: Any = aioredis.Redis(connection_pool=pool)
        self._prefix = f"{{{prefix}}}"
        self._publish = self._script("publish")
        self._update = self._script("update")
        self._listing = self._script("listing")
        self._expire = self._script("expire")
        self._forget = self._script("forget")

    async def publish(self, registration: Registration) -> None:
        """Store a worker anew."""
        source, worker = registration.source_id, registration.worker
        stored = PublishMetadataRequest(identity=registration.identity, worker=worker)
        head = answers.head(registration).SerializeToString()
        what = [source, registration.worker_id, head, stored.SerializeToString(), worker.worker_rank, worker.status]
        with _talking():
            await self._publish(self._keys(source), what)

    async def update(self, update: StatusUpdate) -> Outcome:
        """Set status and load."""
        load = b"" if update.load is None else _LOAD.pack(update.load)
        with _talking():
            code, rank = await self._update(
                [self._key("states", update.source_id)], [update.worker_id, update.rank, update.status, load]
            )
        return Outcome(_VERDICTS[code], rank)

    async def listing(self, source_id: str | None) -> Listing:
        """The rows of one source, or of all."""
        with _talking():
            answer = await self._listing([self._key("sources")], [self._prefix, source_id or ""])
        seconds, microseconds, *hashes = answer
        rows = (row for heads, states in zip(hashes[::2], hashes[1::2], strict=True) for row in _rows(heads, states))
        return Listing(int(seconds) * 1000 + int(microseconds) // 1000, tuple(rows))

    async def fetch(self, source_id: str, worker_id: str) -> GetMetadataResponse | None:
        """Everything about one worker."""
        with _talking():
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.hget(self._key("workers", source_id), worker_id)
            pipeline.hget(self._key("states", source_id), worker_id)
            stored, state = await pipeline.execute()
        if stored is None or state is None:
            return None
        try:
            published = PublishMetadataRequest.FromString(stored)
            _, status, stamp = _STATE.unpack_from(state)
        except (struct.error, DecodeError) as error:
            raise BackendUnavailable(f"worker {worker_id!r} cannot be read: {error}") from error
        registration = Registration(source_id, worker_id, published.identity, published.worker)
        return answers.found(registration, status, int(stamp))

    async def expire(self, row: Row) -> bool:
        """Mark a row STALE if unchanged."""
        with _talking():
            done = await self._expire(
                [self._key("states", row.head.mx_source_id)],
                [row.head.worker_id, row.version, SourceStatus.SOURCE_STATUS_STALE],
            )
        return bool(done)

    async def forget(self, row: Row) -> bool:
        """Delete a worker if unchanged."""
        source = row.head.mx_source_id
        with _talking():
            done = await self._forget(self._keys(source), [source, row.head.worker_id, row.version])
        return bool(done)

    async def check(self) -> None:
        """Ask for a PONG."""
        with _talking():
            await self._redis.ping()

    async def close(self) -> None:
        """Close the pool's connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    def _script(self, name: str) -> Any:
        text = importlib.resources.files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
        return self._redis.register_script(text)

    def _key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def _keys(self, source_id: str) -> list[str]:
        return [self._key("sources"), *(self._key(kind, source_id) for kind in ("heads", "states", "workers"))]


def _check_database(url: str) -> None:
    """Refuse a path that is no number: redis-py would use database 0 in silence."""
    parts = urllib.parse.urlsplit(url)
    name = parts.path.strip("/")
    if parts.scheme in ("redis", "rediss") and name and not (name.isascii() and name.isdigit()):
        raise ValueError(f"{name!r} is no database number, such as 0")


def _rows(heads: list[bytes], states: list[bytes]) -> Iterator[Row]:
    """The rows of one source; what cannot be read, or lacks its other half, is left out and harms no other."""
    state_of = dict(zip(states[::2], states[1::2], strict=True))
    for worker_id, head in zip(heads[::2], heads[1::2], strict=True):
        state = state_of.get(worker_id, b"")
        try:
            _, status, stamp = _STATE.unpack_from(state)
            load = _LOAD.unpack_from(state, _STATE.size)[0] if len(state) > _STATE.size else None
            yield Row(SourceInstanceRef.FromString(head), status, int(stamp), load, state)
        except (struct.error, DecodeError):
            continue


@contextlib.contextmanager
def _talking() -> Iterator[None]:
    """Turn whatever goes wrong between us and Redis into BackendUnavailable."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
