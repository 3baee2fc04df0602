"""The metrics page on a port of its own: `/metrics` for Prometheus, `/healthz` for a kubelet that prefers HTTP.

Started by `app` when an address for it is given.
"""

from __future__ import annotations

import socket

from aiohttp import web

from mx_server.settings import BadSetting, host_port
from mx_server.telemetry import Telemetry


class MetricsPage:
    """A small HTTP server around the telemetry."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        application = web.Application()
        application.add_routes([web.get("/metrics", self._metrics), web.get("/healthz", self._health)])
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self, listen: str) -> str:
        """Listen on `host:port`; gives the actual address.

        Raises:
            BadSetting: The address is malformed or taken.
        """
        host, port = host_port("--metrics-listen", listen, "0.0.0.0:9401")
        await self._runner.setup()
        try:
            await self._site(host.strip("[]"), port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise BadSetting(f"--metrics-listen {listen}: cannot listen there: {error.strerror}") from error
        return f"{host}:{self._runner.addresses[0][1]}"

    def _site(self, host: str, port: int) -> web.BaseSite:
        if host == "::" and socket.has_dualstack_ipv6():
            # By itself asyncio would listen to IPv6 alone on `::`, where gRPC listens to both.
            both = socket.create_server((host, port), family=socket.AF_INET6, dualstack_ipv6=True)
            return web.SockSite(self._runner, both)
        return web.TCPSite(self._runner, host, port)

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._telemetry.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")
