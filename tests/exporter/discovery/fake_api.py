"""An API server that misbehaves on demand: what a real one cannot be made to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.exporter.threaded import LoopThread

if TYPE_CHECKING:
    from typing import Self  # since 3.11

Reply = Callable[[web.Request], Any]


def listed(*pods: dict[str, Any], version: str = "1") -> Reply:
    """A LIST of these pods."""
    body = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": list(pods)}
    return lambda _: web.json_response(body)


def status(code: int, text: str = "") -> Reply:
    return lambda _: web.Response(status=code, text=text)


def raw(body: bytes) -> Reply:
    return lambda _: web.Response(body=body, content_type="application/json")


class FakeApi(LoopThread):
    """Answers the LISTs and WATCHes of pods with the next reply of a queue each; a list's last reply is repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.lists: list[Reply] = []
        self.watches: list[list[Any]] = []  # of each watch the events: objects, bytes, or "hold"
        self.asked: list[dict[str, str]] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    def __enter__(self) -> Self:
        super().__enter__()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._runner is not None
        self.run(self._runner.cleanup())
        super().__exit__()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/api/v1/pods", self._pods)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        assert self._runner.addresses
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _pods(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        if request.query.get("watch") == "true":
            return await self._watch(request)
        reply = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        return reply(request)  # type: ignore[no-any-return]

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in self.watches.pop(0) if self.watches else ["hold"]:
            if event == "hold":
                await asyncio.sleep(3600)
            await response.write(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")
        return response
