"""What `mx-server` can be told, by arguments and by the environment, and the settings that come of it.

Used by `cli`. The environment's names are the upstream server's wherever it has one.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from mx_server.settings import BadSetting, Kubernetes, Security, ServerTls, Settings, bracketed
from mx_server.telemetry import version
from mx_wire import Dialect

_BACKENDS: Final = {
    "memory": "memory",
    "redis": "redis",
    "kubernetes": "kubernetes",
    "k8s": "kubernetes",
    "crd": "kubernetes",
}
_LEVELS: Final = {name: name for name in ("debug", "info", "warning", "error")} | {"trace": "debug", "warn": "warning"}
_NAMESPACE_FILE: Final = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def settings(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
    """Settings from parsed arguments.

    Raises:
        BadSetting: They cannot work.
    """
    backend = _BACKENDS.get(arguments.backend.lower())
    if backend is None:
        raise BadSetting(f"--backend {arguments.backend!r}: give memory, redis or kubernetes")
    return Settings(
        listen=arguments.listen or _listen(environment),
        backend=backend,
        redis_url=arguments.redis_url or (_redis_url(environment) if backend == "redis" else ""),
        redis_prefix=arguments.redis_prefix,
        kubernetes=_kubernetes(arguments),
        metrics_listen=arguments.metrics_listen,
        dialect=Dialect(arguments.dialect),
        keeps_load=not arguments.drop_load,
        heartbeat_timeout=arguments.heartbeat_timeout,
        reaper_interval=arguments.reaper_interval,
        gc_timeout=arguments.gc_timeout,
        backend_timeout=arguments.backend_timeout,
        grace=arguments.grace,
        max_message_bytes=arguments.max_message_bytes,
        tls=_tls(arguments),
        security=_security(arguments),
    )


def _listen(environment: Mapping[str, str]) -> str:
    """Where the upstream server's variables say to listen."""
    host = environment.get("MODEL_EXPRESS_SERVER_HOST") or "127.0.0.1"
    return f"{bracketed(host)}:{_port(environment, 'MODEL_EXPRESS_SERVER_PORT') or 8001}"


def _redis_url(environment: Mapping[str, str]) -> str:
    """The upstream server's other way to say it: host and port, each under two names."""
    host = environment.get("MX_REDIS_HOST") or environment.get("REDIS_HOST")
    if not host:
        return ""
    port = _port(environment, "MX_REDIS_PORT") or _port(environment, "REDIS_PORT") or 6379
    return f"redis://{bracketed(host)}:{port}"


def _port(environment: Mapping[str, str], name: str) -> int | None:
    """A variable's port; None where there is none."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit() and int(text) < 65536:
        return int(text)
    link = " (Kubernetes sets it for a Service of that name: set it yourself, or enableServiceLinks: false)"
    raise BadSetting(f"{name}={text!r}: give a port number{link if '://' in text else ''}")


def _kubernetes(arguments: argparse.Namespace) -> Kubernetes:
    namespace = arguments.namespace
    if not namespace and _NAMESPACE_FILE.exists():
        namespace = _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    return Kubernetes(namespace, arguments.kube_api_server, arguments.kube_token_file, arguments.kube_ca_file)


def _tls(arguments: argparse.Namespace) -> ServerTls | None:
    certificate, key = arguments.tls_cert, arguments.tls_key
    if (certificate is None) != (key is None):
        raise BadSetting(f"{'--tls-cert' if certificate is None else '--tls-key'} is missing: TLS needs both files")
    if certificate is None:
        if arguments.tls_client_ca is not None:
            raise BadSetting("--tls-client-ca needs --tls-cert and --tls-key too")
        return None
    return ServerTls(certificate, key, arguments.tls_client_ca)


def _security(arguments: argparse.Namespace) -> Security | None:
    mode = arguments.security_mode.lower()
    if mode not in ("off", "enforce"):
        raise BadSetting(f"--security-mode {arguments.security_mode!r}: give off or enforce")
    if mode == "off":
        return None
    audiences, allowed = _listed(arguments.token_audiences), _listed(arguments.allowed_service_accounts)
    if not audiences:
        raise BadSetting("--security-mode enforce needs --token-audiences, such as modelexpress")
    if not allowed:
        raise BadSetting("--security-mode enforce needs --allowed-service-accounts: without one, no call is taken")
    for each in allowed:
        if len(each.split(":")) != 2 or not all(each.split(":")):
            raise BadSetting(f"--allowed-service-accounts {each!r}: give namespace:name")
    return Security(tuple(audiences), frozenset(allowed), arguments.token_cache_ttl)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def level(arguments: argparse.Namespace) -> str:
    """The log level, in Python's words.

    Raises:
        BadSetting: There is no such level.
    """
    found = _LEVELS.get(arguments.log_level.lower())
    if found is None:
        raise BadSetting(f"--log-level {arguments.log_level!r}: give debug, info, warning or error")
    return found.upper()


def _number(variable: str) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number; give seconds (also in {variable})") from None

    return number


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Instead of usage and exit."""
        raise BadSetting(message)


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser of the door's arguments, whose defaults come from the environment."""
    built = _Parser(
        prog="mx-server",
        description="A small ModelExpress (MX) server that carries source_load: for development, tests and small"
        " fleets. It speaks model_express.p2p.P2pService, grpc.health.v1 and reflection.",
        epilog="An argument wins over its environment variable, named in [brackets]. Times are seconds.",
    )
    built.add_argument("--version", action="version", version=f"%(prog)s {version()}")
    built.add_argument("--print-crd", action="store_true", help="print the Kubernetes backend's CRD and end")
    _add_serving(built, environment)
    _add_stores(built, environment)
    _add_rules(built, environment)
    _add_security(built, environment)
    return built


