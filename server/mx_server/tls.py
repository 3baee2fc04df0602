"""Server credentials from files, read again when they change. Used by `app` when a certificate is given."""

from __future__ import annotations

import os
import pathlib
import ssl
from typing import Any

import grpc

from mx_server.settings import BadSetting, ServerTls


class Certificates:
    """The files of a ServerTls, as gRPC wants them.

    Certificates are renewed under a running server (cert-manager, SPIFFE): each handshake looks whether a file
    changed. Files that cannot be used then, being half written for instance, leave the last good ones in place.
    """

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._seen = self._stamps()

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials for a server's port.

        Raises:
            BadSetting: A file cannot be read, or certificate and key do not belong together.
        """
        try:
            first = self._configuration()
        except ssl.SSLError as error:
            raise BadSetting(
                f"--tls-cert {self._tls.cert_file}, --tls-key {self._tls.key_file}: {error.reason or error}"
            ) from error
        except OSError as error:
            raise BadSetting(f"TLS: {error.filename}: {error.strerror}") from error
        return grpc.dynamic_ssl_server_credentials(
            first, self._changed, require_client_authentication=self._tls.client_ca_file is not None
        )

    def _changed(self) -> Any:
        """The new configuration, or None while nothing changed (gRPC's protocol); called for each handshake."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return None
            configuration = self._configuration()
        except OSError:
            return None
        self._seen = stamps
        return configuration

    def _configuration(self) -> Any:
        # gRPC takes a mismatched pair without a word and then fails every handshake.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._tls.cert_file, self._tls.key_file)
        ca_file = self._tls.client_ca_file
        return grpc.ssl_server_certificate_configuration(
            [(self._tls.key_file.read_bytes(), self._tls.cert_file.read_bytes())],
            None if ca_file is None else ca_file.read_bytes(),
        )

    def _stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self._tls.cert_file, self._tls.key_file, self._tls.client_ca_file))


def _stamp(path: pathlib.Path | None) -> tuple[int, int] | None:
    try:
        return None if path is None else ((stat := os.stat(path)).st_mtime_ns, stat.st_ino)
    except OSError:
        return None
