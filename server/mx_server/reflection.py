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

_LOOKUPS: Final = ("FindFileByName", "FindMessageTypeByName", "FindServiceByName", "FindExtensionByNumber")


class _BothPools:
    """The look-ups that reflection makes, in the service's pool first and then in the common one."""

    def __init__(self) -> None:
        pools = (FILE_DESCRIPTOR.pool, descriptor_pool.Default())
        for name in _LOOKUPS:
            setattr(self, name, _first([getattr(pool, name) for pool in pools]))
        self._of_symbol = _first([pool.FindFileContainingSymbol for pool in pools])

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802
        """The file of a message, an enumeration, a service or, which the pools do not know by name, a method."""
        try:
            return self._of_symbol(symbol)
        except KeyError:
            service, _, method = symbol.rpartition(".")
            found = self.FindServiceByName(service)  # type: ignore[attr-defined]
            return found.methods_by_name[method].containing_service.file

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
