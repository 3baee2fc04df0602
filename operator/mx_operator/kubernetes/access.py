"""How to reach the API server and as whom: the pod's service account, or a kubeconfig on a workstation.

Both the watch and our own requests ask here, each time they connect, so that a rotated token is picked up.
"""

from __future__ import annotations

from collections.abc import Callable

import kopf

#: Reads the credentials now.
Access = Callable[[], kopf.ConnectionInfo]


class AccessError(Exception):
    """There is no way to the API server; the message says what to do."""


def detect() -> kopf.ConnectionInfo:
    """The credentials of this process.

    Raises:
        AccessError: It runs neither in a cluster nor with a kubeconfig that can be used.
    """
    settings = kopf.OperatorSettings()
    try:
        found = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    except Exception as error:
        raise AccessError(f"Kubernetes: the credentials cannot be read: {error}; mend KUBECONFIG") from error
    if found is None:
        fix = "run in a pod with a service account, set KUBECONFIG, or give --policy FILE to run without Kubernetes"
        raise AccessError(f"Kubernetes: no service account and no kubeconfig; {fix}")
    return found
