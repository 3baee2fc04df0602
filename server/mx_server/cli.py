"""The door `mx-server`: arguments and environment to settings, one line once it listens, and a stop that drains."""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
import os
import signal
import sys
from collections.abc import Sequence

from mx_server import arguments as door
from mx_server.app import Server
from mx_server.errors import BackendUnavailable
from mx_server.settings import BadSetting, Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT.

    Args:
        argv: Arguments, without the program's name; the process' own when None.

    Returns:
        0 after a drained stop, 1 when the backend does not answer, 2 for a configuration that cannot work.
    """
    try:
        arguments = door.parser(os.environ).parse_args(argv)
        if arguments.print_crd:
            print(crd(), end="")
            return 0
        logging.basicConfig(level=door.level(arguments), format="%(asctime)s %(levelname)s %(message)s")
        return asyncio.run(_serve(door.settings(arguments, os.environ)))
    except BadSetting as error:
        print(f"mx-server: {error}", file=sys.stderr)
        return 2
    except BackendUnavailable as error:
        print(f"mx-server: {arguments.backend} backend: {error}", file=sys.stderr)
        return 1


def crd() -> str:
    """The custom resource definition that the Kubernetes backend needs, as YAML."""
    manifest = importlib.resources.files(__package__).joinpath("manifests", "modelmetadatas.yaml")
    return manifest.read_text(encoding="utf-8")


async def _serve(settings: Settings) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Server(settings) as server:
        print(_started(server), flush=True)
        await stop.wait()
        print("mx-server: stopping: no new calls, those in flight may finish", flush=True)
    return 0


def _started(server: Server) -> str:
    settings = server.settings
    facts = [f"backend {settings.backend}", f"dialect {settings.dialect.value}"]
    facts += [] if settings.keeps_load else ["load dropped"]
    facts += ["TLS"] if settings.tls else []
    facts += [] if settings.security is None else [f"{len(settings.security.allowed)} service accounts allowed"]
    facts += [f"metrics http://{server.metrics_address}/metrics"] if server.metrics_address else []
    return f"mx-server: listening on {server.address} ({', '.join(facts)})"
