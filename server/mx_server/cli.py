"""The door `mx-server`: arguments and environment to settings, one line once it listens, and a stop that drains."""

from __future__ import annotations

import asyncio
import importlib.resources
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

from mx_server import arguments as door
from mx_server.app import Server
from mx_server.environment import Given, given
from mx_server.errors import BackendUnavailable
from mx_server.settings import BadSetting, Settings, host_port


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT.

    Args:
        argv: Arguments, without the program's name; the process' own when None.

    Returns:
        0 after a drained stop, 1 when the backend does not answer, 2 for a configuration that cannot work.
    """
    try:
        arguments = door.parser().parse_args(argv)
    except BadSetting as error:
        return _failed(str(error), 2)
    if arguments.print_crd:
        print(crd(), end="")
        return 0
    return _run(given(arguments, os.environ))


def _run(told: Given) -> int:
    try:
        logging.basicConfig(level=door.level(told), format="%(asctime)s %(levelname)s %(message)s")
        settings = door.settings(told)
        return asyncio.run(serve(settings))
    except BadSetting as error:
        return _failed(told.words(str(error)), 2)
    except BackendUnavailable as error:
        return _failed(f"{settings.backend} backend: {error}", 1)


def _failed(why: str, status: int) -> int:
    print(f"mx-server: {why}", file=sys.stderr)
    return status


def crd() -> str:
    """The custom resource definition that the Kubernetes backend needs, as YAML."""
    manifest = importlib.resources.files(__package__).joinpath("manifests", "modelmetadatas.yaml")
    return manifest.read_text(encoding="utf-8")


async def serve(settings: Settings) -> int:
    """Run a server until SIGTERM or SIGINT; 0."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Server(settings) as server:
        print(_started(server), flush=True)
        warning = exposed(settings)
        if warning is not None:
            print(f"mx-server: warning: {warning}", file=sys.stderr, flush=True)
        await stop.wait()
        print("mx-server: stopping: no new calls, those in flight may finish", flush=True)
    return 0


def exposed(settings: Settings) -> str | None:
    """What to say of an address that others reach and nobody guards; None where there is nothing to say."""
    guarded = settings.security is not None or (settings.tls is not None and settings.tls.client_ca_file is not None)
    if guarded or _is_loopback(settings.listen):
        return None
    return (
        f"{settings.listen} is open to whoever reaches it: any caller can register sources and set loads; use"
        " --security-mode enforce, --tls-client-ca or a network policy, or listen on 127.0.0.1"
    )


def _is_loopback(listen: str) -> bool:
    host, port = host_port("--listen", listen, "0.0.0.0:8001")
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def _started(server: Server) -> str:
    settings = server.settings
    facts = [f"backend {settings.backend}", f"dialect {settings.dialect.value}"]
    facts += [] if settings.keeps_load else ["load dropped"]
    facts += ["TLS"] if settings.tls else []
    facts += [] if settings.security is None else [f"{len(settings.security.allowed)} service accounts allowed"]
    facts += [f"metrics http://{server.metrics_address}/metrics"] if server.metrics_address else []
    return f"mx-server: listening on {server.address} ({', '.join(facts)})"
