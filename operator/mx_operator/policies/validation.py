"""From a mapping to a SourceLoadPolicy: the one validator, for custom resources and for YAML files.

Whatever the CRD's schema refuses is refused here too, since a file has no API server before it and an old CRD may
be installed. Every error is found in one go and names its field and its fix.
"""

from __future__ import annotations

import re
from typing import Final

import mx_wire
from mx_operator.policies import advice, endpoints, labels, queries
from mx_operator.policies.endpoints import Limits
from mx_operator.policies.fields import Findings, Section
from mx_operator.policies.findings import Finding, PolicyError, Severity
from mx_operator.policies.spec import (
    API_VERSION,
    KIND,
    Combine,
    Mode,
    Models,
    OAuth2,
    PartialResponse,
    Prometheus,
    Reduce,
    Server,
    Signal,
    SourceLoadPolicy,
    Unmeasured,
    Writer,
)

#: Signals a policy may have: each is one query a cycle.
MAX_SIGNALS: Final = 16
_DNS_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")
_SIGNAL_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9_]*[a-z0-9])?\Z")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
_HEADER_VALUE: Final = re.compile(r"[^\r\n\0\u0100-\U0010ffff]*\Z")
_OWN_HEADERS: Final = frozenset(
    {"authorization", "host", "content-length", "content-type", "transfer-encoding", "cookie"}
)
_ANY_LIMITS: Final = Limits()


def read_policy(resource: object, limits: Limits = _ANY_LIMITS) -> tuple[SourceLoadPolicy, tuple[Finding, ...]]:
    """Read one resource.

    Args:
        resource: A custom resource as the API server gives it, or one document of a file.
        limits: What the installation lets policies name.

    Returns:
        The policy, and warnings about it.

    Raises:
        PolicyError: It cannot be used; holds every reason.
    """
    findings = Findings()
    top = Section(resource if resource is not None else {}, "", findings)
    _kind(top)
    name, generation, uid = _metadata(top.section("metadata"))
    top.take("status")
    if not top.has("spec"):
        findings.error("spec", "is missing", "say at least spec.server, spec.prometheus and spec.signals")
    policy = _spec(top.section("spec"), limits, name, generation, uid)
    top.finish()
    errors = findings.of(Severity.ERROR)
    if errors:
        raise PolicyError(f"policy {name!r}" if name else "policy without a name", errors)
    return policy, (*findings.of(Severity.WARNING), *advice.advise(policy))


def _kind(top: Section) -> None:
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = top.required(field, f"write {field}: {expected}")
        if value and value != expected:
            top.findings.error(field, f"is {value!r}", f"write {expected}")


def _metadata(metadata: Section) -> tuple[str, int, str]:
    name = metadata.required("name", "give the policy a name")
    if name and (len(name) > 253 or not _DNS_NAME.match(name)):
        metadata.findings.error("metadata.name", f"is {name!r}", "use lower-case letters, digits, - and .")
    generation, uid = metadata.content.get("generation"), metadata.content.get("uid")
    return name, generation if isinstance(generation, int) else 0, uid if isinstance(uid, str) else ""


def _spec(spec: Section, limits: Limits, name: str, generation: int, uid: str) -> SourceLoadPolicy:
    policy = SourceLoadPolicy(
        name=name,
        generation=generation,
        uid=uid,
        mode=spec.choice("mode", Mode.WRITE),
        priority=spec.integer("priority", 0, -1_000_000, 1_000_000),
        server=_server(spec.section("server"), limits),
        prometheus=_prometheus(spec.section("prometheus"), limits),
        interval=spec.seconds("interval", 2.0, 1.0, 60.0),
        source_heartbeat=spec.seconds("sourceHeartbeat", 30.0, 5.0, 600.0),
        signals=_signals(spec),
        combine=spec.choice("combine", Combine.MAX),
        unmeasured=spec.choice("unmeasured", Unmeasured.LEAVE),
        stale_after=spec.seconds("staleAfter", 40.0, 2.0, 300.0),
        deadband=spec.number("deadband", 0.05, 0.0, 0.5),
        models=_models(spec.section("models")),
    )
    spec.finish()
    return policy


