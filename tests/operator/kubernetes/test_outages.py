"""What the API server can do to an operator: stop, restart, hang, cut, forget, forbid. The load loop never notices."""

from __future__ import annotations

import logging
import time

import pytest

from mx_lab.processes import wait_until
from mx_operator.kubernetes import Rhythm
from mx_operator.policies import Mode
from tests.conftest import LONG
from tests.operator.kubernetes.clusters import Cluster, Running, running
from tests.operator.kubernetes.proxy import Mode as ProxyMode
from tests.operator.kubernetes.proxy import proxy

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")
#: Lists every second where production waits five minutes; all else as quick as a test wants it.
RELISTING = Rhythm(relist=1.0, look=0.1, pause=0.2, longest=1.0, timeout=1.5)


def _still_runs(operator: Running, *names: str) -> None:
    """The policies run on, and the load loop has ticked all the time."""
    assert operator.names() == set(names)
    assert time.monotonic() - operator.loop.ticks[-1] < 2
    assert operator.longest_pause() < 5


@pytest.mark.timeout(400 if LONG else 120)
def test_an_api_server_that_stops_and_comes_back(cluster: Cluster) -> None:
    """Minutes of it in the long run."""
    cluster.create("fleet")
    with running(cluster, rhythm=RELISTING) as operator:
        operator.wait_for_watch("fleet")
        cluster.api.stop_server()
        try:
            time.sleep(180 if LONG else 3)
            _still_runs(operator, "fleet")
            assert operator.bridge.health().error is not None
        finally:
            cluster.api.start_server()
        cluster.create("after")
        operator.wait_for("fleet", "after", timeout=60)
        cluster.edit("fleet", mode="observe")
        wait_until(lambda: operator.policy("fleet").mode is Mode.OBSERVE, 60, "an edit after the outage")
        wait_until(lambda: cluster.condition("after") == ("True", "Writing"), 30, "a status after the outage")
        _still_runs(operator, "fleet", "after")


def test_an_operator_that_starts_while_the_api_server_is_away(cluster: Cluster) -> None:
    cluster.create("fleet")
    cluster.api.stop_server()
    try:
        with running(cluster) as operator:
            time.sleep(2)
            assert operator.loop.applied == 0
            cluster.api.start_server()
            operator.wait_for("fleet", timeout=60)
    finally:
        if not cluster.api.ready():
            cluster.api.start_server()


def test_connections_that_are_cut(cluster: Cluster) -> None:
    cluster.create("fleet")
    with proxy(cluster.api.port) as way, running(cluster, way) as operator:
        operator.wait_for_watch("fleet")
        for number in range(3):
            assert way.cut() > 0
            cluster.create(f"new-{number}")
            operator.wait_for("fleet", *(f"new-{done}" for done in range(number + 1)))
        assert operator.bridge.health().watching
        _still_runs(operator, "fleet", "new-0", "new-1", "new-2")


def test_an_api_server_that_takes_connections_and_never_answers(cluster: Cluster) -> None:
    cluster.create("fleet")
    with proxy(cluster.api.port) as way, running(cluster, way, RELISTING) as operator:
        operator.wait_for_watch("fleet")
        way.mode = ProxyMode.HANG
        way.cut()
        cluster.edit("fleet", mode="observe")
        time.sleep(2.5)
        _still_runs(operator, "fleet")
        assert operator.policy("fleet").mode is Mode.WRITE
        assert operator.bridge.health().error is not None
        way.mode = ProxyMode.PASS
        wait_until(lambda: operator.policy("fleet").mode is Mode.OBSERVE, 60, "the edit once it answers again")
        _still_runs(operator, "fleet")


def test_a_watch_that_goes_silent_is_made_up_for_by_lists(cluster: Cluster) -> None:
    """The connections stay open and nothing comes: the worst a network can do to a watch."""
    cluster.create("edited", mode="write")
    cluster.create("deleted")
    with proxy(cluster.api.port) as way, running(cluster, way, RELISTING) as operator:
        operator.wait_for_watch("edited", "deleted")
        assert way.silence() > 0
        cluster.edit("edited", mode="observe")
        cluster.delete("deleted")
        operator.wait_for("edited", timeout=30)
        wait_until(lambda: operator.policy("edited").mode is Mode.OBSERVE, 30, "the edit by a list")
        _still_runs(operator, "edited")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_silent_watch_is_given_up_and_made_anew(cluster: Cluster) -> None:
    with proxy(cluster.api.port) as way, running(cluster, way) as operator:
        wait_until(lambda: operator.loop.applied == 1, 30, "an empty set")
        time.sleep(2)
        way.silence()
        silent = time.monotonic()
        cluster.create("fleet")
        operator.wait_for("fleet", timeout=90)
        assert time.monotonic() - silent < 80


