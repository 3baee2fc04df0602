"""What this package raises.

MxWireError
└── ConfigurationError (also a ValueError)
"""


class MxWireError(Exception):
    """Base of everything mx_wire raises on its own account; gRPC's own errors pass through as grpc.RpcError."""


class ConfigurationError(MxWireError, ValueError):
    """An address, certificate or token that cannot be used; the message names the input and the fix."""
