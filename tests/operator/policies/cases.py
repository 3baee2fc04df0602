"""Policies that must be accepted and ones that must be refused, for the validator and for the CRD's schema alike."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

Spec = dict[str, Any]

GOOD: dict[str, Any] = {
    "apiVersion": "sourceload.dev/v1alpha1",
    "kind": "SourceLoadPolicy",
    "metadata": {"name": "fleet"},
    "spec": {
        "server": {"address": "modelexpress-server.mx:8001"},
        "prometheus": {"url": "http://prometheus.monitoring:9090"},
        "signals": [{"name": "exporter", "query": "mx_source_load", "deviceLabel": "gpu"}],
    },
}


def policy(change: Callable[[Spec], object] = lambda spec: None) -> dict[str, Any]:
    """The good policy with a change made to its spec."""
    resource = copy.deepcopy(GOOD)
    change(resource["spec"])
    return resource


def put(path: str, value: object) -> Callable[[Spec], None]:
    """A change: set the field at a dotted path of the spec (numbers index lists); `...` removes it."""

    def change(spec: Spec) -> None:
        *parents, last = path.split(".")
        at: Any = spec
        for key in parents:
            at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
        if value is ...:
            at.pop(int(last) if isinstance(at, list) else last)
        elif isinstance(at, list):
            at[int(last)] = value
        else:
            at[last] = value

    return change


def all_of(*changes: Callable[[Spec], object]) -> Callable[[Spec], None]:
    """Several changes, one after another."""

    def change(spec: Spec) -> None:
        for each in changes:
            each(spec)

    return change


_FRESHNESS = put("signals.0.freshnessQuery", "timestamp(mx_source_load)")


@dataclasses.dataclass(frozen=True)
class Bad:
    """A change that makes the policy unusable.

    Attributes:
        field: What the error has to name, after `spec.`.
        says: A piece of the error's text, problem or fix.
        by_schema: Whether the API server has to refuse it too, before anybody sees it.
    """

    name: str
    change: Callable[[Spec], object]
    field: str
    says: str
    by_schema: bool = True


BAD = [
    Bad("no server", put("server", ...), "server.address", "host:port"),
    Bad("no address", put("server.address", ...), "server.address", "is missing"),
    Bad("address with a scheme", put("server.address", "http://mx:8001"), "server.address", "has a scheme"),
    Bad("address without a port", put("server.address", "mx"), "server.address", "is not host:port"),
    Bad("address of IPv6 without brackets", put("server.address", "fe80::1:8001"), "server.address", "no plain host"),
    Bad("port out of range", put("server.address", "mx:80010"), "server.address", "host:port", by_schema=False),
    Bad("address is a number", put("server.address", 8001), "server.address", "not text"),
    Bad("no prometheus", put("prometheus", ...), "prometheus.url", "is missing"),
    Bad("URL without a scheme", put("prometheus.url", "prometheus:9090"), "prometheus.url", "http://"),
    Bad("URL with credentials", put("prometheus.url", "http://a:b@prometheus"), "prometheus.url", "credentials"),
    Bad("URL with a query", put("prometheus.url", "http://prometheus?x=1"), "prometheus.url", "query"),
    Bad("no signals", put("signals", ...), "signals", "at least one signal"),
    Bad("an empty list of signals", put("signals", []), "signals", "at least one signal"),
    Bad("signals as a mapping", put("signals", {"nic": "x"}), "signals", "not a list"),
    Bad("a signal without a query", put("signals.0.query", ...), "signals[0].query", "PromQL"),
    Bad("a signal without a name", put("signals.0.name", ...), "signals[0].name", "short name"),
    Bad("a signal's name with capitals", put("signals.0.name", "NIC"), "signals[0].name", "lower-case"),
    Bad(
        "two signals of one name",
        lambda spec: spec["signals"].append(dict(spec["signals"][0])),
        "signals[1].name",
        "there twice",
    ),
    Bad(
        "a parenthesis too few",
        all_of(put("signals.0.query", "max by (k8s_pod_ip) (mx_source_load"), _FRESHNESS),
        "signals[0].query",
        "has a ( that nothing closes",
        by_schema=False,
    ),
    Bad(
        "a string without its end",
        all_of(put("signals.0.query", 'mx_source_load{cluster="a}'), _FRESHNESS),
        "signals[0].query",
        'has a " that nothing closes',
        by_schema=False,
    ),
    Bad(
        "a brace too many in the freshness query",
        put("signals.0.freshnessQuery", "timestamp(mx_source_load})"),
        "signals[0].freshnessQuery",
        "has a } where a ) belongs",
        by_schema=False,
    ),
    Bad("the echo as a signal", put("signals.0.query", "mx_p2p_source_load"), "signals[0].query", "repeats the stored"),
    Bad(
        "the echo inside an expression",
        all_of(
            put("signals.0.query", "max by (pod_ip) (mx_p2p_source_load{origin='listing'})"),
            put("signals.0.freshnessQuery", "max by (pod_ip) (timestamp(x))"),
        ),
        "signals[0].query",
        "repeats the stored",
    ),
    Bad(
        "the echo by a pattern on the name",
        put("signals.0.query", '{__name__=~"mx_p2p_.+"}'),
        "signals[0].query",
        "mx_p2p_source_load",
        by_schema=False,
    ),
    Bad(
        "the echo as the time",
        put("signals.0.freshnessQuery", "timestamp(mx_p2p_source_load)"),
        "signals[0].freshnessQuery",
        "repeats the stored",
    ),
    Bad(
        "a Pushgateway",
        put("signals.0.query", 'mx_source_load{job="pushgateway"}'),
        "signals[0].query",
        "push_time_seconds",
        by_schema=False,
    ),
    Bad(
        "an expression without the samples' time",
        put("signals.0.query", "max by (k8s_pod_ip) (mx_source_load)"),
        "signals[0].freshnessQuery",
        "timestamp(",
    ),
    Bad(
        "a rate without the samples' time",
        put("signals.0.query", "rate(bytes_total[10s])"),
        "signals[0].freshnessQuery",
        "is missing",
    ),
    Bad("a label nobody joins by", put("signals.0.joinLabel", "hostname"), "signals[0].joinLabel", "label_replace"),
    Bad("no label for the device", put("signals.0.deviceLabel", "g-p-u"), "signals[0].deviceLabel", "no label"),
    Bad("the device by the join label", put("signals.0.deviceLabel", "k8s_pod_ip"), "signals[0].deviceLabel", "join"),
    Bad("an unknown reduction", put("signals.0.reduce", "sum"), "signals[0].reduce", "max or min or mean"),
    Bad("a scale of nothing", put("signals.0.scale", 0), "signals[0].scale", "from 1e-12"),
    Bad("a scale in words", put("signals.0.scale", "0.01"), "signals[0].scale", "not a number"),
    Bad(
        "too many signals",
        put("signals", [{"name": f"s{n}", "query": "x"} for n in range(17)]),
        "signals",
        "at most 16",
    ),
    Bad("an unknown mode", put("mode", "dry-run"), "mode", "observe or write"),
    Bad("an unknown writer", put("server.writer", "etcd"), "server.writer", "grpc or kubernetes"),
    Bad("the Kubernetes writer nowhere", put("server.writer", "kubernetes"), "server.namespace", "ModelMetadata"),
    Bad("a namespace with a slash", put("server.namespace", "a/b"), "server.namespace", "namespace"),
    Bad("no writes at all", put("server.maxWritesPerSecond", 0), "server.maxWritesPerSecond", "from 0.1"),
    Bad(
        "half a client certificate", put("server.tls", {"certFile": "/c"}), "server.tls.keyFile", "certFile and keyFile"
    ),
    Bad(
        "half of Prometheus' certificate",
        put("prometheus.keyFile", "/k"),
        "prometheus.certFile",
        "certFile and keyFile",
    ),
    Bad("a relative file", put("prometheus.caFile", "ca.crt"), "prometheus.caFile", "absolute"),
    Bad("a file of the kernel", put("prometheus.caFile", "/proc/1/environ"), "prometheus.caFile", "ordinary", False),
    Bad(
        "the operator's own token to Prometheus",
        put("prometheus.bearerTokenFile", "/var/run/secrets/kubernetes.io/serviceaccount/token"),
        "prometheus.bearerTokenFile",
        "own service account",
        by_schema=False,
    ),
    Bad(
        "the operator's own token by another way",
        put("server.tokenFile", "/run/secrets/x/../kubernetes.io//serviceaccount/..data/token"),
        "server.tokenFile",
        "own service account",
        by_schema=False,
    ),
    Bad(
        "two ways to log in",
        all_of(put("prometheus.bearerTokenFile", "/t"), put("prometheus.basicAuthFile", "/b")),
        "prometheus",
        "keep one of",
    ),
    Bad(
        "OAuth without a secret",
        put("prometheus.oauth2", {"tokenUrl": "https://login/token", "clientId": "mx"}),
        "prometheus.oauth2.clientSecretFile",
        "is missing",
    ),
    Bad(
        "credentials as a header",
        put("prometheus.headers", {"authorization": "Bearer x"}),
        "prometheus.headers.authorization",
        "bearerTokenFile",
        by_schema=False,
    ),
    Bad(
        "a header that HTTP cannot carry",
        put("prometheus.headers", {"X-Scope-OrgID": "€"}),
        "prometheus.headers.X-Scope-OrgID",
        "not a header",
        by_schema=False,
    ),
    Bad(
        "a header of two lines",
        put("prometheus.headers", {"X-Scope-OrgID": "a\r\nHost: b"}),
        "prometheus.headers.X-Scope-OrgID",
        "not a header",
        by_schema=False,
    ),
    Bad("a number for a duration", put("interval", 2), "interval", '"2s"'),
    Bad("a duration in days", put("staleAfter", "1d"), "staleAfter", "is not a duration"),
    Bad("a signed duration", put("staleAfter", "-1s"), "staleAfter", "is not a duration"),
    Bad("a cycle too short", put("interval", "100ms"), "interval", "from 1s to 1m"),
    Bad("a heartbeat too long", put("sourceHeartbeat", "1h"), "sourceHeartbeat", "from 5s to 10m"),
    Bad("a sample of last week", put("staleAfter", "168h"), "staleAfter", "from 2s to 5m"),
    Bad("a timeout of nothing", put("prometheus.timeout", "0s"), "prometheus.timeout", "from 100ms to 1m"),
    Bad("a deadband over everything", put("deadband", 1), "deadband", "from 0 to 0.5"),
    Bad("a deadband of true", put("deadband", True), "deadband", "not a number"),
    Bad("a priority in words", put("priority", "high"), "priority", "whole number"),
    Bad("no model at all", put("models.include", []), "models.include", "no model is meant"),
    Bad("a model that is a number", put("models.exclude", [7]), "models.exclude[0]", "text"),
    Bad("a misspelt field", put("signals.0.freshnesQuery", "x"), "signals[0].freshnesQuery", "freshnessQuery?"),
    Bad("a field of another place", put("staleafter", "10s"), "staleafter", "did you mean staleAfter?"),
]

FINE = {
    "the least": lambda spec: None,
    "everything": lambda spec: spec.update(
        mode="observe",
        priority=-5,
        interval="1500ms",
        sourceHeartbeat="1m",
        combine="replace",
        unmeasured="neutral",
        staleAfter="1m30s",
        deadband=0,
        models={"include": ["meta/*"], "exclude": ["*-draft"]},
        server={
            "address": "[::1]:8001",
            "tls": {"caFile": "/c/ca", "certFile": "/c/crt", "keyFile": "/c/key", "serverName": "mx"},
            "tokenFile": "/var/run/secrets/tokens/modelexpress",
            "maxWritesPerSecond": 12.5,
            "writer": "kubernetes",
            "namespace": "mx",
        },
        prometheus={
            "url": "https://mimir.example:443/prometheus/",
            "caFile": "/p/ca",
            "certFile": "/p/crt",
            "keyFile": "/p/key",
            "oauth2": {"tokenUrl": "https://l/t", "clientId": "i", "clientSecretFile": "/s", "scopes": ["read"]},
            "headers": {"X-Scope-OrgID": "team"},
            "timeout": "3s",
            "partialResponse": "accept",
            "scrapeInterval": "30s",
        },
        signals=[
            {"name": "a", "query": "x{pod=~\"(a|b){2}\", y!='#'} # a comment (", "joinLabel": "pod", "scale": 0.01},
            {"name": "b_2", "query": "{__name__='x'}", "joinLabel": "instance", "reduce": "max"},
            {
                "name": "c-3",
                "query": "sum by (uid) (x)",
                "freshnessQuery": "min by (uid) (timestamp(x))",
                "joinLabel": "uid",
            },
        ],
    ),
    "a Pushgateway whose age is the push's": all_of(
        put("signals.0.query", 'mx_source_load{job="pushgateway"}'),
        put("signals.0.freshnessQuery", "push_time_seconds * on (instance) group_right () mx_source_load"),
    ),
    "names like the echo": put("signals.0.query", "my_mx_p2p_source_load_average"),
    "a metric with colons": put("signals.0.query", "vllm:kv_cache_usage_perc"),
    "nulls": put("server.tokenFile", None),
}
