"""Kubernetes Events: one for each turn of a condition, so that `kubectl describe` tells the story.

Pure. The object they are about is cluster-scoped, so they live in the namespace `default`, as Kubernetes has it.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from mx_operator.kubernetes import conditions
from mx_operator.kubernetes.conditions import Condition, Truth
from mx_operator.kubernetes.times import show_micro_time, show_time
from mx_operator.policies import API_VERSION, KIND

NAMESPACE: Final = "default"
_LONGEST: Final = 1024  # characters of an Event's message


def worth_telling(turns: tuple[Condition, ...]) -> list[Condition]:
    """The turns that get an Event: Ready's own only where no other says why."""
    others = [turn for turn in turns if turn.kind != conditions.READY]
    return others or list(turns)


def event(turn: Condition, name: str, uid: str, instance: str, at: float) -> dict[str, Any]:
    """The Event for a turn.

    Args:
        turn: The condition as it is now.
        name: Of the policy.
        uid: Of the policy's resource.
        instance: What reports it: the pod's name.
        at: Unix seconds.
    """
    bad = turn.truth is not Truth.TRUE
    message = f"{turn.kind} is {turn.truth.value}: {turn.message or turn.reason}"
    return {
        "metadata": {"name": f"{name[:200]}.{uuid.uuid4().hex[:16]}", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": API_VERSION, "kind": KIND, "name": name, "uid": uid},
        "type": "Warning" if bad else "Normal",
        "reason": turn.reason if bad else f"{turn.kind}Again" if turn.reason == "True" else turn.reason,
        "message": message[:_LONGEST],
        "action": turn.kind,
        "reportingComponent": "mx-operator",
        "reportingInstance": instance[:128],
        "source": {"component": "mx-operator"},
        "firstTimestamp": show_time(at),
        "lastTimestamp": show_time(at),
        "eventTime": show_micro_time(at),
        "count": 1,
    }
