"""A whole server from its settings: backend, gRPC service with health and reflection, reaper, metrics page.

Used by `cli`, by the lab and by tests: `async with Server(settings) as server: ... server.address`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType

import grpc
from grpc_health.v1 import health_pb2_grpc

from mx_server import reflection
from mx_server.auth import AuthInterceptor, Guard
from mx_server.backends import Backend
from mx_server.backends.opening import opened
from mx_server.health import Health
from mx_server.http import MetricsPage
from mx_server.kube_client import KubeClient
from mx_server.reaper import Reaper
from mx_server.service import P2pService, handlers
from mx_server.settings import BadSetting, Kubernetes, Settings, host_port
from mx_server.telemetry import Telemetry
from mx_server.tls import Certificates
from mx_wire import SERVICE


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


class Server:
    """One running server; addresses are known once it is entered.

    Attributes:
        address: `host:port` of the gRPC service.
        metrics_address: `host:port` of the metrics page; None when there is none.
    """

    def __init__(self, settings: Settings, backend: Backend | None = None) -> None:
        self.settings = settings
        self.address = ""
        self.metrics_address: str | None = None
        self.telemetry = Telemetry(settings.backend, "grpcs" if settings.tls else "grpc")
        self._given = backend
        self._health = Health("", SERVICE)
        self._rest = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Server:
        """Start everything.

        Raises:
            BadSetting: An address is taken or malformed, or a file cannot be read.
            BackendUnavailable: The backend does not answer.
        """
        async with contextlib.AsyncExitStack() as starting:
            backend = self._given or await opened(self.settings)
            starting.push_async_callback(backend.close)
            await self._start_metrics(starting)
            self._start_reaper(backend, starting)
            await self._start_grpc(backend, starting)
            self._rest = starting.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say NOT_SERVING and end health's watches, let calls in flight finish within the grace, then stop the rest."""
        await self._rest.aclose()

    async def _start_metrics(self, starting: contextlib.AsyncExitStack) -> None:
        if self.settings.metrics_listen is not None:
            page = MetricsPage(self.telemetry)
            self.metrics_address = await page.start(self.settings.metrics_listen)
            starting.push_async_callback(page.stop)

    def _start_reaper(self, backend: Backend, starting: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        reaper = Reaper(
            backend,
            self.telemetry,
            _milliseconds(settings.heartbeat_timeout),
            _milliseconds(settings.gc_timeout),
            settings.reaper_interval,
        )
        task = asyncio.create_task(reaper.run(), name="mx-server reaper")
        starting.push_async_callback(_ended, task)

    async def _start_grpc(self, backend: Backend, starting: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        server = grpc.aio.server(interceptors=await self._interceptors(starting), options=_options(settings))
        service = P2pService(
            backend,
            self.telemetry,
            _milliseconds(settings.heartbeat_timeout),
            dialect=settings.dialect,
            keeps_load=settings.keeps_load,
            backend_timeout=settings.backend_timeout,
            most_bytes=settings.max_message_bytes,
        )
        server.add_generic_rpc_handlers((handlers(service),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable(server)
        self.address = _bound(server, settings)
        await server.start()
        starting.push_async_callback(server.stop, settings.grace)
        starting.push_async_callback(self._health.stop)

    async def _interceptors(self, starting: contextlib.AsyncExitStack) -> list[grpc.aio.ServerInterceptor]:
        settings = self.settings
        if settings.security is None:
            return []
        client = KubeClient(settings.kubernetes or Kubernetes(namespace=""), 0.8 * settings.backend_timeout)
        starting.push_async_callback(client.close)
        return [AuthInterceptor(Guard(client, settings.security), self.telemetry)]


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        # Two servers on one port would share its connections in silence.
        ("grpc.so_reuseport", 0),
        # Clients of this project ping every 10 s, also between calls.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


def _bound(server: grpc.aio.Server, settings: Settings) -> str:
    host, port = host_port("--listen", settings.listen, "0.0.0.0:8001")
    credentials = None if settings.tls is None else Certificates(settings.tls).credentials()
    _probe(host, port, settings.listen)
    try:
        if credentials is None:
            actual = server.add_insecure_port(f"{host}:{port}")
        else:
            actual = server.add_secure_port(f"{host}:{port}", credentials)
    except RuntimeError as error:
        raise BadSetting(f"--listen {settings.listen}: cannot listen there") from error
    return f"{host}:{actual}"


def _probe(host: str, port: int, listen: str) -> None:
    """Find out why an address cannot be had, which gRPC does not tell, before it writes a log of its own about it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise BadSetting(f"--listen {listen}: cannot listen there: {error.strerror}") from error


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
