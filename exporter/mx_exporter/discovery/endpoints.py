"""What makes an endpoint valid, whoever names it: a file of the administrator or an annotation of a pod."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from mx_exporter.model import Endpoint

#: A plain absolute path: no query, no fragment, no way to another host, nothing to split a header with.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,255}\Z")
SCHEMES = ("http", "https")


def endpoint(port: int, path: str | None = None, scheme: str | None = None) -> Endpoint:
    """An endpoint, checked.

    Raises:
        ValueError: A part is out of its bounds; the text says which and what would do.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be between 1 and 65535, not {port}")
    if path is not None and not _PATH.match(path):
        raise ValueError(f"path must be a plain path like /metrics, not {path[:80]!r}")
    if scheme is not None and scheme not in SCHEMES:
        raise ValueError(f"scheme must be http or https, not {scheme[:80]!r}")
    return Endpoint(port, path, scheme or "http")


def is_url(text: str) -> bool:
    """Whether a text is a URL of HTTP with a host."""
    try:
        parts = urlsplit(text)
        return parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an address that is none
        return False


def address(text: str) -> str:
    """An IP address in its usual form; names are refused, so that nobody decides later what they mean.

    Raises:
        ValueError: It is not an address.
    """
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError(f"ip must be an IP address, not {text[:80]!r}") from None


def pod_address(text: str) -> str:
    """The address of a pod in a cluster: one that leads to the pod and not to us or to the cloud's metadata.

    Raises:
        ValueError: It is none.
    """
    ip = ipaddress.ip_address(text)
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.scope_id is not None:
            raise ValueError(f"{ip} is no address of a pod")
        ip = ip.ipv4_mapped or ip  # `::ffff:127.0.0.1` leads to ourselves as well
    if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        raise ValueError(f"{ip} is no address of a pod")
    return str(ip)
