"""Which seam a policy's server gets."""

from __future__ import annotations

from mx_operator.mx.servers import GrpcServer, MxServer
from mx_operator.policies.spec import Server, Writer


def make_server(settings: Server) -> MxServer:
    """The seam to an MX server, with the writer that the policy chose.

    Raises:
        mx_wire.ConfigurationError: The settings cannot be used.
    """
    server = GrpcServer(settings)
    if settings.writer is Writer.GRPC and settings.namespace is None:
        return server
    from mx_operator.mx.objects import WithObjects

    return WithObjects(server, settings)
