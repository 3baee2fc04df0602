"""Which series labels may say what source a series belongs to: a closed list, because a guessed join is a wrong load.

Used by the policies' validator and by the planner's join. A team whose label has another name renames it in the
query with `label_replace`.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from types import MappingProxyType
from typing import Final


class Join(enum.Enum):
    """What a join label holds."""

    ADDRESS = "address"  # the pod's IP
    INSTANCE = "instance"  # the pod's IP, and a port that does not matter
    POD_NAME = "pod name"  # with the namespace in the companion label
    POD_UID = "pod uid"
    SOURCE = "source"  # an mx_source_id, with the worker in the companion label


@dataclasses.dataclass(frozen=True, slots=True)
class JoinLabel:
    """A permitted join label and the second label it needs, if any."""

    join: Join
    companion: str | None = None


#: The permitted names: ours (OpenTelemetry's), kube-state-metrics', and those of common relabelling rules.
JOIN_LABELS: Final = MappingProxyType(
    {
        "k8s_pod_ip": JoinLabel(Join.ADDRESS),
        "pod_ip": JoinLabel(Join.ADDRESS),
        "instance": JoinLabel(Join.INSTANCE),
        "k8s_pod_name": JoinLabel(Join.POD_NAME, "k8s_namespace_name"),
        "pod": JoinLabel(Join.POD_NAME, "namespace"),
        "exported_pod": JoinLabel(Join.POD_NAME, "exported_namespace"),
        "k8s_pod_uid": JoinLabel(Join.POD_UID),
        "uid": JoinLabel(Join.POD_UID),
        "mx_source_id": JoinLabel(Join.SOURCE, "worker_id"),
    }
)

LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
