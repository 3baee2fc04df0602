"""An API server that does what a real one cannot be made to do: errors inside a watch, watches that end or fall silent.

It knows one kind, answers discovery, lists and watches, and takes every status. Over plain HTTP.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kopf
from aiohttp import web

from mx_lab.processes import wait_until

GROUP = "sourceload.dev"
KIND = {
    "name": "sourceloadpolicies",
    "singularName": "sourceloadpolicy",
    "namespaced": False,
    "kind": "SourceLoadPolicy",
    "verbs": ["get", "list", "watch", "patch"],
    "shortNames": ["slp"],
}

DEFINITIONS = {
    "name": "customresourcedefinitions",
    "singularName": "customresourcedefinition",
    "namespaced": False,
    "kind": "CustomResourceDefinition",
    "verbs": ["get", "list", "watch"],
}

#: Kopf waits until it has heard of these, even where it watches none.
NAMESPACES = {
    "name": "namespaces",
    "singularName": "namespace",
    "namespaced": False,
    "kind": "Namespace",
    "verbs": ["get", "list", "watch"],
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _constant(content: dict[str, Any]) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(content)

    return answer


class FakeApi:
    """The server; its fields are the switches."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.watches = 0
        self.lists = 0
        #: Sent into each new watch, once: raw lines of a watch.
        self.into_watch: list[dict[str, Any]] = []
        #: How many of the watches to come get those lines.
        self.poisoned = 0
        self.patch_code: dict[str, int] = {}  # by name
        self.patched: list[str] = []
        self.port = 0
        self._streams: list[asyncio.Queue[dict[str, Any] | None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopped = asyncio.Event()

    def access(self) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=f"http://127.0.0.1:{self.port}")

    def put(self, resource: dict[str, Any], tell: bool = True) -> None:
        """Store an object; watches are told unless a gap is wanted."""
        name = resource["metadata"]["name"]
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = resource
        if tell:
            self.send({"type": kind, "object": resource})

    def remove(self, name: str, tell: bool = True) -> None:
        gone = self.objects.pop(name)
        if tell:
            self.send({"type": "DELETED", "object": gone})

    def send(self, line: dict[str, Any] | None) -> None:
        """A line into every open watch; None ends them."""
        for stream in list(self._streams):
            self._loop.call_soon_threadsafe(stream.put_nowait, line)

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.port != 0, 10, "the fake API server")

    def stop(self) -> None:
        self.send(None)
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/api", _constant({"versions": ["v1"]}))
        app.router.add_get("/api/v1", _constant({"resources": [NAMESPACES]}))
        app.router.add_get("/apis", self._groups)
        app.router.add_get("/apis/apiextensions.k8s.io/v1", _constant({"resources": [DEFINITIONS]}))
        app.router.add_get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", self._definitions)
        app.router.add_get(f"/apis/{GROUP}/v1alpha1", _constant({"resources": [KIND]}))
        app.router.add_get(f"/apis/{GROUP}/v1alpha1/sourceloadpolicies", self._list)
        app.router.add_patch(f"/apis/{GROUP}/v1alpha1/sourceloadpolicies/{{name}}/status", self._patch)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        await self._stopped.wait()
        await runner.cleanup()

    async def _groups(self, _: web.Request) -> web.Response:
        groups = []
        for name, served in ((GROUP, "v1alpha1"), ("apiextensions.k8s.io", "v1")):
            version = {"groupVersion": f"{name}/{served}", "version": served}
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        return web.json_response({"groups": groups})

    async def _definitions(self, request: web.Request) -> web.StreamResponse:
        """Nothing is known of any, and nothing ever will be."""
        if request.query.get("watch") != "true":
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        await self._stopped.wait()
        return answer

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._watch(request)
        self.lists += 1
        items = list(self.objects.values())
        return web.json_response({"kind": "SourceLoadPolicyList", "metadata": {"resourceVersion": "1"}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        self.watches += 1
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        stream: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._streams.append(stream)
        if self.poisoned > 0:
            self.poisoned -= 1
            for poison in self.into_watch:
                stream.put_nowait(poison)
        try:
            while (line := await stream.get()) is not None:
                await answer.write(json.dumps(line).encode() + b"\n")
        finally:
            self._streams.remove(stream)
        return answer

    async def _patch(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.patched.append(name)
        code = self.patch_code.get(name, 200 if name in self.objects else 404)
        return web.json_response({"kind": "Status", "message": "as the test wants it", "code": code}, status=code)


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    """Run one."""
    api = FakeApi()
    api.start()
    try:
        yield api
    finally:
        api.stop()