def _server(server: Section, limits: Limits) -> Server:
    address = server.required("address", "write host:port of the MX server, such as modelexpress-server.mx:8001")
    problem = endpoints.address_problem(address) if address else None
    if problem:
        server.findings.error(server.at("address"), f"{address!r} {problem}", "write host:port, such as mx-server:8001")
    elif address:
        _allowed(server, "address", address, limits)
    read = Server(
        address=address,
        tls=_tls(server),
        token_file=_file(server, "tokenFile", secret=True),
        max_writes_per_second=server.number("maxWritesPerSecond", 100.0, 0.1, 10_000.0),
        writer=server.choice("writer", Writer.GRPC),
        namespace=server.text("namespace"),
    )
    if read.writer is Writer.KUBERNETES and not read.namespace and not server.has("namespace"):
        fix = "name the namespace of the server's ModelMetadata objects (its MX_METADATA_NAMESPACE)"
        server.findings.error(server.at("namespace"), "is missing with writer: kubernetes", fix)
    if read.namespace and not _DNS_NAME.match(read.namespace):
        server.findings.error(server.at("namespace"), f"is {read.namespace!r}", "write a namespace's name")
    server.finish()
    return read


def _tls(server: Section) -> mx_wire.Tls | None:
    there = server.has("tls")
    tls = server.section("tls")
    ca, cert, key = (_file(tls, field) for field in ("caFile", "certFile", "keyFile"))
    _both(tls, cert, key)
    server_name = tls.text("serverName")
    tls.finish()
    if not there or (cert is None) != (key is None):
        return None
    return mx_wire.Tls(ca, cert, key, server_name)


def _prometheus(prometheus: Section, limits: Limits) -> Prometheus:
    url = prometheus.required("url", "write its base URL, such as http://prometheus.monitoring:9090").rstrip("/")
    _url(prometheus, "url", url, limits)
    read = Prometheus(
        url=url.removesuffix("/api/v1/query").removesuffix("/api/v1"),
        ca_file=_file(prometheus, "caFile"),
        cert_file=_file(prometheus, "certFile"),
        key_file=_file(prometheus, "keyFile"),
        bearer_token_file=_file(prometheus, "bearerTokenFile", secret=True),
        basic_auth_file=_file(prometheus, "basicAuthFile", secret=True),
        oauth2=_oauth2(prometheus, limits),
        headers=_headers(prometheus),
        timeout=prometheus.seconds("timeout", 5.0, 0.1, 60.0),
        partial_response=prometheus.choice("partialResponse", PartialResponse.REJECT),
        scrape_interval=prometheus.optional_seconds("scrapeInterval", 0.1, 300.0),
    )
    _both(prometheus, read.cert_file, read.key_file)
    ways = [name for name in ("bearerTokenFile", "basicAuthFile", "oauth2") if prometheus.has(name)]
    if len(ways) > 1:
        prometheus.findings.error(prometheus.path, f"has {' and '.join(ways)}", "keep one of them")
    prometheus.finish()
    return read


def _oauth2(prometheus: Section, limits: Limits) -> OAuth2 | None:
    if not prometheus.has("oauth2"):
        prometheus.take("oauth2")
        return None
    oauth2 = prometheus.section("oauth2")
    token_url = oauth2.required("tokenUrl", "write the token endpoint's URL")
    _url(oauth2, "tokenUrl", token_url, limits)
    read = OAuth2(
        token_url=token_url,
        client_id=oauth2.required("clientId", "write the client's id"),
        client_secret_file=_file(oauth2, "clientSecretFile", secret=True) or "",
        scopes=oauth2.texts("scopes"),
    )
    if not oauth2.has("clientSecretFile"):
        oauth2.findings.error(oauth2.at("clientSecretFile"), "is missing", "mount the secret and name its file")
    oauth2.finish()
    return read


def _headers(prometheus: Section) -> tuple[tuple[str, str], ...]:
    headers = prometheus.section("headers")
    read = {name: headers.text(name) for name in headers.content if isinstance(name, str)}
    for name, value in read.items():
        if not _HEADER.match(name) or (value is not None and not _HEADER_VALUE.match(value)):
            headers.findings.error(headers.at(name), "is not a header", "write one line of text under a header's name")
        elif name.lower() in _OWN_HEADERS:
            fix = "use bearerTokenFile, basicAuthFile or oauth2" if name.lower() == "authorization" else "remove it"
            headers.findings.error(headers.at(name), "is set by the operator", fix)
    headers.finish()
    return tuple((name, value) for name, value in read.items() if value is not None)


def _signals(spec: Section) -> tuple[Signal, ...]:
    entries = spec.items("signals")
    path = spec.at("signals")
    if not entries and not (spec.has("signals") and not isinstance(spec.content["signals"], list)):
        spec.findings.error(path, "is empty", "give at least one signal with a name and a query")
    if len(entries) > MAX_SIGNALS:
        spec.findings.error(path, f"has {len(entries)} entries", f"keep at most {MAX_SIGNALS}: each is a query a cycle")
    read = tuple(_signal(Section(entry, f"{path}[{index}]", spec.findings)) for index, entry in enumerate(entries))
    seen: set[str] = set()
    for index, signal in enumerate(read):
        if signal.name and signal.name in seen:
            spec.findings.error(f"{path}[{index}].name", f"{signal.name!r} is there twice", "give it another name")
        seen.add(signal.name)
    return read


