"""The validator: everything wrong is found at once, and said with the field and the fix."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_operator.policies import Limits, PolicyError, Severity, SourceLoadPolicy, durations, read_policy
from tests.operator.policies.cases import BAD, FINE, GOOD, Bad, Spec, all_of, policy, put


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_a_bad_field_is_named_with_its_fix(case: Bad) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(policy(case.change))
    remarks = {finding.field: str(finding) for finding in caught.value.findings}
    assert list(remarks) == [f"spec.{case.field}"]
    assert case.says in remarks[f"spec.{case.field}"]
    assert "; " in remarks[f"spec.{case.field}"]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FINE)
def test_a_good_policy_is_read(name: str) -> None:
    read, _ = read_policy(policy(FINE[name]))
    assert isinstance(read, SourceLoadPolicy)


def test_every_error_is_found_in_one_go() -> None:
    separate = [
        case
        for case in BAD
        if case.name
        in ("address with a scheme", "URL with a query", "an unknown mode", "a duration in days", "a scale in words")
    ]
    with pytest.raises(PolicyError) as caught:
        read_policy(policy(all_of(*(case.change for case in separate))))
    assert {finding.field for finding in caught.value.findings} == {f"spec.{case.field}" for case in separate}


def test_everything_given_is_everything_read() -> None:
    read, remarks = read_policy(policy(FINE["everything"]))
    assert not [remark for remark in remarks if remark.severity is Severity.ERROR]
    assert (read.mode.value, read.priority, read.interval, read.source_heartbeat) == ("observe", -5, 1.5, 60.0)
    assert (read.combine.value, read.unmeasured.value, read.stale_after, read.deadband) == (
        "replace",
        "neutral",
        90.0,
        0.0,
    )
    assert (read.models.include, read.models.exclude) == (("meta/*",), ("*-draft",))
    server, prometheus = read.server, read.prometheus
    assert (server.address, server.writer.value, server.namespace) == ("[::1]:8001", "kubernetes", "mx")
    assert server.tls is not None
    assert (server.tls.ca_file, server.tls.cert_file, server.tls.server_name) == ("/c/ca", "/c/crt", "mx")
    assert (prometheus.url, prometheus.timeout) == ("https://mimir.example:443/prometheus", 3.0)
    assert prometheus.headers == (("X-Scope-OrgID", "team"),)
    assert prometheus.oauth2 is not None
    assert prometheus.oauth2.scopes == ("read",)
    assert [(signal.join.value, signal.companion_label) for signal in read.signals] == [
        ("pod name", "namespace"),
        ("instance", None),
        ("pod uid", None),
    ]


@pytest.mark.parametrize(
    ("resource", "field"),
    [
        (None, "apiVersion"),
        ([], ""),
        ({**GOOD, "kind": "Policy"}, "kind"),
        ({**GOOD, "apiVersion": "sourceload.dev/v1"}, "apiVersion"),
        ({**GOOD, "metadata": {}}, "metadata.name"),
        ({**GOOD, "metadata": {"name": "Fleet One"}}, "metadata.name"),
        ({**GOOD, "spec": None}, "spec"),
        ({**GOOD, "extra": 1}, "extra"),
    ],
)
def test_what_is_no_policy_at_all(resource: object, field: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(resource)
    assert field in [finding.field for finding in caught.value.findings]


def test_what_the_api_server_adds_is_no_error() -> None:
    resource = copy.deepcopy(GOOD) | {"status": {"anything": 1}}
    resource["metadata"] |= {"uid": "u-1", "generation": 3, "managedFields": [], "resourceVersion": "12"}
    read, _ = read_policy(resource)
    assert (read.name, read.uid, read.generation) == ("fleet", "u-1", 3)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put("server.address", "mx.elsewhere:8001"), "spec.server.address"),
        (put("prometheus.url", "https://elsewhere"), "spec.prometheus.url"),
        (
            put("prometheus.oauth2", {"tokenUrl": "https://evil/t", "clientId": "i", "clientSecretFile": "/s"}),
            "spec.prometheus.oauth2.tokenUrl",
        ),
    ],
)
def test_an_installation_can_say_which_endpoints_policies_may_name(
    change: Callable[[Spec], object], field: str
) -> None:
    limits = Limits(("modelexpress-server.*:8001", "prometheus.monitoring:9090"))
    read_policy(policy(), limits)
    with pytest.raises(PolicyError) as caught:
        read_policy(policy(change), limits)
    assert [finding.field for finding in caught.value.findings] == [field]
    assert "is not allowed here" in str(caught.value)


WARNED = {
    "staleAfter below two scrapes": (put("staleAfter", "5s"), "spec.staleAfter", "at least 32s"),
    "staleAfter below two slow scrapes": (put("prometheus.scrapeInterval", "30s"), "spec.staleAfter", "at least 1m2s"),
    "a timeout of many cycles": (put("prometheus.timeout", "30s"), "spec.prometheus.timeout", "at most 20s"),
    "a token in the clear": (put("prometheus.bearerTokenFile", "/t"), "spec.prometheus.url", "https://"),
    "an aggregation that drops the join label": (
        all_of(
            put("signals.0.query", "max by (pod) (x)"),
            put("signals.0.freshnessQuery", "max by (pod) (timestamp(x))"),
        ),
        "spec.signals[0].joinLabel",
        "k8s_pod_ip",
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_setting_that_will_disappoint_is_warned_of(name: str) -> None:
    change, field, says = WARNED[name]
    _, remarks = read_policy(policy(change))
    assert [remark.field for remark in remarks] == [field]
    assert says in str(remarks[0])
    assert remarks[0].severity is Severity.WARNING


def test_the_defaults_deserve_no_warning() -> None:
    assert read_policy(policy())[1] == ()


def test_a_fast_scrape_makes_a_short_stale_after_right() -> None:
    change = all_of(put("staleAfter", "12s"), put("prometheus.scrapeInterval", "5s"))
    assert read_policy(policy(change))[1] == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["mode", "priority", "server", "prometheus", "interval", "signals", "models", "deadband", "staleAfter"]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), JSON)
def test_no_input_does_anything_but_being_read_or_refused(changes: dict[str, object], metadata: object) -> None:
    resource = policy(lambda spec: spec.update(changes)) | {"metadata": metadata}
    read: SourceLoadPolicy | None = None
    refused: tuple[object, ...] = ()
    try:
        read, _ = read_policy(resource)
    except PolicyError as error:
        refused = error.findings
    assert (read is not None and read.signals) or refused


@settings(deadline=None)
@given(st.integers(1, 10_000_000))
def test_a_duration_is_shown_as_it_is_read(milliseconds: int) -> None:
    assert durations.parse(durations.show(milliseconds / 1000)) == pytest.approx(milliseconds / 1000)
