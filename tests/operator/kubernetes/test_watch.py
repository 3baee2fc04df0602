"""Watches that break in ways that a real API server cannot be made to show."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mx_lab.processes import wait_until
from mx_operator.kubernetes import Bridge, Rhythm
from tests.operator.kubernetes.clusters import Running
from tests.operator.kubernetes.fake_api import FakeApi, fake_api
from tests.operator.policies.cases import policy

RHYTHM = Rhythm(relist=300.0, look=0.1, pause=0.2, longest=0.5, timeout=3.0)


def _resource(name: str, uid: str = "", generation: int = 1, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": uid or f"uid-of-{name}", "generation": generation, "resourceVersion": "2"}
    return policy(lambda content: content.update(spec)) | {"metadata": metadata}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api() as served:
        yield served


@contextlib.contextmanager
def _running(api: FakeApi, rhythm: Rhythm = RHYTHM) -> Iterator[Running]:
    with Running(Bridge(access=api.access, rhythm=rhythm)) as operator:
        yield operator


def test_an_error_inside_a_watch_ends_kopf_and_nothing_else(api: FakeApi) -> None:
    """What etcd says when its leader changes: kopf takes it for fatal."""
    api.into_watch = [
        {"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcdserver: leader changed"}}
    ]
    api.poisoned = 1
    api.put(_resource("fleet"))
    with _running(api) as operator:
        operator.wait_for("fleet")
        wait_until(lambda: operator.bridge.health().restarts == 1, 30, "kopf's end")
        wait_until(lambda: api.watches >= 2, 30, "another watch")
        time.sleep(0.3)
        api.put(_resource("after"))
        operator.wait_for("fleet", "after")
        assert operator.longest_pause() < 5
        assert operator.bridge.health().watching


def test_a_policy_deleted_in_a_gap_that_kopf_hides(api: FakeApi) -> None:
    """After a 410 kopf lists again and tells nobody of what is gone; the next list or status does."""
    api.put(_resource("stays"))
    api.put(_resource("vanishes"))
    with _running(api) as operator:
        operator.wait_for("stays", "vanishes")
        wait_until(lambda: api.watches == 1, 30, "a watch")
        api.remove("vanishes", tell=False)
        api.send({"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}})
        wait_until(lambda: api.watches == 2, 30, "another watch")
        operator.loop.changes["vanishes"] = {"counts": {"listed": 1, "conflicting": 1}}  # something to tell
        operator.wait_for("stays")


def test_lists_alone_would_do(api: FakeApi) -> None:
    """A watch that is open and silent, for as long as the test runs."""
    api.put(_resource("edited"))
    with _running(api, Rhythm(relist=0.5, look=0.1, pause=0.2, longest=0.5)) as operator:
        operator.wait_for("edited")
        wait_until(lambda: api.watches == 1, 30, "a watch")
        api.put(_resource("edited", generation=2, priority=9), tell=False)
        wait_until(lambda: operator.policy("edited").priority == 9, 30, "the edit")
        api.put(_resource("new"), tell=False)
        operator.wait_for("edited", "new")
        api.remove("edited", tell=False)
        operator.wait_for("new")
        wait_until(lambda: api.watches > 1, 30, "another watch, since this one is no good")


def test_events_of_a_resource_that_cannot_be_read_harm_no_other(api: FakeApi) -> None:
    api.put(_resource("good"))
    with _running(api) as operator:
        operator.wait_for("good")
        wait_until(lambda: api.watches == 1, 30, "a watch")
        api.put({"metadata": {"name": "odd", "uid": "uid-of-odd", "generation": 1}, "spec": {"signals": "none"}})
        api.put(_resource("other"))
        operator.wait_for("good", "other")
        assert operator.bridge.health().refused == 1


@pytest.mark.parametrize("code", [422, 500])
def test_a_status_that_is_refused_holds_up_no_other_and_floods_nobody(api: FakeApi, code: int) -> None:
    api.patch_code["a-first"] = code
    api.put(_resource("a-first"))
    api.put(_resource("b-second"))
    with _running(api) as operator:
        operator.wait_for("a-first", "b-second")
        wait_until(lambda: "b-second" in api.patched, 30, "the other's status")
        lists = api.lists
        time.sleep(1.5)
        assert api.patched.count("a-first") <= 4
        assert api.patched.count("b-second") == 1
        assert api.lists - lists <= 4
        assert operator.names() == {"a-first", "b-second"}


def test_a_watch_that_is_ended_by_the_server_goes_on(api: FakeApi) -> None:
    api.put(_resource("fleet"))
    with _running(api) as operator:
        operator.wait_for("fleet")
        for number in range(3):
            wait_until(lambda: api.watches > number, 30, "a watch")  # noqa: B023 (used at once)
            api.send(None)
        wait_until(lambda: api.watches > 3, 30, "a watch")
        time.sleep(0.3)
        api.put(_resource("after"))
        operator.wait_for("fleet", "after")
        assert operator.bridge.health().restarts == 0
