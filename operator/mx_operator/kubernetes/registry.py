"""Which policies there are: folds lists and watch events, whatever order they come in, into one set.

The bridge feeds it; no I/O here. A watch can go silent, repeat itself, or miss a deletion for good (after a 410 kopf
tells nobody what vanished in the gap), so lists are the truth and events only make it fresh sooner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mx_operator.kubernetes import conditions
from mx_operator.policies import Finding, Limits, PolicyError, SourceLoadPolicy, read_policy

#: How many deleted resources are remembered, against events that come late.
_MAX_TOMBSTONES: Final = 10_000

Resource = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """One resource as last seen.

    Attributes:
        policy: None where the spec cannot be used; `errors` says why then.
        warnings: Advice about a usable spec.
        shown: The conditions stored in its status when this process first saw it.
        born: When it was created, to tell it from an earlier one of its name.
        seen: When it was last seen, on the registry's own counter.
    """

    name: str
    uid: str
    generation: int
    policy: SourceLoadPolicy | None
    errors: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    shown: conditions.Conditions
    born: tuple[str, int] = ("", 0)
    seen: int = 0


class Registry:
    """The resources that exist, as far as this process has been told."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[str, Known] = {}  # by name
        self._gone: dict[str, int] = {}  # uid to when that was seen, oldest first
        self._count = 0

    def known(self) -> list[Known]:
        """Every resource, by name."""
        return [self._known[name] for name in sorted(self._known)]

    def get(self, name: str) -> Known | None:
        """The resource of this name."""
        return self._known.get(name)

    def policies(self) -> list[SourceLoadPolicy]:
        """Those that can be used, by name."""
        return [known.policy for known in self.known() if known.policy is not None]

    def unsupported(self) -> frozenset[str]:
        """Names of those whose stored status says that their server does not keep what it is sent."""
        return frozenset(known.name for known in self._known.values() if known.shown.is_false("LoadSupported"))

    def mark(self) -> int:
        """A moment to date a list by: take it before sending the request."""
        self._count += 1
        return self._count

    def saw(self, resource: Resource) -> bool:
        """A resource was seen to exist.

        Returns:
            Whether that changed which policies there are, or what one of them asks for.
        """
        name, uid, generation = identify(resource)
        old = self._known.get(name)
        if uid in self._gone or (old and _is_late(resource, old)):
            return False
        seen = self.mark()
        if old and old.uid == uid and old.generation == generation:
            self._known[name] = dataclasses.replace(old, seen=seen)  # only its status has changed, by us
            return False
        if old and old.uid != uid:
            self._bury(old.uid)
        self._known[name] = self._read(resource, name, uid, generation, seen, old)
        return True

    def gone(self, uid: str) -> bool:
        """A resource was seen not to exist any more; whether it was known."""
        self._bury(uid)
        for name, known in self._known.items():
            if known.uid == uid:
                del self._known[name]
                return True
        return False

    def listed(self, resources: Iterable[Resource], since: int) -> bool:
        """A whole list, of a request sent at the moment `since`; whether it changed anything."""
        there = list(resources)
        uids = {identify(resource)[1] for resource in there}
        self._gone = {uid: when for uid, when in self._gone.items() if uid not in uids or when > since}
        changed = [self.saw(resource) for resource in there]
        vanished = [known.uid for known in self._known.values() if known.uid not in uids and known.seen <= since]
        changed += [self.gone(uid) for uid in vanished]
        return any(changed)

    def _read(self, resource: Resource, name: str, uid: str, generation: int, seen: int, old: Known | None) -> Known:
        shown = old.shown if old and old.uid == uid else conditions.stored(resource.get("status"))
        try:
            policy, warnings = read_policy(resource, self._limits)
        except PolicyError as error:
            return Known(name, uid, generation, None, error.findings, (), shown, _born(resource), seen)
        return Known(name, uid, generation, policy, (), warnings, shown, _born(resource), seen)

    def _bury(self, uid: str) -> None:
        self._gone[uid] = self.mark()
        while len(self._gone) > _MAX_TOMBSTONES:
            del self._gone[next(iter(self._gone))]


def identify(resource: Resource) -> tuple[str, str, int]:
    """Name, uid and generation of a resource; empty and 0 where it has none."""
    metadata = resource.get("metadata") or {}
    return str(metadata.get("name", "")), str(metadata.get("uid", "")), int(metadata.get("generation") or 0)


def _is_late(resource: Resource, old: Known) -> bool:
    """Whether an event tells of an earlier state of a resource, or of an earlier resource of its name."""
    _, uid, generation = identify(resource)
    return generation < old.generation if uid == old.uid else _born(resource) < old.born


def _born(resource: Resource) -> tuple[str, int]:
    """When a resource was created: to the second, and within it by the order of etcd's revisions."""
    metadata = resource.get("metadata") or {}
    version = str(metadata.get("resourceVersion", ""))
    return str(metadata.get("creationTimestamp", "")), int(version) if version.isdigit() else 0
