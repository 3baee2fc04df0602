"""`topology_aware`: nearest tier first, and inside a tier any other policy.

Tiers are the released client's: levels from broad to narrow (region, zone, datacenter, block, rack, host, numa, or
`MX_P2P_TOPOLOGY_LEVELS`), and two nodes are as near as the prefix of levels on which they agree is long.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from mx_selector import settings
from mx_selector.model import CandidateT, Target
from mx_selector.policies.base import Policy
from mx_selector.policies.baselines import RendezvousHash
from mx_selector.policies.load_aware import LoadAware

#: Domains of Grove's ClusterTopology, broad to narrow.
LEVELS: Final = ("region", "zone", "datacenter", "block", "rack", "host", "numa")
_MOUNT: Final = "/etc/dynamo/topology"


def shared_depth(levels: Sequence[str], ours: Mapping[str, str], theirs: Mapping[str, str]) -> int:
    """Index of the last level of the prefix on which both agree; -1 when they share nothing.

    A level that neither has tells nothing and is skipped; the first that differs, or that one side lacks, ends the
    prefix: domain names are only unique inside their parent.
    """
    depth = -1
    for index, level in enumerate(levels):
        mine, other = ours.get(level), theirs.get(level)
        if mine is None and other is None:
            continue
        if mine != other:
            break
        depth = index
    return depth


@dataclasses.dataclass(frozen=True, slots=True)
class TopologyAware:
    """Orders by tier, then by `tiebreak` inside each.

    Attributes:
        tiebreak: The policy inside a tier.
        levels: Broad to narrow.
        local: The domains of this node, for targets that do not bring their own.
        name: What metrics call it.
    """

    tiebreak: Policy = dataclasses.field(default_factory=RendezvousHash)
    levels: tuple[str, ...] = LEVELS
    local: Mapping[str, str] = dataclasses.field(default_factory=dict)
    name: str = "topology_aware"

    def depths(self, candidates: Sequence[Any], target: Target) -> list[int]:
        """How near each candidate is: index into `levels`, -1 for nothing shared."""
        ours = self.local if target.topology is None else target.topology
        if not any(level in ours for level in self.levels):
            return [-1] * len(candidates)  # decided without reading any row
        return [shared_depth(self.levels, ours, _topology_of(c)) for c in candidates]

    def order(self, candidates: Sequence[CandidateT], target: Target) -> list[CandidateT]:
        """All candidates, nearest tier first."""
        return self.top(candidates, target, len(candidates))

    def top(self, candidates: Sequence[CandidateT], target: Target, k: int) -> list[CandidateT]:
        """The first `k` of `order`; tiers that are not reached are not ordered."""
        tiers: dict[int, list[CandidateT]] = {}
        for candidate, depth in zip(candidates, self.depths(candidates, target), strict=True):
            tiers.setdefault(depth, []).append(candidate)
        chosen: list[CandidateT] = []
        for depth in sorted(tiers, reverse=True):
            if len(chosen) >= k:
                break
            chosen += _best(self.tiebreak, tiers[depth], target, k - len(chosen))
        return chosen


def _best(policy: Policy, candidates: list[CandidateT], target: Target, k: int) -> list[CandidateT]:
    shortcut = getattr(policy, "top", None)
    if shortcut is None or k >= len(candidates):
        return policy.order(candidates, target)[:k]
    return list(shortcut(candidates, target, k))


def _topology_of(candidate: Any) -> Mapping[str, str]:
    value: Any = getattr(candidate, "topology", None)
    return cast("Mapping[str, str]", value) if hasattr(value, "get") else {}


def levels(environ: settings.Environment) -> tuple[str, ...]:
    """`MX_P2P_TOPOLOGY_LEVELS`, comma-separated, broad to narrow; Grove's domains when unset or empty."""
    raw = environ.get("MX_P2P_TOPOLOGY_LEVELS")
    if not raw:
        return LEVELS
    named = tuple(level.strip() for level in raw.split(",") if level.strip())
    if strange := [level for level in named if level not in LEVELS]:
        settings.say_once(
            f"MX_P2P_TOPOLOGY_LEVELS has {strange}, which are no domains of Grove's ({', '.join(LEVELS)})"
        )
    return named


def local_domains(environ: settings.Environment) -> dict[str, str]:
    """This node's domains: the JSON object `MX_P2P_TOPOLOGY`, else one file per domain as Dynamo mounts them.

    The folder is `DYN_TOPOLOGY_MOUNT_PATH`, `/etc/dynamo/topology` by default. Nothing usable means no domains, hence
    no tiers.
    """
    raw = environ.get("MX_P2P_TOPOLOGY")
    if not raw:
        return _mounted(environ.get("DYN_TOPOLOGY_MOUNT_PATH", _MOUNT))
    try:
        value = json.loads(raw)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        settings.say_once(f"MX_P2P_TOPOLOGY={raw!r} is not a JSON object; using no topology")
        return {}
    return {str(level): str(domain) for level, domain in value.items() if domain is not None}


def _mounted(folder: str) -> dict[str, str]:
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return {}
    domains = {name: _content(os.path.join(folder, name)) for name in names}
    return {name: value for name, value in domains.items() if value}


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):  # a folder, or not text
        return ""


def load_blend(environ: settings.Environment) -> float:
    """The weight of load inside a tier where no tiebreak is named; 0 by default.

    `MX_P2P_TOPOLOGY_LOAD_WEIGHT`, else `MX_P2P_LOAD_WEIGHT` where that is set. Only a usable number switches it on.
    """
    for name in ("MX_P2P_TOPOLOGY_LOAD_WEIGHT", "MX_P2P_LOAD_WEIGHT"):
        if environ.get(name) is not None:
            value = settings.finite(environ, name, "no load inside a tier")
            return 0.0 if value is None else min(settings.MAX_WEIGHT, max(0.0, value))
    return 0.0


def default_tiebreak(environ: settings.Environment) -> Policy:
    """What the released client does inside a tier: rendezvous, less the load where a weight is set."""
    weight = load_blend(environ)
    return LoadAware(weight, settings.unknown_load(environ)) if weight > 0 else RendezvousHash()
