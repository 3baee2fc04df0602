"""Selection as an engine's author uses it: ask for sources, try them in turn, say how it went.

    selection = select_sources(stub, identity, Target(model_name, worker_id, worker_rank, "cuda"))
    for source in selection:
        try:
            with selection.attempt(source) as attempt:
                with attempt.metadata():
                    worker = fetch(source)
                pull(worker)
            break
        except TransferError:
            continue

Nothing here raises for its own reasons: no server, no sources or a broken policy give a shorter selection or the
baseline order, and what the body of an attempt raises passes through untouched.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from mx_selector import eligibility, listing, ranking, settings, telemetry
from mx_selector.attempts import Attempt
from mx_selector.model import MAX_ATTEMPTS, Funnel, Target
from mx_selector.policies import registry
from mx_selector.policies.base import Policy, name_of

#: Seconds that a listing may take, as in the released client.
LIST_TIMEOUT = 30.0


@dataclasses.dataclass(frozen=True)
class Selection(Sequence[Any]):
    """The sources to try, best first.

    Attributes:
        sources: The listed rows themselves.
        policy: Name of the policy that ordered them (the one that ran, not the one that was asked for).
        funnel: How many rows were listed and how many passed each filter; the policy chose from the last number.
        error: Why there is nothing, where the server could not be asked.
    """

    sources: tuple[Any, ...]
    policy: str
    funnel: Funnel = dataclasses.field(default_factory=Funnel)
    error: str = ""

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self.sources[index]

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sources)

    def attempt(self, source: Any) -> Attempt:
        """A context manager around one pull from `source`; see `Attempt`."""
        position = next((i for i, s in enumerate(self.sources) if s is source), len(self.sources))
        return Attempt(source, self.policy, last=position + 1 >= len(self.sources))


def select_sources(
    client: Any,
    identity: Any,
    target: Target,
    *,
    policy: str | Policy | None = None,
    limit: int | None = MAX_ATTEMPTS,
    timeout: float = LIST_TIMEOUT,
) -> Selection:
    """List the READY sources of `identity`, keep those of the target's rank and accelerator, and rank them.

    Args:
        client: Our blocking `P2pServiceStub`, anything with `ListSources`, or the released client's MxClient.
        identity: The target's SourceIdentity, ours or the released client's.
        target: Who pulls.
        policy: None takes `MX_P2P_SOURCE_SELECTOR`, `random` by default.
        limit: How many sources to return; None means all.
        timeout: Seconds that the listing may take.

    Returns:
        An empty selection, with `error` set, where the server cannot be asked.
    """
    try:
        instances = listing.list_ready(client, identity, timeout)
    except Exception as error:  # noqa: BLE001 - no listing means no P2P, not a failed load
        chosen = _resolved(policy)
        why = listing.reason(error)
        settings.logger.warning("cannot list sources, so none will be tried: %s", why)
        telemetry.recorder().listed(name_of(chosen), "error")
        return Selection((), name_of(chosen), error=why)
    return select_from(instances, identity, target, policy=policy, limit=limit)


def select_from(
    instances: Iterable[Any],
    identity: Any,
    target: Target,
    *,
    policy: str | Policy | None = None,
    limit: int | None = MAX_ATTEMPTS,
) -> Selection:
    """The same for rows that the caller listed (an asyncio engine, say); arguments as in `select_sources`."""
    chosen = _resolved(policy)
    try:
        return _select(instances, identity, target, chosen, limit)
    except Exception as error:  # noqa: BLE001 - rows or an identity that nobody can read
        settings.logger.warning("cannot select a source, so none will be tried: %r", error)
        telemetry.recorder().fell_back(name_of(chosen), type(error).__name__)
        return Selection((), name_of(chosen), error=repr(error))


def _select(instances: Iterable[Any], identity: Any, target: Target, policy: Policy, limit: int | None) -> Selection:
    rows, name = list(instances), name_of(policy)
    matched, candidates = eligibility.funnel(rows, identity, target)
    funnel = Funnel(len(rows), len(matched), len(candidates))
    started = time.perf_counter()
    sources = ranking.top(candidates, target, len(candidates) if limit is None else limit, policy)
    telemetry.recorder().selected(name, funnel, sources, time.perf_counter() - started)
    return Selection(tuple(sources), name, funnel)


def _resolved(policy: str | Policy | None) -> Policy:
    if policy is None:
        policy = settings.policy_name(os.environ)
    return registry.resolve(policy) if isinstance(policy, str) else policy
