"""The bridge on a real API server with RBAC on, as its own service account: policies in, status and Events out."""

from __future__ import annotations

import time

import pytest

from mx_lab.processes import wait_until
from mx_operator.core.reports import Check
from mx_operator.kubernetes import Rhythm
from mx_operator.kubernetes.api import Api, ApiError
from mx_operator.policies import Limits, Mode
from tests.operator.kubernetes.clusters import Cluster, rules, running

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")
QUICK = Rhythm(relist=300.0, look=0.1, pause=0.2, longest=1.0)
BAD = Check(False, "Timeout", "no answer within 5s")


def test_policies_come_change_and_go(cluster: Cluster) -> None:
    cluster.create("first")
    with running(cluster) as operator:
        operator.wait_for("first")
        cluster.create("second", mode="observe")
        operator.wait_for("first", "second")
        assert operator.policy("second").mode is Mode.OBSERVE
        cluster.edit("first", mode="observe")
        wait_until(lambda: operator.policy("first").mode is Mode.OBSERVE, 30, "the emergency switch")
        cluster.delete("second")
        operator.wait_for("first")
        assert operator.loop.applied == 4
    assert operator.longest_pause() < 5


def test_no_policy_at_all_is_told_too(cluster: Cluster) -> None:
    with running(cluster) as operator:
        wait_until(lambda: operator.loop.applied == 1, 30, "an empty set")
        assert operator.names() == set()
        assert operator.bridge.health().listed


def test_the_status_tells_how_it_is(cluster: Cluster) -> None:
    cluster.create("fleet", staleAfter="5s")
    with running(cluster):
        wait_until(lambda: cluster.condition("fleet") == ("True", "Writing"), 30, "Ready")
    status = cluster.get("fleet")["status"]
    assert (status["observedGeneration"], status["measured"], status["dataAge"]) == (1, "12/14", "6s")
    assert status["sources"]["unmatched"] == 2
    assert status["signals"] == [{"name": "exporter", "age": "6s"}]
    assert [warning[:15] for warning in status["warnings"]] == ["spec.staleAfter"]
    assert len(status["conditions"]) == 7


def test_every_field_of_the_status_is_declared(cluster: Cluster) -> None:
    """An undeclared one would be dropped without a word."""
    cluster.create("fleet", staleAfter="5s")
    with running(cluster) as operator:
        wait_until(lambda: cluster.condition("fleet") is not None, 30, "a status")
        sent = operator.bridge._boards[cluster.get("fleet")["metadata"]["uid"]]._document()
    kept = cluster.get("fleet")["status"]
    assert set(sent) == set(kept)
    assert set(sent["sources"]) == set(kept["sources"])
    assert set(sent["conditions"][0]) == set(kept["conditions"][0])


def test_a_turn_is_stored_and_told_once(cluster: Cluster) -> None:
    uid = cluster.create("turning")
    with running(cluster) as operator:
        wait_until(lambda: cluster.condition("turning") == ("True", "Writing"), 30, "Ready")
        operator.loop.changes["turning"] = {"prometheus": BAD}
        wait_until(lambda: cluster.condition("turning") == ("False", "Timeout"), 30, "not Ready")
        operator.loop.changes.clear()
        wait_until(lambda: cluster.condition("turning") == ("True", "Writing"), 30, "Ready again")
        wait_until(lambda: len(cluster.events("turning")) == 2, 30, "two Events")
    assert cluster.events("turning") == ["Warning Timeout", "Normal Ok"]
    about = cluster.api.request("GET", "/api/v1/namespaces/default/events")["items"]
    told = next(event for event in about if event["involvedObject"]["name"] == "turning" and event["type"] == "Warning")
    assert told["involvedObject"]["uid"] == uid
    assert told["message"] == "PrometheusReachable is False: no answer within 5s"
    assert told["reportingInstance"] == "mx-operator-0"


def test_a_restart_tells_nothing_new(cluster: Cluster) -> None:
    cluster.create("steady")
    with running(cluster):
        wait_until(lambda: cluster.condition("steady") is not None, 30, "a status")
    before = cluster.get("steady")["status"]["conditions"]
    time.sleep(1.1)  # the times in the status have whole seconds
    mark = cluster.mark()
    with running(cluster):
        wait_until(
            lambda: ("patch", "sourceloadpolicies/status", "steady", 200) in cluster.requests(mark), 30, "a patch"
        )
    assert cluster.get("steady")["status"]["conditions"] == before
    assert cluster.events("steady") == []


def test_what_is_known_of_a_server_survives_a_restart(cluster: Cluster) -> None:
    cluster.create("old-server")
    with running(cluster) as operator:
        operator.wait_for("old-server")
        operator.loop.changes["old-server"] = {"load_supported": Check(False, "FieldDropped")}
        wait_until(lambda: cluster.condition("old-server") == ("False", "FieldDropped"), 30, "not supported")
        assert operator.loop.unsupported == frozenset()
    with running(cluster) as operator:
        operator.wait_for("old-server")
        assert operator.loop.unsupported == {"old-server"}


def test_a_policy_the_schema_cannot_refuse_says_why_and_harms_no_other(cluster: Cluster) -> None:
    cluster.create("good")
    cluster.create("echo", signals=[{"name": "x", "query": '{__name__=~"mx_p2p.*"}'}])
    with running(cluster) as operator:
        operator.wait_for("good")
        wait_until(lambda: cluster.condition("echo") == ("False", "InvalidSpec"), 30, "the refusal")
        (entry,) = cluster.get("echo")["status"]["conditions"]
        assert entry["message"].startswith("spec.signals[0].query: reads mx_p2p_source_load")
        cluster.edit("echo", signals=[{"name": "x", "query": "mx_source_load"}])
        operator.wait_for("good", "echo")
        wait_until(lambda: cluster.condition("echo") == ("True", "Writing"), 30, "the mended policy")
    assert operator.bridge.health().refused == 0


