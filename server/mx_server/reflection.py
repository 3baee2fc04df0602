"""Lets `grpcurl` and the like ask which calls there are. Used by `app`.

The service's own descriptors live in a pool of their own (see mx_wire), those of the health service in the common
one; reflection has to look into both.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from mx_wire import FILE_DESCRIPTOR, SERVICE

_LOOKUPS: Final = (
    "FindFileByName",
    "FindFileContainingSymbol",
    "FindMessageTypeByName",
    "FindExtensionByNumber",
)


class _BothPools:
    """The look-ups that reflection makes, in the service's pool first and then in the common one."""

    def __init__(self) -> None:
        pools = (FILE_DESCRIPTOR.pool, descriptor_pool.Default())
        for name in _LOOKUPS:
            setattr(self, name, _first([getattr(pool, name) for pool in pools]))

    def FindAllExtensions(self, message: Any) -> list[Any]:  # noqa: N802
        """There are no extensions in this contract."""
        return []


def _first(lookups: list[Any]) -> Any:
    def look_up(*arguments: Any) -> Any:
        try:
            return lookups[0](*arguments)
        except KeyError:
            return lookups[1](*arguments)

    return look_up


def enable(server: grpc.aio.Server) -> None:
    """Add the reflection service to a server."""
    names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server, pool=_BothPools())
