"""Server credentials from files, read again when they change. Used by `app` when a certificate is given."""

from __future__ import annotations

import os
import pathlib
import ssl
from typing import Any

import grpc

from mx_server.settings import BadSetting, ServerTls


class _BundleError(OSError):
    """The file for clients' certificates has none."""


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
        first = self._first()
        return grpc.dynamic_ssl_server_credentials(
            first, self._changed, require_client_authentication=self._tls.client_ca_file is not None
        )

    def _first(self) -> Any:
        tls = self._tls
        for path in (tls.cert_file, tls.key_file, tls.client_ca_file):
            try:
                if path is not None:
                    path.read_bytes()  # the TLS library's own error does not say which file it was
            except OSError as error:
                raise BadSetting(f"TLS: {path}: {error.strerror}") from error
        try:
            return self._configuration()
        except _BundleError as error:
            raise BadSetting(f"--tls-client-ca {tls.client_ca_file}: no certificate in it: {error}") from error
        except ssl.SSLError as error:
            what = f"--tls-cert {tls.cert_file}, --tls-key {tls.key_file}"
            raise BadSetting(f"{what}: no certificate with its key: {error.reason or error}") from error

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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._tls.cert_file, self._tls.key_file)
        ca_file = self._tls.client_ca_file
        if ca_file is not None:
            try:
                context.load_verify_locations(ca_file)
            except ssl.SSLError as error:
                raise _BundleError(error.reason or str(error)) from error
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