def _add_serving(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    add = parser.add_argument_group("serving").add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        help="where to serve gRPC; port 0 takes a free one (default: 127.0.0.1:8001)"
        " [MODEL_EXPRESS_SERVER_HOST, MODEL_EXPRESS_SERVER_PORT]",
    )
    add("--metrics-listen", metavar="HOST:PORT", help="where to serve /metrics and /healthz (default: nowhere)")
    add("--grace", type=float, default=10.0, help="for calls in flight to finish after SIGTERM (default: %(default)g)")
    add("--max-message-bytes", type=int, default=100 * 1024 * 1024, help="cap of a message (default: %(default)s)")
    add(
        "--log-level",
        default=environment.get("MODEL_EXPRESS_LOG_LEVEL") or "info",
        metavar="LEVEL",
        help="debug, info, warning or error (default: %(default)s) [MODEL_EXPRESS_LOG_LEVEL]",
    )


def _add_stores(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    add = parser.add_argument_group("where workers are kept").add_argument
    add(
        "--backend",
        default=environment.get("MX_METADATA_BACKEND") or "memory",
        metavar="memory|redis|kubernetes",
        help="(default: %(default)s) [MX_METADATA_BACKEND]",
    )
    add("--backend-timeout", type=float, default=5.0, help="for one answer of the backend (default: %(default)g)")
    add(
        "--redis-url",
        default=environment.get("REDIS_URL", ""),
        metavar="URL",
        help="such as redis://redis:6379/0 or rediss://... [REDIS_URL, or MX_REDIS_HOST and MX_REDIS_PORT]",
    )
    add("--redis-prefix", default="mx-source-load", help="what every key starts with (default: %(default)s)")
    add(
        "--namespace",
        default=environment.get("MX_METADATA_NAMESPACE") or environment.get("POD_NAMESPACE") or "",
        help="of the ModelMetadata objects [MX_METADATA_NAMESPACE, POD_NAMESPACE]",
    )
    add("--kube-api-server", metavar="URL", help="API server to use outside a pod, such as kubectl proxy's")
    add("--kube-token-file", type=pathlib.Path, metavar="FILE", help="bearer token for it")
    add("--kube-ca-file", type=pathlib.Path, metavar="FILE", help="PEM bundle to verify it with")


def _add_rules(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    add = parser.add_argument_group("rules").add_argument

    def seconds(option: str, name: str, default: float, text: str) -> None:
        # A default that is a string goes through `type`, so that a bad variable is refused like a bad argument.
        value = environment.get(name) or f"{default:g}"
        add(
            option, type=_number(name), default=value, metavar="SECONDS", help=f"{text} (default: {default:g}) [{name}]"
        )

    seconds("--heartbeat-timeout", "MX_HEARTBEAT_TIMEOUT_SECS", 90, "without a heartbeat, until a source is stale")
    seconds("--reaper-interval", "MX_REAPER_SCAN_INTERVAL_SECS", 30, "between scans for stale sources")
    seconds("--gc-timeout", "MX_GC_TIMEOUT_SECS", 3600, "until a stale source is forgotten")
    add(
        "--dialect",
        choices=[dialect.value for dialect in Dialect],
        default=Dialect.BOTH.value,
        help="which numbering of source_load listings carry; strict decoders (Rust) need theirs (default: %(default)s)",
    )
    add("--drop-load", action="store_true", help="take source_load and drop it, like a server from before the field")


def _add_security(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    add = parser.add_argument_group("security").add_argument
    name = "MODEL_EXPRESS_SECURITY_"
    add("--tls-cert", type=pathlib.Path, metavar="FILE", help="PEM chain to serve TLS with; read again when it changes")
    add("--tls-key", type=pathlib.Path, metavar="FILE", help="its PEM key")
    add("--tls-client-ca", type=pathlib.Path, metavar="FILE", help="PEM bundle; clients must show a certificate of it")
    add(
        "--security-mode",
        default=environment.get(f"{name}MODE") or "off",
        metavar="off|enforce",
        help=f"enforce: only service accounts with a token (default: off) [{name}MODE]",
    )
    add(
        "--token-audiences",
        default=environment.get(f"{name}TOKEN_AUDIENCES", ""),
        metavar="A,B",
        help=f"a token needs one of them [{name}TOKEN_AUDIENCES]",
    )
    add(
        "--allowed-service-accounts",
        default=environment.get(f"{name}ALLOWED_SERVICE_ACCOUNTS", ""),
        metavar="NAMESPACE:NAME,...",
        help=f"whose calls are taken [{name}ALLOWED_SERVICE_ACCOUNTS]",
    )
    add(
        "--token-cache-ttl",
        type=_number(f"{name}CACHE_TTL_SECS"),
        default=environment.get(f"{name}CACHE_TTL_SECS") or "60",
        metavar="SECONDS",
        help=f"how long a verdict on a token holds (default: 60) [{name}CACHE_TTL_SECS]",
    )
