"""The operator's own HTTP: `/healthz`, `/readyz`, `/metrics`, `/status`.

`/healthz` says that the loops turn: an outage of Prometheus, of an MX server or of the API server never changes it,
because a restart mends none of them. `/readyz` says that every MX server was listed not long ago.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST


class Probed(Protocol):
    """What the probes ask (`loop.fleet.Fleet` is it)."""

    @property
    def alive(self) -> bool:
        """Whether every loop turns."""

    @property
    def ready(self) -> bool:
        """Whether every endpoint answers."""

    def unready(self) -> list[str]:
        """Which do not."""


@contextlib.asynccontextmanager
async def serving(
    address: tuple[str, int], probed: Probed, metrics: Callable[[], bytes], status: Callable[[], Any]
) -> AsyncIterator[str]:
    """Serve while the context lasts.

    Args:
        address: Host and port; port 0 takes a free one.
        probed: What the probes ask.
        metrics: Makes the page of `/metrics`; called in another thread.
        status: Makes the JSON document of `/status`.

    Yields:
        The address in use, `host:port`.

    Raises:
        OSError: The address cannot be used; its text names the flag and the mend.
    """
    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", _probe(lambda: (probed.alive, "a loop hangs"))),
            web.get("/readyz", _probe(lambda: (probed.ready, _silent(probed.unready())))),
            web.get("/metrics", _page(metrics)),
            web.get("/status", _json(status)),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address)
        try:
            await site.start()
        except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
            why = (getattr(error, "strerror", None) or str(error)).rsplit("): ")[-1]
            raise OSError(f"--listen {address[0]}:{address[1]}: {why}: choose another HOST:PORT") from error
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


def _silent(addresses: list[str]) -> str:
    return f"no list from {', '.join(addresses)}" if addresses else "no policies yet"


def _probe(ask: Callable[[], tuple[bool, str]]) -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        good, why = ask()
        return web.Response(text="ok\n" if good else f"{why}\n", status=200 if good else 503)

    return answer


def _page(metrics: Callable[[], bytes]) -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        # In a thread: ten thousand sources take a moment, in which the loops go on.
        body = await asyncio.to_thread(metrics)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer


def _json(status: Callable[[], Any]) -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(status())

    return answer
