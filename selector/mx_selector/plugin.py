"""Our policies inside the released ModelExpress client, through its own registry; nothing of it is patched.

`import mx_selector.plugin` is enough, and vLLM does it by itself in each of its processes: this is the entry point
`mx_selector` of its group `vllm.general_plugins`. From then on `MX_P2P_SOURCE_SELECTOR=headroom` works there, and
`rendezvous_hash`, `load_aware` and `topology_aware` are ours too: the same order, without the released ones' faults.
`random` stays theirs. `MX_SELECTOR_PLUGIN=0` leaves everything as it was.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from mx_selector import ranking, settings, telemetry
from mx_selector.model import CandidateT, Target
from mx_selector.policies import registry

#: What is registered, under the released client's names where it has them.
NAMES: Final = ("headroom", "load_aware", "rendezvous_hash", "topology_aware")


class Selector:
    """A policy of ours as the released client wants one: `name` and `order(candidates, ctx)`."""

    def __init__(self, name: str) -> None:
        self._policy = registry.resolve(name)
        self.name = self._policy.name

    def order(self, candidates: Sequence[CandidateT], ctx: Any) -> list[CandidateT]:
        """All candidates, best first; never raises, for the released client would go on without any source then."""
        ordered = ranking.rank(candidates, _target(ctx), self._policy)
        telemetry.recorder().chosen(self.name, ordered)
        return ordered


def _target(ctx: Any) -> Target:
    try:
        return Target.of(ctx)
    except AttributeError as error:
        settings.say_once(f"the load context lacks something to choose by ({error}); all targets choose alike")
        return Target("", str(getattr(ctx, "worker_id", "")), 0)


def register() -> bool:
    """Register our policies with the released client in this process; again is harmless.

    Returns:
        Whether it was done: False without the released client, or where MX_SELECTOR_PLUGIN says no. Never raises.
    """
    if os.environ.get("MX_SELECTOR_PLUGIN", "1").strip().lower() in ("0", "false", "no", "off"):
        return False
    try:
        from modelexpress import source_selection
    except Exception as error:  # noqa: BLE001 - absent, or its own imports fail: an engine without P2P
        settings.logger.debug("the released ModelExpress client is not here: %r", error)
        return False
    for name in NAMES:
        source_selection.register_selector(name, lambda name=name: Selector(name))
    telemetry.ride_along()
    settings.logger.info("source selectors registered with modelexpress: %s", ", ".join(NAMES))
    return True


register()