def _signal(signal: Section) -> Signal:
    read = Signal(
        name=signal.required("name", "give the signal a short name, such as nic"),
        query=signal.required("query", "write a PromQL expression whose value is the load"),
        freshness_query=signal.text("freshnessQuery"),
        join_label=signal.text("joinLabel") or "k8s_pod_ip",
        device_label=signal.text("deviceLabel"),
        reduce=signal.choice("reduce", Reduce.NONE),
        scale=signal.number("scale", 1.0, 1e-12, 1e12),
    )
    if read.name and (len(read.name) > 63 or not _SIGNAL_NAME.match(read.name)):
        signal.findings.error(signal.at("name"), f"is {read.name!r}", "use lower-case letters, digits, - and _")
    _labels(signal, read)
    _queries(signal, read)
    signal.finish()
    return read


def _labels(signal: Section, read: Signal) -> None:
    if read.join_label not in labels.JOIN_LABELS:
        fix = f"use one of {', '.join(labels.JOIN_LABELS)}; rename another label in the query with label_replace"
        signal.findings.error(signal.at("joinLabel"), f"is {read.join_label!r}", fix)
    if read.device_label is None:
        return
    if not labels.LABEL_NAME.match(read.device_label):
        signal.findings.error(signal.at("deviceLabel"), f"{read.device_label!r} is no label", "write one, such as gpu")
    elif read.device_label == read.join_label:
        signal.findings.error(signal.at("deviceLabel"), "is the join label", "name the label with the GPU's index")


def _queries(signal: Section, read: Signal) -> None:
    broken = False
    for key, query in (("query", read.query), ("freshnessQuery", read.freshness_query)):
        problem = queries.unbalanced(query) if query else None
        if problem:
            signal.findings.error(signal.at(key), problem, "mend the PromQL expression")
            broken = True
    if not broken:
        _whole_queries(signal, read)


def _whole_queries(signal: Section, read: Signal) -> None:
    for key, query in (("query", read.query), ("freshnessQuery", read.freshness_query)):
        echo = queries.echoed(query) if query else None
        if echo:
            fix = "measure the source instead: a load that feeds on itself never comes down"
            signal.findings.error(signal.at(key), f"reads {echo}, which repeats the stored loads", fix)
    pushed = any(queries.reads_pushgateway(query) for query in (read.query, read.freshness_query) if query)
    if pushed and not queries.mentions(read.freshness_query or "", ["push_time_seconds"]):
        fix = "scrape the sources, or take the age from push_time_seconds in freshnessQuery"
        signal.findings.error(signal.at("query"), "reads a Pushgateway, which shows the dead as fresh", fix)
    if read.query and not signal.has("freshnessQuery") and not queries.is_bare_selector(read.query):
        fix = "give an expression for the samples' unix time, such as max by (pod_ip) (timestamp(...))"
        signal.findings.error(signal.at("freshnessQuery"), "is missing and query is more than a selector", fix)


def _models(models: Section) -> Models:
    include = models.texts("include")
    read = Models(include=include if models.has("include") else ("*",), exclude=models.texts("exclude"))
    if models.has("include") and not read.include:
        models.findings.error(
            models.at("include"), "is empty, so that no model is meant", 'leave it out for all, or "*"'
        )
    models.finish()
    return read


def _url(section: Section, key: str, url: str, limits: Limits) -> None:
    if not url:
        return
    problem = endpoints.url_problem(url)
    if problem:
        section.findings.error(section.at(key), f"{problem}", "write a URL, such as http://prometheus.monitoring:9090")
    else:
        _allowed(section, key, endpoints.host_port(url), limits)


def _allowed(section: Section, key: str, host_port: str, limits: Limits) -> None:
    if not limits.allows(host_port):
        fix = f"use one of the endpoints this installation allows ({', '.join(limits.endpoints)}), or have it added"
        section.findings.error(section.at(key), f"{host_port} is not allowed here", fix)


def _file(section: Section, key: str, secret: bool = False) -> str | None:
    path = section.text(key)
    problem = endpoints.file_problem(path, secret) if path else None
    if problem:
        section.findings.error(section.at(key), f"{path} {problem}", "name a file mounted for this purpose")
    return path


def _both(section: Section, cert: str | None, key: str | None) -> None:
    if (cert is None) != (key is None):
        missing = "keyFile" if key is None else "certFile"
        section.findings.error(section.at(missing), "is missing", "a client certificate needs certFile and keyFile")