def test_a_deletion_in_a_gap_whose_history_is_gone(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """A 410 after compaction: nobody tells the watch what vanished, so the lists have to.

    No list comes by itself here: one that noticed the gap first would restart kopf, whose watch would then begin at
    the present and never be told 410.
    """
    caplog.set_level(logging.DEBUG, "kopf._cogs.clients.watching")
    cluster.create("stays")
    cluster.create("vanishes")
    with proxy(cluster.api.port) as way, running(cluster, way) as operator:
        operator.wait_for_watch("stays", "vanishes")
        way.mode = ProxyMode.HOLD
        way.cut()
        cluster.delete("vanishes")
        cluster.create("another")
        cluster.api.compact()
        way.mode = ProxyMode.PASS
        told = "Restarting the watch-stream for sourceloadpolicies"  # what kopf says of a 410
        wait_until(lambda: told in caplog.text, 60, "a watch that was told 410")
        operator.wait_for("stays", "vanishes", "another", timeout=60)
        operator.list_now()
        operator.wait_for("stays", "another", timeout=30)
        cluster.create("later")
        operator.wait_for("stays", "another", "later", timeout=30)
        _still_runs(operator, "stays", "another", "later")


def test_a_deleted_policy_that_nobody_told_of_is_found_by_its_own_status(cluster: Cluster) -> None:
    """Even without a list: the patch of its status is answered with 404."""
    uid = cluster.create("vanishes")
    with proxy(cluster.api.port) as way, running(cluster, way) as operator:
        operator.wait_for_watch("vanishes")
        wait_until(lambda: operator.told("vanishes"), 30, "a status, and no patch under way or due")
        way.silence()
        cluster.delete("vanishes")
        time.sleep(0.5)
        assert operator.names() == {"vanishes"}
        operator.loop.changes["vanishes"] = {"counts": {"listed": 1, "conflicting": 1}}  # something to tell
        operator.wait_for(timeout=30)
        assert uid not in operator.bridge._boards


def test_rights_that_are_taken_away_and_given_back(cluster: Cluster) -> None:
    cluster.create("fleet")
    with proxy(cluster.api.port) as way, running(cluster, way, RELISTING) as operator:
        operator.wait_for_watch("fleet")
        mark = cluster.mark()
        cluster.revoke()
        try:
            way.cut()
            wait_until(lambda: 403 in [code for *_, code in cluster.requests(mark)], 30, "a refusal")
            time.sleep(1.5)
            _still_runs(operator, "fleet")
            assert "403" in (operator.bridge.health().error or "")
        finally:
            cluster.grant()
        cluster.create("after")
        operator.wait_for("fleet", "after", timeout=30)
        wait_until(lambda: operator.bridge.health().error is None, 30, "no error any more")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_watch_that_ended_for_want_of_rights_is_started_again(cluster: Cluster) -> None:
    with proxy(cluster.api.port) as way, running(cluster, way) as operator:
        wait_until(lambda: operator.loop.applied == 1, 30, "an empty set")
        cluster.revoke()
        try:
            way.cut()
            wait_until(lambda: operator.bridge.health().restarts > 0, 120, "kopf to give up")
        finally:
            cluster.grant()
        cluster.create("fleet")
        operator.wait_for("fleet", timeout=90)


def test_a_kind_that_is_created_after_the_start(cluster: Cluster) -> None:
    cluster.remove_crd()
    try:
        with running(cluster) as operator:
            time.sleep(1)
            assert operator.names() == set()
            assert "404" in (operator.bridge.health().error or "")
            cluster.install_crd()
            cluster.create("fleet")
            operator.wait_for("fleet", timeout=30)
            wait_until(lambda: cluster.condition("fleet") == ("True", "Writing"), 30, "its status")
    finally:
        cluster.install_crd()


def test_a_kind_that_is_removed_takes_its_policies_along(cluster: Cluster) -> None:
    cluster.create("fleet")
    try:
        with running(cluster, rhythm=RELISTING) as operator:
            operator.wait_for_watch("fleet")
            cluster.remove_crd()
            operator.wait_for(timeout=30)
            cluster.install_crd()
            cluster.create("again")
            operator.wait_for("again", timeout=60)
    finally:
        cluster.install_crd()
