"""The server's settings as one frozen record, and what is wrong with them in one line.

Made by `cli` from arguments and the environment, by the lab and by tests directly; used by `app`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import socket
from typing import Final

from mx_wire import Dialect

#: gRPC's own limit of a message.
_MOST_BYTES: Final = 2**31 - 1


class BadSetting(ValueError):  # noqa: N818 - it is the setting that is bad
    """A setting that cannot be used; the message names the input and the fix."""


def host_port(option: str, text: str, example: str) -> tuple[str, int]:
    """Host (an IPv6 one in its brackets) and port of `host:port`; `:port` is every address of this machine.

    Raises:
        BadSetting: It is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 65536):
        raise BadSetting(f"{option} {text!r}: give host:port, such as {example}")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise BadSetting(f"{option} {text!r}: put an IPv6 address in brackets, such as [::1]:{port}")
    return host or everywhere(), int(port)


def everywhere() -> str:
    """The address that stands for all of this machine's, of IPv6 and IPv4, or of IPv4 where that is all there is."""
    return "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - it is what was asked for


def bracketed(host: str) -> str:
    """A host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@dataclasses.dataclass(frozen=True, slots=True)
class Kubernetes:
    """How to reach an API server.

    Attributes:
        namespace: Where the ModelMetadata objects live.
        server: URL; None takes the pod's own (KUBERNETES_SERVICE_HOST).
        token_file: Read again when it changes; None sends no token (a `kubectl proxy` needs none).
        ca_file: PEM bundle; None takes the system's.
    """

    namespace: str
    server: str | None = None
    token_file: pathlib.Path | None = None
    ca_file: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ServerTls:
    """Certificate and key to serve with; `client_ca_file` makes clients show a certificate of theirs."""

    cert_file: pathlib.Path
    key_file: pathlib.Path
    client_ca_file: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Security:
    """Whose calls are taken.

    Attributes:
        audiences: A token must carry one of them.
        allowed: Service accounts as `namespace:name`, exactly.
        cache_seconds: How long a verdict on a token is remembered.
    """

    audiences: tuple[str, ...]
    allowed: frozenset[str]
    cache_seconds: float = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Everything a server is started with; times are in seconds.

    Addresses are `host:port`, or `:port` for every address of the machine; port 0 takes any free one.
    """

    listen: str = "127.0.0.1:8001"
    backend: str = "memory"
    redis_url: str = ""
    redis_prefix: str = "mx-source-load"
    kubernetes: Kubernetes | None = None
    metrics_listen: str | None = None
    dialect: Dialect = Dialect.BOTH
    keeps_load: bool = True
    heartbeat_timeout: float = 90.0
    reaper_interval: float = 30.0
    gc_timeout: float = 3600.0
    backend_timeout: float = 5.0
    grace: float = 10.0
    max_message_bytes: int = 100 * 1024 * 1024
    tls: ServerTls | None = None
    security: Security | None = None

    def __post_init__(self) -> None:
        for name in ("heartbeat_timeout", "reaper_interval", "gc_timeout", "backend_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                option = "--" + name.replace("_", "-")
                raise BadSetting(f"{option} {getattr(self, name):g}: give a number of seconds above 0")
        if not 0 <= self.grace < float("inf"):
            raise BadSetting(f"--grace {self.grace:g}: give a number of seconds, 0 or more")
        if not 1024 <= self.max_message_bytes <= _MOST_BYTES:
            raise BadSetting(f"--max-message-bytes {self.max_message_bytes}: give 1024 to {_MOST_BYTES}")
        if self.security is not None and not 0 <= self.security.cache_seconds < float("inf"):
            raise BadSetting(f"--token-cache-ttl {self.security.cache_seconds:g}: give a number of seconds, 0 or more")
        if self.backend == "redis" and not self.redis_url:
            raise BadSetting("--backend redis needs --redis-url (or REDIS_URL), such as redis://redis:6379")
        if self.backend == "kubernetes" and (self.kubernetes is None or not self.kubernetes.namespace):
            raise BadSetting("--backend kubernetes needs --namespace (or MX_METADATA_NAMESPACE or POD_NAMESPACE)")
        if self.gc_timeout < self.heartbeat_timeout:
            raise BadSetting(
                f"--gc-timeout {self.gc_timeout:g} is shorter than --heartbeat-timeout {self.heartbeat_timeout:g}:"
                " a source would be forgotten before it counts as stale"
            )
