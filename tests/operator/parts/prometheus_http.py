"""A Prometheus whose answers are the test's: real HTTP, any fault."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Gets the query's form and the handler to answer with.
Answering = Callable[[dict[str, str], "Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        form = dict(urllib.parse.parse_qsl(self.rfile.read(length).decode()))
        self.server.requests.append((self.path, form, dict(self.headers)))
        with contextlib.suppress(OSError):
            self.server.answering(form, self)

    do_GET = do_POST  # noqa: N815

    def say(self, body: bytes | str | object, status: int = 200, content: str = "application/json") -> None:
        data = (
            body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        )
        self.send_response(status)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class FakePrometheus:
    """The server; set `answering`, look at `requests`."""

    def __init__(self, answering: Answering) -> None:
        server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.answering, server.requests = answering, []
        self._server = server
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def requests(self) -> list[tuple[str, dict[str, str], dict[str, str]]]:
        requests: list[tuple[str, dict[str, str], dict[str, str]]] = self._server.requests
        return requests

    def answer_with(self, answering: Answering) -> None:
        self._server.answering = answering


@contextlib.contextmanager
def fake_prometheus(answering: Answering) -> Iterator[FakePrometheus]:
    fake = FakePrometheus(answering)
    thread = threading.Thread(target=fake._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake._server.shutdown()
        fake._server.server_close()


def vector(values: Mapping[str, float | str], age: float = 1.0, label: str = "k8s_pod_ip", **envelope: Any) -> object:
    """The answer to a combined query: each value, and when its sample was taken."""
    now = time.time()
    result: list[object] = []
    for name, value in values.items():
        result.append({"metric": {label: name, "__sig": "v", "__name__": "x"}, "value": [now, str(value)]})
        result.append({"metric": {label: name, "__sig": "t"}, "value": [now, str(now - age)]})
    return {"status": "success", "data": {"resultType": "vector", "result": result}, **envelope}


def says(values: Mapping[str, float | str], **arguments: Any) -> Answering:
    """Always this vector."""
    return lambda _form, handler: handler.say(vector(values, **arguments))
