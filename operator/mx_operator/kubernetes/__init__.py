"""Kubernetes: policies as custom resources in, their status and Events out.

Imports kopf, which is 90 MB of memory: only cluster mode may import this package, lazily. `Bridge` is the door:

    bridge = Bridge(limits=limits)        # AccessError where there is no cluster
    fleet = Fleet(sink=bridge, ...)
    await bridge.run(fleet)               # until cancelled
"""

from mx_operator.kubernetes.access import AccessError
from mx_operator.kubernetes.bridge import Bridge, Health, Rhythm

__all__ = ["AccessError", "Bridge", "Health", "Rhythm"]
