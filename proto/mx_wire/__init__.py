"""The wire contract with ModelExpress servers: messages, service, load dialects, channels, source identity.

Everything else in this project that speaks gRPC to a ModelExpress (MX) server does so through this package; it
imports nothing of ours. Works with protobuf 5.27, 6 and 7 on Python 3.10 and newer, and lives in one process with
the released client, whose stubs have the same proto package (the stubs here use a descriptor pool of their own).
"""

from mx_wire.channels import Tls, TokenFile, aio_channel, channel
from mx_wire.errors import ConfigurationError, MxWireError
from mx_wire.identities import mx_source_id
from mx_wire.loads import Dialect, clear_load, read_load, set_load
from mx_wire.messages import (
    ArtifactSourceMetadata,
    BackendFramework,
    GetMetadataRequest,
    GetMetadataResponse,
    ListSourcesRequest,
    ListSourcesResponse,
    MxSourceType,
    PublishMetadataRequest,
    PublishMetadataResponse,
    SourceIdentity,
    SourceInstanceRef,
    SourceStatus,
    TensorDescriptor,
    TensorSourceMetadata,
    UpdateStatusRequest,
    UpdateStatusResponse,
    WorkerMetadata,
)
from mx_wire.services import (
    FILE_DESCRIPTOR,
    SERVICE,
    AsyncP2pServiceStub,
    P2pServiceServicer,
    P2pServiceStub,
    add_p2p_service_to_server,
    aio_stub,
)

__all__ = [
    "FILE_DESCRIPTOR",
    "SERVICE",
    "ArtifactSourceMetadata",
    "AsyncP2pServiceStub",
    "BackendFramework",
    "ConfigurationError",
    "Dialect",
    "GetMetadataRequest",
    "GetMetadataResponse",
    "ListSourcesRequest",
    "ListSourcesResponse",
    "MxSourceType",
    "MxWireError",
    "P2pServiceServicer",
    "P2pServiceStub",
    "PublishMetadataRequest",
    "PublishMetadataResponse",
    "SourceIdentity",
    "SourceInstanceRef",
    "SourceStatus",
    "TensorDescriptor",
    "TensorSourceMetadata",
    "Tls",
    "TokenFile",
    "UpdateStatusRequest",
    "UpdateStatusResponse",
    "WorkerMetadata",
    "add_p2p_service_to_server",
    "aio_channel",
    "aio_stub",
    "channel",
    "clear_load",
    "mx_source_id",
    "read_load",
    "set_load",
]
