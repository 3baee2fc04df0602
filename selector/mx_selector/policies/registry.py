"""Policies by name: `ranking`, `selection` and the command line resolve here; users add theirs with `register`."""

from __future__ import annotations

import os
from collections.abc import Callable

from mx_selector import settings
from mx_selector.policies import baselines, headroom, load_aware, topology
from mx_selector.policies.base import Policy

#: Makes a policy from an environment; called anew for each selection, so that settings may change under us.
Factory = Callable[[settings.Environment], Policy]

_factories: dict[str, Factory] = {
    "random": lambda _: baselines.Random(),
    "rendezvous_hash": lambda _: baselines.RendezvousHash(),
    "load_aware": load_aware.LoadAware.from_environment,
    "headroom": headroom.Headroom.from_environment,
    "topology_aware": lambda environ: _topology_aware(environ),
}


def register(name: str, factory: Factory) -> None:
    """Make `factory` the policy of that name; the last registration wins.

    Args:
        name: What `MX_P2P_SOURCE_SELECTOR` will say; case matters.
        factory: Called with the environment for each selection. One that raises means `random`.
    """
    _factories[name] = factory


def names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_factories)


def resolve(name: str, environ: settings.Environment | None = None) -> Policy:
    """The policy called `name`; `random` where there is none or its factory raises (said once in the log)."""
    factory = _factories.get(name)
    if factory is None:
        settings.say_once(f"unknown source selector {name!r}; using {settings.DEFAULT_POLICY!r}. Known: {names()}")
        return baselines.Random()
    try:
        return factory(os.environ if environ is None else environ)
    except Exception as error:  # noqa: BLE001 - a broken factory must not stop a weight load
        settings.say_once(f"source selector {name!r} cannot be made ({error!r}); using {settings.DEFAULT_POLICY!r}")
        return baselines.Random()


def _topology_aware(environ: settings.Environment) -> Policy:
    """Inside a tier `MX_P2P_TOPOLOGY_TIEBREAK` decides, any registered name but its own."""
    name = environ.get("MX_P2P_TOPOLOGY_TIEBREAK", "")
    if name == "topology_aware":
        settings.say_once("MX_P2P_TOPOLOGY_TIEBREAK cannot be topology_aware itself; using rendezvous_hash")
        name = "rendezvous_hash"
    tiebreak = resolve(name, environ) if name else topology.default_tiebreak(environ)
    return topology.TopologyAware(tiebreak, topology.levels(environ), topology.local_domains(environ))
