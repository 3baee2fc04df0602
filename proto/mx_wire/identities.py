"""The content-addressed name of what a source holds."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from mx_wire.messages import SourceIdentity

_ALWAYS: Final = ("mx_version", "model_name", "dtype", "quantization", "revision")
_NUMBERS: Final = (
    "mx_source_type",
    "backend_framework",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "expert_parallel_size",
)
# Newer fields: left out when empty, so that identities from before them keep their name.
_WHEN_SET: Final = (
    "backend_framework_version",
    "torch_version",
    "cuda_version",
    "triton_version",
    "gpu_arch",
    "compile_config_digest",
)


def mx_source_id(identity: SourceIdentity) -> str:
    """The 16 hexadecimal digits under which every MX peer files `identity`.

    The first half of SHA-256 over compact JSON with sorted keys; strings in lower case; of two `extra_parameters`
    whose keys differ in case only, the one that sorts first wins. Servers and the released client compute the same
    (its `metadata/source_id.py`).
    """
    content: dict[str, object] = {name: getattr(identity, name).lower() for name in _ALWAYS}
    content |= {name: int(getattr(identity, name)) for name in _NUMBERS}
    content |= {name: value.lower() for name in _WHEN_SET if (value := getattr(identity, name))}
    extra: dict[str, str] = {}
    for key, value in sorted(identity.extra_parameters.items()):
        extra.setdefault(key.lower(), value.lower())
    content["extra_parameters"] = extra
    canonical = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
