"""How the API server is reached and which pods count; plain values that the configuration makes."""

from __future__ import annotations

import dataclasses
import pathlib

_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclasses.dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Where the API server is and who we are to it; the defaults are a pod's own."""

    node_name: str | None = None  # None: $NODE_NAME
    api_server: str | None = None  # None: https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT
    token_file: pathlib.Path = _ACCOUNT / "token"  # read again when it changes
    ca_file: pathlib.Path = _ACCOUNT / "ca.crt"
    #: A label selector; None: pods that ask for an accelerator or carry sourceload.dev/port.
    pod_selector: str | None = None
