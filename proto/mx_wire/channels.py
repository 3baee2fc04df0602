"""Channels to an MX server: plain or TLS, with a bearer token that may change under us.

MX servers speak plain HTTP/2; TLS is for a mesh or a proxy before them. Tokens are projected service-account tokens,
which the kubelet replaces on disk about hourly, so the file is read again whenever it changed.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import grpc

from mx_wire.errors import ConfigurationError

#: A listing of a large fleet, or central-mode metadata, is far above gRPC's own 4 MiB (the servers allow this much).
MAX_MESSAGE_BYTES: Final = 100 * 1024 * 1024
_TOKEN_SECONDS: Final = 60.0


@dataclasses.dataclass(frozen=True)
class Tls:
    """How to verify a server and, with both `cert_file` and `key_file`, how to identify ourselves to it.

    Attributes:
        ca_file: PEM bundle to verify the server with; the system's own roots when None.
        cert_file: PEM certificate chain of the client.
        key_file: PEM key of the client.
        server_name: Name to expect in the server's certificate where it is not the address' host.
    """

    ca_file: str | os.PathLike[str] | None = None
    cert_file: str | os.PathLike[str] | None = None
    key_file: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigurationError("TLS: a client certificate needs both cert_file and key_file; one is missing")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files now.

        Raises:
            ConfigurationError: A file cannot be read.
        """
        return grpc.ssl_channel_credentials(
            root_certificates=_read("ca_file", self.ca_file),
            private_key=_read("key_file", self.key_file),
            certificate_chain=_read("cert_file", self.cert_file),
        )


def _read(what: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"TLS: {what} {os.fspath(path)}: {error.strerror}") from error


class TokenFile:
    """A bearer token in a file, read again when the file changed and at least once a minute.

    A missing or empty file means no token (as in the released client: a server with authentication off needs none);
    a file that can no longer be read keeps the last token until it is back.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._path = os.fspath(path)
        self._clock = clock
        self._read_at = -_TOKEN_SECONDS
        self._version: tuple[int, int] | None = None
        self._token = ""

    def token(self) -> str:
        """The token now; empty when there is none."""
        now = self._clock()
        try:
            stat = os.stat(self._path)
            version = (stat.st_mtime_ns, stat.st_ino)
            if version != self._version or now - self._read_at >= _TOKEN_SECONDS:
                self._token = pathlib.Path(self._path).read_text(encoding="utf-8").strip()
                self._version, self._read_at = version, now
        except (OSError, ValueError):  # not there, or no text
            pass
        return self._token

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """GRPC metadata that carries the token: one `authorization` entry, or none."""
        token = self.token()
        return (("authorization", f"Bearer {token}"),) if token else ()


@dataclasses.dataclass(frozen=True)
class _Details:
    """A call's details with metadata of ours, in the shape both kinds of interceptor pass on."""

    method: Any
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any = None


def _with_token(details: Any, tokens: TokenFile) -> Any:
    metadata = (*(details.metadata or ()), *tokens.metadata())
    compression = getattr(details, "compression", None)
    return _Details(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, compression)


class _TokenInterceptor(grpc.UnaryUnaryClientInterceptor):
    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(_with_token(client_call_details, self._tokens), request)


class _AioTokenInterceptor(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    async def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Awaitable[Any]], client_call_details: Any, request: Any
    ) -> Any:
        details = grpc.aio.ClientCallDetails(
            client_call_details.method,
            client_call_details.timeout,
            grpc.aio.Metadata(*(client_call_details.metadata or ()), *self._tokens.metadata()),
            client_call_details.credentials,
            client_call_details.wait_for_ready,
        )
        return await continuation(details, request)


def _checked(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if "://" in address and not address.startswith(("dns:", "ipv4:", "ipv6:", "unix:")):
        raise ConfigurationError(f"MX server address {address!r}: give host:port, without a scheme")
    if not address.startswith("unix:") and not (colon and host and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(f"MX server address {address!r}: give host:port, such as modelexpress-server:8001")
    return address


def _options(tls: Tls | None, retries: bool, extra: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    options: dict[str, Any] = {
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
        # A server that hangs or moved is noticed in 13 s instead of by TCP's two hours.
        "grpc.keepalive_time_ms": 10_000,
        "grpc.keepalive_timeout_ms": 3_000,
        "grpc.enable_retries": int(retries),
    }
    if tls is not None and tls.server_name is not None:
        options["grpc.ssl_target_name_override"] = tls.server_name
    return list((options | dict(extra)).items())


def channel(
    address: str,
    *,
    tls: Tls | None = None,
    tokens: TokenFile | None = None,
    retries: bool = False,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.Channel:
    """A blocking channel to the MX server at `address`.

    Args:
        address: `host:port`.
        tls: None for plain text.
        tokens: Sent as `authorization: Bearer ...` with each call.
        retries: Let gRPC repeat calls by itself. Off: a repeated UpdateStatus is a late one.
        options: Further gRPC channel arguments; they win over the defaults.

    Raises:
        ConfigurationError: The address has no port, or a TLS file cannot be read.
    """
    target, arguments = _checked(address), _options(tls, retries, options)
    plain = (
        grpc.insecure_channel(target, options=arguments)
        if tls is None
        else grpc.secure_channel(target, tls.credentials(), options=arguments)
    )
    return plain if tokens is None else grpc.intercept_channel(plain, _TokenInterceptor(tokens))


def aio_channel(
    address: str,
    *,
    tls: Tls | None = None,
    tokens: TokenFile | None = None,
    retries: bool = False,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Channel:
    """The asyncio twin of `channel`: same arguments, same errors."""
    target, arguments = _checked(address), _options(tls, retries, options)
    interceptors = [] if tokens is None else [_AioTokenInterceptor(tokens)]
    if tls is None:
        return grpc.aio.insecure_channel(target, options=arguments, interceptors=interceptors)
    return grpc.aio.secure_channel(target, tls.credentials(), options=arguments, interceptors=interceptors)
