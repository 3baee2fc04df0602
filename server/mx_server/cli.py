"""The door `mx-server`: arguments and environment to settings, one line once it listens, and a stop that drains."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from mx_server.app import Server
from mx_server.backends import BackendUnavailable
from mx_server.settings import BadSetting, Settings
from mx_wire import Dialect

_ALIASES = {"k8s": "kubernetes", "crd": "kubernetes"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT.

    Returns:
        0 after a drained stop, 2 for a configuration that cannot work, 1 when the backend does not answer.
    """
    try:
        arguments = _parser(os.environ).parse_args(argv)
        logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
        return asyncio.run(_serve(_settings(arguments)))
    except BadSetting as error:
        print(f"mx-server: {error}", file=sys.stderr)
        return 2
    except BackendUnavailable as error:
        print(f"mx-server: {arguments.backend} backend: {error}", file=sys.stderr)
        return 1


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
    metrics = f", metrics http://{server.metrics_address}/metrics" if server.metrics_address else ""
    dropped = "" if settings.keeps_load else ", load dropped"
    return (
        f"mx-server: listening on {server.address}"
        f" (backend {settings.backend}, dialect {settings.dialect.value}{dropped}{metrics})"
    )


def _settings(arguments: argparse.Namespace) -> Settings:
    return Settings(
        listen=arguments.listen,
        backend=_ALIASES.get(arguments.backend, arguments.backend),
        redis_url=arguments.redis_url,
        metrics_listen=arguments.metrics_listen,
        dialect=Dialect(arguments.dialect),
        keeps_load=not arguments.drop_load,
        heartbeat_timeout=arguments.heartbeat_timeout,
        reaper_interval=arguments.reaper_interval,
        gc_timeout=arguments.gc_timeout,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    env = environment.get
    parser = argparse.ArgumentParser(prog="mx-server", description="A small MX server that carries source_load.")
    add = parser.add_argument
    host, port = env("MODEL_EXPRESS_SERVER_HOST", "127.0.0.1"), env("MODEL_EXPRESS_SERVER_PORT", "8001")
    add("--listen", default=f"{host}:{port}", metavar="HOST:PORT")
    add("--backend", default=env("MX_METADATA_BACKEND", "memory").lower())
    add("--redis-url", default=env("REDIS_URL", ""))
    add("--metrics-listen", default=None, metavar="HOST:PORT")
    add("--dialect", choices=[d.value for d in Dialect], default="both")
    add("--heartbeat-timeout", type=float, default=float(env("MX_HEARTBEAT_TIMEOUT_SECS", "90")))
    add("--reaper-interval", type=float, default=float(env("MX_REAPER_SCAN_INTERVAL_SECS", "30")))
    add("--gc-timeout", type=float, default=float(env("MX_GC_TIMEOUT_SECS", "3600")))
    add("--drop-load", action="store_true")
    add("--log-level", default=env("MODEL_EXPRESS_LOG_LEVEL", "info"))
    return parser
