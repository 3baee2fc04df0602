"""A policy in plain words: what it measures, where it writes, and how much harm it can do at most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mx_operator.policies import durations
from mx_operator.policies.spec import (
    Combine,
    Mode,
    PartialResponse,
    Prometheus,
    Reduce,
    Server,
    Signal,
    SourceLoadPolicy,
    Unmeasured,
    Writer,
)

#: Share of a heartbeat after which nothing is written any more, and the grace of a last write: the write protocol's.
_WINDOW: Final = 0.9
_GRACE: Final = 2.0
#: Missed heartbeats after which servers call a source stale, by their own default.
_TO_STALE: Final = 3

_REDUCED: Final = {
    Reduce.NONE: "a source with several series is left alone",
    Reduce.MAX: "of several series the largest counts",
    Reduce.MIN: "of several series the smallest counts",
    Reduce.MEAN: "of several series the mean counts",
}


def explain(policy: SourceLoadPolicy) -> str:
    """Lines for a person; ends without a line break."""
    return "\n".join((_head(policy), *(f"  {line}" for line in _body(policy))))


def _head(policy: SourceLoadPolicy) -> str:
    does = "writes" if policy.mode is Mode.WRITE else "observes only: it would write"
    return f"{policy.name} {does} the load of {_models(policy)} to the MX server {policy.server.address}"


def _models(policy: SourceLoadPolicy) -> str:
    models = policy.models
    included = "every source" if models.include == ("*",) else f"sources of {' or '.join(models.include)}"
    return included + (f" but not of {' or '.join(models.exclude)}" if models.exclude else "")


def _body(policy: SourceLoadPolicy) -> Iterator[str]:
    yield f"server      {_server(policy.server)}"
    yield f"prometheus  {_prometheus(policy.prometheus)}"
    for signal in policy.signals:
        yield from _signal(signal)
    yield f"freshness   a sample older than {durations.show(policy.stale_after)} counts as none"
    yield f"value       {_value(policy)}"
    yield f"rhythm      {_rhythm(policy)}"
    yield f"harm        {_harm(policy)}"
    yield f"precedence  priority {policy.priority}; of several policies the highest has a source"


def _server(server: Server) -> str:
    how = "through gRPC" if server.writer is Writer.GRPC else f"by JSON patch on ModelMetadata in {server.namespace}"
    channel = (
        "plain text" if server.tls is None else "TLS" + (" with a client certificate" if server.tls.cert_file else "")
    )
    token = f"token from {server.token_file}" if server.token_file else "no token"
    return f"{how}; {channel}; {token}; at most {server.max_writes_per_second:g} writes a second"


def _prometheus(prometheus: Prometheus) -> str:
    parts = [prometheus.url, _login(prometheus), f"{durations.show(prometheus.timeout)} for a query"]
    if prometheus.headers:
        parts.append(f"headers {', '.join(name for name, _ in prometheus.headers)}")
    kept = "counted as complete" if prometheus.partial_response is PartialResponse.ACCEPT else "refused"
    return "; ".join([*parts, f"incomplete answers are {kept}"])


def _login(prometheus: Prometheus) -> str:
    if prometheus.bearer_token_file:
        return f"bearer token from {prometheus.bearer_token_file}"
    if prometheus.basic_auth_file:
        return f"user and password from {prometheus.basic_auth_file}"
    if prometheus.oauth2:
        return f"OAuth 2 as {prometheus.oauth2.client_id} at {prometheus.oauth2.token_url}"
    return "client certificate" if prometheus.cert_file else "no credentials"


def _signal(signal: Signal) -> Iterator[str]:
    scaled = "" if signal.scale == 1 else f" times {signal.scale:g}"
    yield f"signal      {signal.name}: {' '.join(signal.query.split())}{scaled}"
    if signal.freshness_query is not None:
        yield f"            sampled at: {' '.join(signal.freshness_query.split())}"
    key = f"the {signal.join.value} in {signal.join_label}"
    companion = signal.companion_label
    ranks = (
        f"{signal.device_label} tells ranks apart" if signal.device_label else "one series serves all ranks of a pod"
    )
    joined = f"{key}{f' and {companion}' if companion else ''}"
    yield f"            joined by {joined}; {ranks}; {_REDUCED[signal.reduce]}"


def _value(policy: SourceLoadPolicy) -> str:
    several = "the largest signal" if len(policy.signals) > 1 else "the signal"
    own = {
        Combine.MAX: f"{several}, or the source's own number where that is larger",
        Combine.REPLACE: f"{several}, whatever the source's own number",
    }[policy.combine]
    none = {
        Unmeasured.LEAVE: "without a reading nothing is written",
        Unmeasured.NEUTRAL: "without a reading 0.5 is written",
    }[policy.unmeasured]
    return f"{own}; {none}"


def _rhythm(policy: SourceLoadPolicy) -> str:
    heartbeat = durations.show(policy.source_heartbeat)
    when = f"every {durations.show(policy.interval)}, where the stored load is off by more than {policy.deadband:g}"
    if policy.server.writer is Writer.KUBERNETES:
        return when
    window = durations.show(_WINDOW * policy.source_heartbeat)
    return f"{when}, within {window} after a heartbeat of the source (one is expected every {heartbeat})"


def _harm(policy: SourceLoadPolicy) -> str:
    if policy.mode is Mode.OBSERVE:
        return "none: nothing is written"
    if policy.server.writer is Writer.KUBERNETES:
        return "none to liveness: the writes touch neither status nor time"
    late = _WINDOW * policy.source_heartbeat + _GRACE
    timeout = _TO_STALE * policy.source_heartbeat
    bound = f"{durations.show(timeout + late)} with the server's timeout at {durations.show(timeout)}"
    return f"a dead source stays selectable at most {durations.show(late)} longer: {bound}"
