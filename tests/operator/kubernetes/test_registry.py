"""The registry: whatever order news comes in, it ends up with what is there, and nothing deleted comes back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_operator.kubernetes.registry import Registry
from mx_operator.policies import Limits
from tests.operator.policies.cases import policy, put


def resource(name: str, uid: str, generation: int = 1, **more: Any) -> dict[str, Any]:
    made = policy(put("priority", generation))
    # The tests' uids count up, like etcd's revisions.
    version = uid.strip("u") + f"{generation:03}"
    metadata = {"name": name, "uid": uid, "generation": generation, "resourceVersion": version}
    return made | {"metadata": metadata} | more


def registry() -> Registry:
    return Registry(Limits())


def names(of: Registry) -> list[tuple[str, str, int]]:
    return [(known.name, known.uid, known.generation) for known in of.known()]


def test_a_status_that_changed_is_no_change() -> None:
    book = registry()
    assert book.saw(resource("a", "u1"))
    assert not book.saw(resource("a", "u1", status={"conditions": []}))
    assert book.saw(resource("a", "u1", 2))


def test_an_older_event_does_not_undo_a_newer_one() -> None:
    book = registry()
    book.saw(resource("a", "u1", 3))
    assert not book.saw(resource("a", "u1", 2))
    assert names(book) == [("a", "u1", 3)]


def test_a_deleted_resource_does_not_come_back_by_a_late_event() -> None:
    book = registry()
    book.saw(resource("a", "u1"))
    assert book.gone("u1")
    assert not book.saw(resource("a", "u1", 2))
    assert book.saw(resource("a", "u2"))
    assert not book.gone("u1")
    assert names(book) == [("a", "u2", 1)]


def test_a_late_event_of_an_earlier_namesake_changes_nothing() -> None:
    book = registry()
    book.listed([resource("a", "u2")], book.mark())
    assert not book.saw(resource("a", "u1", 5))
    assert names(book) == [("a", "u2", 1)]


def test_a_list_brings_back_what_was_taken_for_gone() -> None:
    book = registry()
    book.saw(resource("a", "u1"))
    sent_before = book.mark()
    book.gone("u1")
    assert not book.listed([resource("a", "u1")], sent_before)
    assert book.listed([resource("a", "u1")], book.mark())
    assert names(book) == [("a", "u1", 1)]


def test_a_list_finds_what_vanished_unseen() -> None:
    book = registry()
    book.saw(resource("a", "u1"))
    book.saw(resource("b", "u2"))
    assert book.listed([resource("b", "u2")], book.mark())
    assert names(book) == [("b", "u2", 1)]


def test_a_list_that_was_sent_before_a_creation_does_not_remove_it() -> None:
    book = registry()
    sent = book.mark()
    book.saw(resource("new", "u9"))
    assert not book.listed([], sent)
    assert names(book) == [("new", "u9", 1)]


def test_a_spec_that_cannot_be_used_does_not_run_and_harms_no_other() -> None:
    book = registry()
    book.saw(resource("a", "u1"))
    book.saw({**resource("b", "u2"), "spec": {"mode": "x"}})
    assert [each.name for each in book.policies()] == ["a"]
    known = book.get("b")
    assert known is not None
    assert "spec.mode" in [finding.field for finding in known.errors]
    book.saw({**resource("a", "u1", 2), "spec": {}})
    assert book.policies() == []


def test_a_server_known_not_to_store_loads_is_remembered_by_the_status() -> None:
    false = {
        "type": "LoadSupported",
        "status": "False",
        "reason": "Dropped",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    book = registry()
    book.saw(resource("a", "u1", status={"conditions": [false, {"type": "Ready"}, 7]}))
    book.saw(resource("b", "u2", status={"conditions": [false | {"status": "True"}]}))
    assert book.unsupported() == {"a"}


@pytest.mark.parametrize("nonsense", [{}, {"metadata": None}, {"metadata": {"name": "a"}, "spec": 3, "status": 4}])
def test_nonsense_is_kept_apart(nonsense: dict[str, Any]) -> None:
    book = registry()
    book.saw(resource("b", "u2"))
    book.saw(nonsense)
    assert [each.name for each in book.policies()] == ["b"]


#: A history: create, edit or delete one of three names.
STEPS = st.lists(st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from("abc")), max_size=12)


def _history(steps: list[tuple[str, str]]) -> tuple[list[tuple[str, dict[str, Any]]], list[list[dict[str, Any]]]]:
    """The events of a history, and what a list would show before each and after the last."""
    there: dict[str, dict[str, Any]] = {}
    events: list[tuple[str, dict[str, Any]]] = []
    lists: list[list[dict[str, Any]]] = [[]]
    uids = 0
    for action, name in steps:
        if action == "delete" and name not in there:
            continue
        if action == "delete":
            events.append(("DELETED", there.pop(name)))
        elif name in there:
            old = there[name]["metadata"]
            there[name] = resource(name, old["uid"], old["generation"] + 1)
            events.append(("MODIFIED", there[name]))
        else:
            uids += 1
            there[name] = resource(name, f"u{uids}")
            events.append(("ADDED", there[name]))
        lists.append(copy.deepcopy(list(there.values())))
    return events, lists


@settings(deadline=None)
@given(STEPS, st.data())
def test_a_list_heals_whatever_events_were_lost_doubled_or_late(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    events, lists = _history(steps)
    delivered = data.draw(st.lists(st.sampled_from(events), max_size=20)) if events else []
    book = registry()
    deleted: set[str] = set()
    for kind, seen in delivered:
        if kind == "DELETED":
            book.gone(seen["metadata"]["uid"])
            deleted.add(seen["metadata"]["uid"])
        else:
            book.saw(seen)
        assert not deleted & {known.uid for known in book.known()}
    book.listed(lists[-1], book.mark())
    truth = sorted(
        (made["metadata"]["name"], made["metadata"]["uid"], made["metadata"]["generation"]) for made in lists[-1]
    )
    assert names(book) == truth


@settings(deadline=None)
@given(STEPS, st.data())
def test_events_in_order_with_late_lists_between_end_at_the_truth(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Each list is a true snapshot, taken when it was sent, that arrives some events later."""
    events, lists = _history(steps)
    book = registry()
    pending: list[tuple[int, int, list[dict[str, Any]]]] = []
    for index, snapshot in enumerate(lists):
        if data.draw(st.booleans()):
            pending.append((index + data.draw(st.integers(0, 3)), book.mark(), snapshot))
        if index < len(events):
            kind, seen = events[index]
            book.gone(seen["metadata"]["uid"]) if kind == "DELETED" else book.saw(seen)
        for late in [entry for entry in pending if entry[0] <= index]:
            pending.remove(late)
            book.listed(late[2], late[1])
    truth = sorted((made["metadata"]["name"], made["metadata"]["uid"]) for made in lists[-1])
    assert [(name, uid) for name, uid, _ in names(book)] == truth
