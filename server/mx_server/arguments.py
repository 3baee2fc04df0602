"""What `mx-server` can be told, by arguments and by the environment, and the settings that come of it.

Used by `cli`. The environment's names are the upstream server's wherever it has one.
"""

from __future__ import annotations

import argparse
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from mx_server.environment import COMPOSED, VARIABLES, Given
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
_SECONDS: Final = ("heartbeat_timeout", "reaper_interval", "gc_timeout", "backend_timeout", "grace")
_DEFAULT: Final = Settings()
_CACHE_SECONDS: Final = 60.0
#: Kubernetes' own rules of names.
_ACCOUNT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?:[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_MODE: Final = VARIABLES["--security-mode"][0]
_SECURITY: Final = ("--token-audiences", "--allowed-service-accounts", "--token-cache-ttl")


def settings(told: Given) -> Settings:
    """Settings from what the server was told.

    Raises:
        BadSetting: They cannot work, or say something that would be passed over. It speaks of options;
            `Given.words` puts the variables' names in their place.
    """
    backend, enforced = _backend(told), _enforced(told)
    _refuse_idle(told, backend, enforced)
    chosen: dict[str, Any] = {name: value for name in _SECONDS if (value := _number(told, name, float)) is not None}
    if (most := _number(told, "max_message_bytes", int)) is not None:
        chosen["max_message_bytes"] = most
    if (prefix := told.get("--redis-prefix")) is not None:
        chosen["redis_prefix"] = prefix
    return Settings(
        listen=told.get("--listen") or _listen(told.environment),
        backend=backend,
        redis_url=(told.get("--redis-url") or _redis_url(told.environment)) if backend == "redis" else "",
        kubernetes=_kubernetes(told),
        metrics_listen=told.get("--metrics-listen"),
        dialect=Dialect(told.get("--dialect") or Dialect.BOTH),
        keeps_load=not told.get("--drop-load"),
        tls=_tls(told),
        security=_security(told) if enforced else None,
        **chosen,
    )


def _backend(told: Given) -> str:
    text = told.get("--backend") or _DEFAULT.backend
    backend = _BACKENDS.get(text.lower())
    if backend is None:
        raise BadSetting(f"--backend {text!r}: give memory, redis or kubernetes")
    return backend


def _enforced(told: Given) -> bool:
    text = told.get("--security-mode") or "off"
    if text.lower() not in ("off", "enforce"):
        raise BadSetting(f"--security-mode {text!r}: give off or enforce")
    return bool(text.lower() == "enforce")


def _refuse_idle(told: Given, backend: str, enforced: bool) -> None:
    """What would be passed over in silence is refused, where it can only have been meant for this server.

    An option always is. A variable may be there for others (REDIS_URL), or for the day when security is turned on; but
    who lists the accounts to let in and never says a mode would run a server that takes everybody.
    """
    idle = {
        "--backend redis": () if backend == "redis" else ("--redis-url", "--redis-prefix"),
        "--backend kubernetes": () if backend == "kubernetes" else ("--namespace",),
        "--backend kubernetes or --security-mode enforce": ()
        if enforced or backend == "kubernetes"
        else ("--kube-api-server", "--kube-token-file", "--kube-ca-file"),
        "--security-mode enforce": () if enforced else _SECURITY,
    }
    for needed, options in idle.items():
        for option in options:
            if option in told.options:
                raise BadSetting(f"{option} does nothing without {needed}: add that, or leave it out")
    if told.get("--security-mode") is None:
        for option in _SECURITY[:2]:
            if told.get(option) is not None:
                raise BadSetting(f"{option} is set and no security mode: set {_MODE} to enforce, or to off")


def _number(told: Given, name: str, kind: Callable[[str], float]) -> float | None:
    option = f"--{name.replace('_', '-')}"
    text = told.get(option)
    try:
        return None if text is None else kind(text)
    except ValueError:
        what = "seconds" if kind is float else "a whole number"
        raise BadSetting(f"{option} {text!r} is no number: give {what}") from None


def _listen(environment: Mapping[str, str]) -> str:
    """Where the upstream server's variables say to listen."""
    host, port = COMPOSED["--listen"]
    return f"{bracketed(environment.get(host) or '127.0.0.1')}:{_port(environment, port) or 8001}"


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
    raise BadSetting(f"{name} {text!r}: give a port number{link if '://' in text else ''}")


def _kubernetes(told: Given) -> Kubernetes:
    namespace = told.get("--namespace") or ""
    if not namespace and _NAMESPACE_FILE.exists():
        namespace = _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    server, token, authority = (told.get(f"--kube-{name}") for name in ("api-server", "token-file", "ca-file"))
    return Kubernetes(namespace, server, token, authority)


def _tls(told: Given) -> ServerTls | None:
    certificate, key, client = (told.get(f"--tls-{name}") for name in ("cert", "key", "client-ca"))
    if (certificate is None) != (key is None):
        raise BadSetting(f"{'--tls-cert' if certificate is None else '--tls-key'} is missing: TLS needs both files")
    if certificate is None:
        if client is not None:
            raise BadSetting("--tls-client-ca needs --tls-cert and --tls-key too")
        return None
    return ServerTls(certificate, key, client)


def _security(told: Given) -> Security:
    audiences, allowed = _listed(told, "--token-audiences"), _listed(told, "--allowed-service-accounts")
    if not audiences:
        raise BadSetting("--security-mode enforce needs --token-audiences, such as modelexpress")
    if not allowed:
        raise BadSetting("--security-mode enforce needs --allowed-service-accounts: without one, no call is taken")
    for each in allowed:
        if not _ACCOUNT.fullmatch(each):
            raise BadSetting(f"--allowed-service-accounts {each!r}: give namespace:name")
    cached = _number(told, "token_cache_ttl", float)
    return Security(tuple(audiences), frozenset(allowed), _CACHE_SECONDS if cached is None else cached)


def _listed(told: Given, option: str) -> list[str]:
    return [part.strip() for part in (told.get(option) or "").split(",") if part.strip()]


def level(told: Given) -> str:
    """The log level, in Python's words.

    Raises:
        BadSetting: There is no such level.
    """
    text = told.get("--log-level") or "info"
    found = _LEVELS.get(text.lower())
    if found is None:
        raise BadSetting(f"--log-level {text!r}: give debug, info, warning or error")
    return found.upper()


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Instead of usage and exit."""
        raise BadSetting(message)


def parser() -> argparse.ArgumentParser:
    """The parser of the door's arguments: text, or None for what is not given."""
    built = _Parser(
        prog="mx-server",
        description="A small ModelExpress (MX) server that carries source_load: for development, tests and small"
        " fleets. It speaks model_express.p2p.P2pService, grpc.health.v1 and reflection.",
        epilog="Where a variable of the environment is named in [brackets], the option may be given by it; the option"
        " itself wins. The others are options only. Times are seconds.",
    )
    built.add_argument("--version", action="version", version=f"%(prog)s {version()}")
    built.add_argument("--print-crd", action="store_true", help="print the Kubernetes backend's CRD and end")
    for add_group in (_add_serving, _add_stores, _add_rules, _add_security):
        add_group(built)
    return built


class _Group:
    """A group of options whose help ends with the names of their variables."""

    def __init__(self, parser: argparse.ArgumentParser, title: str) -> None:
        self._group = parser.add_argument_group(title)

    def add(self, option: str, text: str, **how: Any) -> None:
        """Add an option to the group."""
        names = (*VARIABLES.get(option, ()), *COMPOSED.get(option, ()))
        self._group.add_argument(option, help=f"{text} [{', '.join(names)}]" if names else text, **how)


def _add_serving(parser: argparse.ArgumentParser) -> None:
    add, default = _Group(parser, "serving").add, _DEFAULT
    where = f"where to serve gRPC; :PORT is every address, port 0 a free one (default: {default.listen})"
    add("--listen", where, metavar="HOST:PORT")
    add("--metrics-listen", "where to serve /metrics and /healthz (default: nowhere)", metavar="HOST:PORT")
    grace = f"for calls in flight to finish after SIGTERM (default: {default.grace:g})"
    add("--grace", grace, metavar="SECONDS")
    add("--max-message-bytes", f"cap of a message (default: {default.max_message_bytes})", metavar="BYTES")
    add("--log-level", "debug, info, warning or error (default: info)", metavar="LEVEL")


def _add_stores(parser: argparse.ArgumentParser) -> None:
    add, default = _Group(parser, "where workers are kept").add, _DEFAULT
    add("--backend", f"(default: {default.backend})", metavar="memory|redis|kubernetes")
    wait = f"for one answer of the backend (default: {default.backend_timeout:g})"
    add("--backend-timeout", wait, metavar="SECONDS")
    add("--redis-url", "such as redis://redis:6379/0 or rediss://...", metavar="URL")
    add("--redis-prefix", f"what every key starts with (default: {default.redis_prefix})", metavar="TEXT")
    add("--namespace", "of the ModelMetadata objects", metavar="NAME")
    add("--kube-api-server", "API server to use outside a pod, such as kubectl proxy's", metavar="URL")
    add("--kube-token-file", "bearer token for it", type=pathlib.Path, metavar="FILE")
    add("--kube-ca-file", "PEM bundle to verify it with", type=pathlib.Path, metavar="FILE")


def _add_rules(parser: argparse.ArgumentParser) -> None:
    add, default = _Group(parser, "rules").add, _DEFAULT
    for option, text, seconds in (
        ("--heartbeat-timeout", "without a heartbeat, until a source is stale", default.heartbeat_timeout),
        ("--reaper-interval", "between scans for stale sources", default.reaper_interval),
        ("--gc-timeout", "until a stale source is forgotten", default.gc_timeout),
    ):
        add(option, f"{text} (default: {seconds:g})", metavar="SECONDS")
    numbering = "which numbering of source_load listings carry; strict decoders (Rust) need theirs (default: both)"
    add("--dialect", numbering, choices=[dialect.value for dialect in Dialect])
    add("--drop-load", "take source_load and drop it, like a server from before the field", action="store_true")


def _add_security(parser: argparse.ArgumentParser) -> None:
    add = _Group(parser, "security").add
    add("--tls-cert", "PEM chain to serve TLS with; read again when it changes", type=pathlib.Path, metavar="FILE")
    add("--tls-key", "its PEM key", type=pathlib.Path, metavar="FILE")
    client = "PEM bundle; clients must show a certificate of it"
    add("--tls-client-ca", client, type=pathlib.Path, metavar="FILE")
    mode = "enforce: only service accounts with a token (default: off)"
    add("--security-mode", mode, metavar="off|enforce")
    add("--token-audiences", "a token needs one of them; with enforce", metavar="A,B")
    add("--allowed-service-accounts", "whose calls are taken; with enforce", metavar="NAMESPACE:NAME,...")
    add("--token-cache-ttl", f"how long a verdict on a token holds (default: {_CACHE_SECONDS:g})", metavar="SECONDS")
