"""The seam to the MX server: ListSources, READY rows only, with whatever client the engine has.

The only module here that talks to a server. Its fake in the tests is any object with ListSources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import grpc
from google.protobuf import message_factory

from mx_wire import ListSourcesRequest, P2pServiceStub, SourceIdentity, SourceInstanceRef, SourceStatus

READY: Final = SourceStatus.SOURCE_STATUS_READY


def list_ready(client: Any, identity: Any, timeout: float) -> Sequence[Any]:
    """The READY sources of `identity`.

    Args:
        client: Our blocking stub, any object with `ListSources(request, timeout=...)`, or the released client's
            MxClient (`list_sources(identity=..., status_filter=...)`).
        identity: A SourceIdentity, ours or the released client's.
        timeout: Seconds.

    Raises:
        grpc.RpcError: The server did not answer.
        TypeError: `client` can list nothing.
    """
    if hasattr(client, "ListSources"):
        answer = client.ListSources(_request(client, identity), timeout=timeout)
    elif hasattr(client, "list_sources"):
        answer = client.list_sources(identity=identity, status_filter=READY)
    else:
        raise TypeError(f"{type(client).__name__} has neither ListSources nor list_sources")
    if hasattr(answer, "__await__"):
        getattr(answer, "cancel", getattr(answer, "close", int))()
        raise TypeError("this is an asyncio client: await its ListSources and give the rows to select_from")
    return cast("Sequence[Any]", answer.instances)


def reason(error: Exception) -> str:
    """What went wrong, in one line: code and details of a gRPC error, else the exception itself."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if isinstance(error, grpc.RpcError) and callable(code) and callable(details):
        return f"{getattr(code(), 'name', code())}: {details()}"
    return repr(error)


def list_model(stub: P2pServiceStub, model_name: str, timeout: float) -> list[SourceInstanceRef]:
    """The READY sources of a model under any identity; an empty name means every model."""
    request = ListSourcesRequest(status_filter=READY)
    if model_name:
        request.model_name_filter = model_name
    rows = stub.ListSources(request, timeout=timeout).instances
    return [row for row in rows if not model_name or row.model_name == model_name]  # old servers know no such filter


def _request(client: Any, identity: Any) -> Any:
    if identity is None or isinstance(identity, SourceIdentity):
        return ListSourcesRequest(identity=identity, status_filter=READY)
    if isinstance(client, P2pServiceStub):  # our stub sends our messages: carry the foreign identity over as bytes
        ours = SourceIdentity.FromString(identity.SerializeToString())
        return ListSourcesRequest(identity=ours, status_filter=READY)
    # A stub of the identity's own family wants a request of that family.
    descriptor = identity.DESCRIPTOR.file.message_types_by_name["ListSourcesRequest"]
    return message_factory.GetMessageClass(descriptor)(identity=identity, status_filter=READY)
