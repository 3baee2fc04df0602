"""`rank` and `top`: a policy's order that cannot fail.

Called by `selection`, the plugin inside the released client and users. What goes wrong in a policy costs the choice its
quality, never the weight load: broken rows go last, a broken policy means the baseline order (`rendezvous_hash`), and
both are logged once and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mx_selector import digests, settings, telemetry
from mx_selector.model import CandidateT, Target
from mx_selector.policies import registry
from mx_selector.policies.base import Policy, name_of
from mx_selector.policies.baselines import RendezvousHash


def rank(candidates: Iterable[CandidateT], target: Target, policy: str | Policy = "load_aware") -> list[CandidateT]:
    """The same candidate objects, best first.

    Args:
        candidates: Rows of ListSources (ours or the released client's) or objects with their attributes, in any order.
        target: Who pulls.
        policy: A registered name, or a policy. An unknown name is `random`, as in the released client.

    Returns:
        As many as came in. The order depends on the candidates, the target and the policy's settings only (`random`
        excepted). A candidate without the identifying attributes goes last.
    """
    rows = list(candidates)
    return _guarded(rows, target, policy, len(rows))


def top(
    candidates: Iterable[CandidateT], target: Target, k: int, policy: str | Policy = "load_aware"
) -> list[CandidateT]:
    """The first `k` of `rank(candidates, target, policy)`, several times faster for large lists."""
    return _guarded(list(candidates), target, policy, max(0, k))


def _guarded(rows: list[CandidateT], target: Target, policy: str | Policy, k: int) -> list[CandidateT]:
    chosen = registry.resolve(policy) if isinstance(policy, str) else policy
    try:
        return _apply(chosen, rows, target, k)
    except Exception as error:  # noqa: BLE001 - whatever a policy or a row does, the load goes on
        _report(chosen, error)
    sound = [row for row in rows if _is_sound(row, target)]
    broken = [row for row in rows if not _is_sound(row, target)] if len(sound) < len(rows) else []
    return [*_best_effort(chosen, sound, target, retry=bool(broken)), *broken][:k]


def _apply(policy: Policy, rows: list[CandidateT], target: Target, k: int) -> list[CandidateT]:
    shortcut = getattr(policy, "top", None) if k < len(rows) else None
    chosen = policy.order(rows, target)[:k] if shortcut is None else shortcut(rows, target, k)
    if len(chosen) != min(k, len(rows)):
        raise ValueError(f"it returned {len(chosen)} of {len(rows)} candidates, {k} were asked for")
    return list(chosen)


def _best_effort(policy: Policy, sound: list[CandidateT], target: Target, *, retry: bool) -> Sequence[CandidateT]:
    if retry:
        try:
            return _apply(policy, sound, target, len(sound))
        except Exception as error:  # noqa: BLE001
            _report(policy, error)
    return RendezvousHash().order(sound, target)


def _is_sound(row: Any, target: Target) -> bool:
    try:
        digests.digest(row, target)
    except Exception:  # noqa: BLE001
        return False
    return True


def _report(policy: Policy, error: Exception) -> None:
    name, kind = name_of(policy), type(error).__name__
    message = f"source selector {name!r} failed ({error!r}); falling back to the baseline order"
    settings.say_once(message, key=f"fallback {name} {kind}")
    telemetry.recorder().fell_back(name, kind)
