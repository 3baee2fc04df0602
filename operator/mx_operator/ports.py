"""The two places where the load loop meets whoever configures it: a Kubernetes bridge, or a file.

Both calls are made in the loop's own thread (`loop.call_soon_threadsafe` from another one), return at once and never
raise into the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from mx_operator.core.reports import PolicyReport
from mx_operator.policies.spec import SourceLoadPolicy


class PolicyConsumer(Protocol):
    """What runs policies (`mx_operator.loop.fleet.Fleet` is the one)."""

    def apply(self, policies: Sequence[SourceLoadPolicy], unsupported: Collection[str] = ()) -> None:
        """Run exactly these policies from now on.

        Loops whose server stays keep running with what they know; policies that are gone stop before their next
        write. Applying the same policies again changes nothing.

        Args:
            policies: The whole set, valid, each name once.
            unsupported: Names of policies whose stored status says LoadSupported=False. Their server starts with the
                gate closed (one canary every ten minutes) instead of open to a first trial.
        """


class StatusSink(Protocol):
    """Whoever shows what the cycles find out: the resource's status, or a log in file mode."""

    def publish(self, report: PolicyReport) -> None:
        """Take the report of a cycle that has just ended: one per policy and cycle, about every two seconds."""