def test_an_edit_that_cannot_be_used_stops_the_policy(cluster: Cluster) -> None:
    cluster.create("fleet")
    with running(cluster) as operator:
        operator.wait_for("fleet")
        cluster.edit("fleet", server={"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"})
        operator.wait_for()
        wait_until(lambda: cluster.condition("fleet") == ("False", "InvalidSpec"), 30, "the refusal")


def test_an_installation_limits_the_endpoints(cluster: Cluster) -> None:
    cluster.create("fleet")
    with running(cluster, limits=Limits(("*.elsewhere:*",))) as operator:
        wait_until(lambda: cluster.condition("fleet") == ("False", "InvalidSpec"), 30, "the refusal")
        assert operator.names() == set()


def test_a_policy_that_is_replaced_under_its_name_is_another_one(cluster: Cluster) -> None:
    old = cluster.create("fleet")
    with running(cluster) as operator:
        operator.wait_for("fleet")
        cluster.delete("fleet")
        new = cluster.create("fleet", priority=7)
        wait_until(lambda: [each.uid for each in operator.loop.policies] == [new], 30, "the new one runs")
        assert operator.policy("fleet").priority == 7
        wait_until(lambda: cluster.condition("fleet") is not None, 30, "its status")
    assert old != new


def test_nothing_is_left_on_the_objects_so_deleting_needs_no_operator(cluster: Cluster) -> None:
    cluster.create("fleet")
    with running(cluster) as operator:
        operator.wait_for("fleet")
        wait_until(lambda: cluster.condition("fleet") is not None, 30, "a status")
        metadata = cluster.get("fleet")["metadata"]
        assert "finalizers" not in metadata
        assert "annotations" not in metadata
    cluster.delete("fleet")
    assert not cluster.exists("fleet")


def test_fifty_policies_cost_one_patch_each_and_every_request_is_allowed(cluster: Cluster) -> None:
    names = [f"fleet-{number:02}" for number in range(50)]
    for name in names:
        cluster.create(name)
    mark = cluster.mark()
    started = time.monotonic()
    with running(cluster, rhythm=Rhythm()) as operator:
        operator.wait_for(*names, timeout=20)
        wait_until(lambda: all(cluster.condition(name) for name in names), 30, "every status")
        time.sleep(1)
    assert time.monotonic() - started < 60
    asked = cluster.requests(mark)
    patched = [name for verb, resource, name, _ in asked if (verb, resource) == ("patch", "sourceloadpolicies/status")]
    assert sorted(patched) == names
    assert {code for *_, code in asked} == {200}
    assert operator.loop.applied <= 2
    assert operator.longest_pause() < 5


def test_every_rule_of_the_chart_is_used_and_nothing_else_is_asked(cluster: Cluster) -> None:
    mark = cluster.mark()
    cluster.create("all-rules")
    with running(cluster) as operator:
        wait_until(lambda: cluster.condition("all-rules") is not None, 30, "a status")
        operator.loop.changes["all-rules"] = {"server": BAD}
        wait_until(lambda: bool(cluster.events("all-rules")), 30, "an Event")
        cluster.delete("all-rules")
        operator.wait_for()
    granted = {
        (verb, resource)
        for rule in rules("policies", "events")
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = {(verb, resource) for verb, resource, *_ in cluster.requests(mark) if not resource.startswith("/")}
    assert asked == granted
    assert all(code < 400 for *_, code in cluster.requests(mark))


def test_a_stray_peering_object_freezes_nobody(cluster: Cluster) -> None:
    names = {"kind": "ClusterKopfPeering", "plural": "clusterkopfpeerings", "singular": "clusterkopfpeering"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterkopfpeerings.kopf.dev"},
        "spec": {
            "group": "kopf.dev",
            "scope": "Cluster",
            "names": names,
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    cluster.api.apply([crd])
    peering = "/apis/kopf.dev/v1/clusterkopfpeerings"
    stray = {"priority": 100, "lifetime": 3600, "lastseen": "2100-01-01T00:00:00+00:00"}
    body = {"apiVersion": "kopf.dev/v1", "kind": "ClusterKopfPeering", "metadata": {"name": "default"}}

    def created() -> bool:
        try:
            cluster.api.request("POST", peering, body | {"status": {"somebody": stray}})
        except OSError:
            return False
        return True

    wait_until(created, 30, "the peering object")
    try:
        cluster.create("fleet")
        with running(cluster) as operator:
            operator.wait_for("fleet")
            cluster.create("other")
            operator.wait_for("fleet", "other")
    finally:
        cluster.api.kubectl("delete", "crd", "clusterkopfpeerings.kopf.dev", "--timeout=30s")


async def test_the_status_of_a_deleted_policy_is_not_written_to_its_namesake(cluster: Cluster) -> None:
    uid = cluster.create("fleet")
    async with Api(cluster.access) as api:
        with pytest.raises(ApiError) as caught:
            await api.store_status("fleet", "of-the-deleted-one", {"measured": "1/1"})
        assert caught.value.code == 422
        assert "status" not in cluster.get("fleet")
        await api.store_status("fleet", uid, {"measured": "1/1"})
        assert cluster.get("fleet")["status"] == {"measured": "1/1"}
