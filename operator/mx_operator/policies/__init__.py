"""SourceLoadPolicy: what an administrator asks for, read by one validator from the cluster or from a file.

`spec` has the values, `validation` and `files` read them, `explain` tells a person what a policy will do. Nothing
here imports kopf or talks to anybody.
"""

from mx_operator.policies.endpoints import Limits
from mx_operator.policies.files import read_policies
from mx_operator.policies.findings import Finding, PolicyError, Severity
from mx_operator.policies.labels import JOIN_LABELS, Join
from mx_operator.policies.spec import (
    API_VERSION,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    Combine,
    Mode,
    Models,
    OAuth2,
    PartialResponse,
    Prometheus,
    Reduce,
    Server,
    Signal,
    SourceLoadPolicy,
    Unmeasured,
    Writer,
)
from mx_operator.policies.validation import read_policy

__all__ = [
    "API_VERSION",
    "GROUP",
    "JOIN_LABELS",
    "KIND",
    "PLURAL",
    "VERSION",
    "Combine",
    "Finding",
    "Join",
    "Limits",
    "Mode",
    "Models",
    "OAuth2",
    "PartialResponse",
    "PolicyError",
    "Prometheus",
    "Reduce",
    "Server",
    "Severity",
    "Signal",
    "SourceLoadPolicy",
    "Unmeasured",
    "Writer",
    "read_policies",
    "read_policy",
]
