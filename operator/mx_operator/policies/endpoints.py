"""Which hosts and files a policy may name: a policy is an administrator's, but an operator's pod is not theirs alone.

A policy that names any URL and any file could send any secret of the pod anywhere. So the operator's own service
account token is out of reach of every policy, and an installation can list the only hosts that policies may name.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import posixpath
import urllib.parse
from typing import Final

#: Where Kubernetes mounts the token of the pod's own service account; a projected token for Prometheus or for the
#: MX server is mounted elsewhere.
_OWN_ACCOUNT: Final = "kubernetes.io/serviceaccount"
_SPECIAL: Final = ("/proc", "/dev", "/sys")


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What the installation lets policies name.

    Attributes:
        endpoints: Shell patterns over `host:port` (`*.monitoring.svc:9090`); empty allows any host.
    """

    endpoints: tuple[str, ...] = ()

    def allows(self, host_port: str) -> bool:
        """Whether a policy may name this host and port."""
        return not self.endpoints or any(fnmatch.fnmatchcase(host_port.lower(), p.lower()) for p in self.endpoints)


def address_problem(address: str) -> str | None:
    """Why an MX server address cannot be used, or None."""
    host, colon, port = address.rpartition(":")
    if "://" in address:
        return "has a scheme"
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        return "is not host:port"
    if any(character in host for character in "/@ ") or (":" in host and not host.startswith("[")):
        return "has no plain host"
    return None


def url_problem(url: str) -> str | None:
    """Why a base URL cannot be used, or None."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is not a URL ({error})"
    if parts.scheme not in ("http", "https"):
        return "does not start with http:// or https://"
    if not parts.hostname or port == 0:
        return "has no host"
    if parts.username is not None or parts.password is not None:
        return "holds credentials"
    if parts.query or parts.fragment:
        return "has a query or a fragment"
    return None


def host_port(url: str) -> str:
    """`host:port` of a URL that has no problem, with the scheme's own port where none is given."""
    parts = urllib.parse.urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def file_problem(path: str, secret: bool) -> str | None:
    """Why a policy may not name this file, or None.

    Args:
        path: As written.
        secret: It is sent to somebody (a token, a password), and not only read (a CA bundle).
    """
    if not path.startswith("/"):
        return "is not an absolute path"
    plain = posixpath.normpath(path)
    if plain.startswith(tuple(f"{top}/" for top in _SPECIAL)):
        return "is not an ordinary file"
    if secret and _OWN_ACCOUNT in plain:
        return "is the operator's own service account"
    return None
