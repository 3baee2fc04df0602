"""What an administrator asks for: a SourceLoadPolicy as frozen values, whichever way it came in.

The custom resource and a YAML file are read into these by `validation.read_policy` and by nothing else; the planner
and the seams take them. Durations are seconds here; the fields are the camelCase ones of the resource.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

import mx_wire
from mx_operator.policies import labels

GROUP: Final = "sourceload.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "SourceLoadPolicy"
PLURAL: Final = "sourceloadpolicies"


class Mode(enum.Enum):
    """Whether the policy writes. Flipping to OBSERVE is the emergency switch: everything runs but the write."""

    OBSERVE = "observe"
    WRITE = "write"


class Writer(enum.Enum):
    """How a load reaches the server: its own UpdateStatus, or a JSON patch on its ModelMetadata objects."""

    GRPC = "grpc"
    KUBERNETES = "kubernetes"


class Combine(enum.Enum):
    """What a source's own number counts for: the larger of both wins, or ours replaces it."""

    MAX = "max"
    REPLACE = "replace"


class Unmeasured(enum.Enum):
    """What happens to a listed source without a reading: nothing, or one neutral 0.5."""

    LEAVE = "leave"
    NEUTRAL = "neutral"


class PartialResponse(enum.Enum):
    """What an answer that says of itself that it is incomplete is worth (Thanos, VictoriaMetrics)."""

    REJECT = "reject"
    ACCEPT = "accept"


class Reduce(enum.Enum):
    """What to make of several series for one source; NONE calls the source ambiguous and leaves it alone."""

    NONE = "none"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """The MX server a policy is about.

    Attributes:
        address: `host:port`.
        tls: None for plain text, which is what MX servers speak.
        token_file: Bearer token; None sends none.
        max_writes_per_second: Budget of this policy; the strictest of the policies for one server holds.
        writer: `KUBERNETES` only where the server's backend is the same cluster.
        namespace: Of the ModelMetadata objects; set when `writer` is `KUBERNETES`.
    """

    address: str
    tls: mx_wire.Tls | None = None
    token_file: str | None = None
    max_writes_per_second: float = 100.0
    writer: Writer = Writer.GRPC
    namespace: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class OAuth2:
    """Client credentials for a token endpoint; the secret stays in its file."""

    token_url: str
    client_id: str
    client_secret_file: str
    scopes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Prometheus:
    """Where the samples are. At most one of `bearer_token_file`, `basic_auth_file` and `oauth2` is set.

    Attributes:
        url: Base URL without a trailing slash; `/api/v1/query` is appended.
        basic_auth_file: A file with `user:password` on its one line.
        headers: Extra request headers, such as `X-Scope-OrgID`.
        timeout: Seconds for one whole query.
        scrape_interval: Seconds between scrapes, where the policy says so; used for advice only.
    """

    url: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    bearer_token_file: str | None = None
    basic_auth_file: str | None = None
    oauth2: OAuth2 | None = None
    headers: tuple[tuple[str, str], ...] = ()
    timeout: float = 5.0
    partial_response: PartialResponse = PartialResponse.REJECT
    scrape_interval: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Signal:
    """One PromQL expression whose value is a load.

    Attributes:
        name: Unique in its policy; the `signal` label of the operator's own metrics.
        query: Value per source.
        freshness_query: Unix seconds of the sample behind each value, with the same labels; None only where `query`
            is a bare selector, for which `timestamp(query)` is that.
        join_label: The label of the series that says which source it is; see `labels.Join`.
        device_label: The label with the GPU's index inside the pod; a series where it is absent or empty serves
            every rank of the pod.
        reduce: What to make of several series for one source.
        scale: Factor that turns the value into [0, 1]; 0.01 for per cent.
    """

    name: str
    query: str
    freshness_query: str | None = None
    join_label: str = "k8s_pod_ip"
    device_label: str | None = None
    reduce: Reduce = Reduce.NONE
    scale: float = 1.0

    @property
    def join(self) -> labels.Join:
        """What the join label holds."""
        return labels.JOIN_LABELS[self.join_label].join

    @property
    def companion_label(self) -> str | None:
        """The second label that the join needs: a pod name's namespace, a source's worker."""
        return labels.JOIN_LABELS[self.join_label].companion


@dataclasses.dataclass(frozen=True, slots=True)
class Models:
    """Shell patterns over model names; everything that is included and not excluded is meant."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SourceLoadPolicy:
    """One policy, valid in itself.

    Attributes:
        name: Of the resource; unique in a process.
        generation: Of the resource's spec; 0 from a file.
        uid: Of the resource; empty from a file.
        priority: The policy with the highest one has a source that several match; then the first by name.
        interval: Seconds between cycles, before stretching.
        source_heartbeat: Seconds between the sources' own heartbeats (`MX_HEARTBEAT_INTERVAL_SECS`).
        stale_after: Oldest age of a sample, in seconds on Prometheus' clock, that still counts.
        deadband: Smallest difference to the stored value that is worth a write.
    """

    name: str
    server: Server
    prometheus: Prometheus
    signals: tuple[Signal, ...]
    mode: Mode = Mode.WRITE
    priority: int = 0
    interval: float = 2.0
    source_heartbeat: float = 30.0
    combine: Combine = Combine.MAX
    unmeasured: Unmeasured = Unmeasured.LEAVE
    stale_after: float = 40.0
    deadband: float = 0.05
    models: Models = Models()
    generation: int = 0
    uid: str = ""
