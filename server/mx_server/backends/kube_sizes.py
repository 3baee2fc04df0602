"""What of a worker can be large: its tensors, in a ConfigMap of their own, and the limits of what a cluster stores.

Called by `kubernetes`, between records and parsed JSON, as pure functions.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final

from mx_server.backends import kube_objects
from mx_server.core.records import Registration
from mx_wire import TensorDescriptor

TENSORS_KEY: Final = "tensors.json"
PACKED_KEY: Final = "tensors.json.gz"
#: What etcd and the API server take of each, with room for the rest of the object.
MAX_ANNOTATION: Final = 240 * 1024
MAX_CONFIG_MAP: Final = 1000 * 1024
MAX_STATUS: Final = 1200 * 1024
_MAX_UNPACKED: Final = 100 * 1024 * 1024


def tensors_map(registration: Registration, owner_uid: str, data: kube_objects.Object) -> kube_objects.Object:
    """The ConfigMap of a worker's tensors (their `tensors_data`), owned by the ModelMetadata object."""
    owner = {
        "apiVersion": kube_objects.API_VERSION,
        "kind": "ModelMetadata",
        "name": kube_objects.object_name(registration.source_id, registration.worker_id),
        "uid": owner_uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {
        kube_objects.SOURCE_LABEL: registration.source_id,
        f"{kube_objects.GROUP}/worker": str(registration.worker.worker_rank),
    }
    metadata = {"name": kube_objects.tensors_name(registration), "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **data}


def tensors_data(registration: Registration) -> kube_objects.Object:
    """The tensors as a ConfigMap has them, 64-bit numbers being strings; slow for a hundred thousand of them.

    In plain where that fits, as the upstream server writes it; else packed, which that one could not store at all.
    """
    listed = [
        {"name": t.name, "addr": str(t.addr), "size": str(t.size), "device_id": t.device_id, "dtype": t.dtype}
        for t in registration.worker.tensor_source.tensors
    ]
    text = json.dumps(listed, ensure_ascii=False, separators=(",", ":"))
    if len(data := text.encode()) <= MAX_CONFIG_MAP:
        return {"data": {TENSORS_KEY: text}}
    return {"binaryData": {PACKED_KEY: base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()}}


def too_large(registration: Registration, data: kube_objects.Object) -> str | None:
    """Which field makes the worker larger than the cluster can store; None when it fits."""
    worker = registration.worker
    if len(kube_objects.annotation(registration)) > MAX_ANNOTATION:
        field = "worker.topology" if worker.topology else "identity"
        return f"{field} is too large for the Kubernetes backend ({MAX_ANNOTATION // 1024} KiB with the identity)"
    if len(json.dumps(kube_objects.status(registration, 0))) > MAX_STATUS:
        return f"worker.nixl_metadata is too large for the Kubernetes backend ({MAX_STATUS // 1024} KiB in base64)"
    packed = data.get("binaryData", {}).get(PACKED_KEY, "")
    if len(packed) * 3 // 4 > MAX_CONFIG_MAP:
        return f"worker.tensor_source is too large for the Kubernetes backend ({MAX_CONFIG_MAP // 1024} KiB packed)"
    return None


def tensors(config_map: Mapping[str, Any]) -> list[TensorDescriptor]:
    """The tensors of a ConfigMap.

    Raises:
        KeyError, TypeError, ValueError: It is not of that form.
    """
    return [
        TensorDescriptor(
            name=t["name"], addr=int(t["addr"]), size=int(t["size"]), device_id=t["device_id"], dtype=t["dtype"]
        )
        for t in json.loads(_tensors_text(config_map))
    ]


def _tensors_text(config_map: Mapping[str, Any]) -> str | bytes:
    plain = (config_map.get("data") or {}).get(TENSORS_KEY)
    if plain is not None:
        return str(plain)
    unpacking = zlib.decompressobj(wbits=31)
    text = unpacking.decompress(base64.b64decode(config_map["binaryData"][PACKED_KEY]), _MAX_UNPACKED)
    if not unpacking.eof:
        raise ValueError(f"{PACKED_KEY} is cut off, or larger than {_MAX_UNPACKED} bytes")
    return text
