"""Reports as a load loop would make them, for tests of what is shown."""

from __future__ import annotations

import dataclasses
from typing import Any

from mx_operator.core.reports import Check, Counts, PolicyReport
from mx_operator.policies import SourceLoadPolicy

GOOD = Check(True, "Ok")
UNTRIED = Check(None, "NotTried")


def report(
    policy: str = "fleet", uid: str = "u-1", generation: int = 1, at: float = 1_800_000_000.0, **changes: Any
) -> PolicyReport:
    """A cycle in which all is well, but for the changes; `counts` may be given as a dict."""
    counts = changes.pop("counts", {"listed": 14, "matched": 12, "unmatched": 2})
    base = PolicyReport(
        policy=policy,
        uid=uid,
        generation=generation,
        at=at,
        prometheus=GOOD,
        server=GOOD,
        load_supported=GOOD,
        data_fresh=GOOD,
        heartbeat=GOOD,
        counts=Counts(**counts) if isinstance(counts, dict) else counts,
        skips={"unmatched": 2},
        signal_ages={"exporter": 6.2},
        heartbeat_interval=30.1,
        clock_skew=0.25,
        duration=0.12,
    )
    return dataclasses.replace(base, **changes)


def of(policy: SourceLoadPolicy, **changes: Any) -> PolicyReport:
    """A good cycle of this policy."""
    return report(policy.name, policy.uid, policy.generation, **changes)
