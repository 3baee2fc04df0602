"""The numbers of the safe-write protocol for one MX endpoint: the strictest of its policies' settings.

All of them follow from `sourceHeartbeat`. The bound they keep: a dead source stays selectable at most the server's
timeout plus `window` plus `GRACE` seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from mx_operator.policies.spec import SourceLoadPolicy, Writer

#: A write sent at the end of a window has this long to be answered.
GRACE: Final = 2.0
#: From the receipt of a list its writes have this long in all.
WRITE_BUDGET: Final = 2.0
_WINDOW_SHARE: Final = 0.9
#: Of a heartbeat's interval: no heartbeat comes sooner after the one before, and hardly any write lands later.
_NEXT_SHARE: Final = 0.95
#: Servers call a source stale after three missed heartbeats (MX_HEARTBEAT_TIMEOUT_SECS and its default).
_HEARTBEATS_TO_STALE: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """What an endpoint's loop goes by.

    Attributes:
        heartbeat: Seconds between a source's own heartbeats.
        interval: Seconds between cycles, before stretching.
        writes_per_second: Budget.
        writer: How loads are written; the Kubernetes writer needs no window.
    """

    heartbeat: float = 30.0
    interval: float = 2.0
    writes_per_second: float = 100.0
    writer: Writer = Writer.GRPC

    @property
    def window(self) -> float:
        """Seconds after a believed heartbeat in which its row may be written."""
        return _WINDOW_SHARE * self.heartbeat

    @property
    def soonest(self) -> float:
        """Seconds after a heartbeat before which nothing can be the next one."""
        return _NEXT_SHARE * self.heartbeat

    @property
    def remember(self) -> float:
        """Seconds a row that is no longer listed is remembered: twice the server's timeout."""
        return 2 * _HEARTBEATS_TO_STALE * self.heartbeat


def strictest(policies: Sequence[SourceLoadPolicy]) -> Rules:
    """The rules under which all of one endpoint's policies are served (at least one policy)."""
    return Rules(
        heartbeat=min(policy.source_heartbeat for policy in policies),
        interval=max(policy.interval for policy in policies),
        writes_per_second=min(policy.server.max_writes_per_second for policy in policies),
        writer=policies[0].server.writer,
    )
