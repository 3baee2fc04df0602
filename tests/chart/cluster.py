"""What the chart's tests do on a real API server: apply what was rendered, and act as the accounts it made."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from tests.chart.helm import Manifest, of_kind
from tests.parts.kubernetes import ApiServer

CRD = "customresourcedefinition/sourceloadpolicies.sourceload.dev"
_CREATED = 201
_FORBIDDEN = 403


@dataclasses.dataclass(frozen=True, slots=True)
class Used:
    """One right that was used: what the audit log says was asked for and allowed."""

    group: str
    resource: str
    verb: str


def namespace(api: ApiServer, name: str, **labels: str) -> None:
    """Make a namespace where it is missing."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    api.apply([manifest])


def apply(api: ApiServer, manifests: Sequence[Manifest], kinds: Iterable[str] | None = None) -> None:
    """Apply what was rendered: namespaces and definitions first, as Helm does."""
    wanted = [m for m in manifests if kinds is None or m["kind"] in kinds]
    first = [m for m in wanted if m["kind"] in ("Namespace", "CustomResourceDefinition")]
    if first:
        api.apply(first)
        if of_kind(first, "CustomResourceDefinition"):
            api.kubectl("wait", "--for=condition=Established", CRD, "--timeout=20s")
    if rest := [m for m in wanted if m not in first]:
        api.apply(rest)


def container(manifests: Sequence[Manifest], component: str) -> dict[str, Any]:
    """A component's only container."""
    for manifest in of_kind(manifests, "DaemonSet") + of_kind(manifests, "Deployment"):
        for found in manifest["spec"]["template"]["spec"]["containers"]:
            if found["name"] == component:
                return dict(found)
    raise LookupError(component)


def account(manifests: Sequence[Manifest], component: str) -> tuple[str, str]:
    """(namespace, name) of a component's service account."""
    for manifest in of_kind(manifests, "ServiceAccount"):
        if manifest["metadata"]["labels"]["app.kubernetes.io/component"] == component:
            return manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    raise LookupError(component)


def used(api: ApiServer, user: str) -> set[Used]:
    """The rights that an account used so far.

    An object that a server-side apply made is a patch in the log, and was allowed as a create, too.
    """
    found = set()
    for event in api.audit(user):
        if "objectRef" not in event or event.get("responseStatus", {}).get("code") == _FORBIDDEN:
            continue
        reference = event["objectRef"]
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        verbs = {event["verb"]}
        if event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == _CREATED:
            verbs.add("create")
        found |= {Used(reference.get("apiGroup", ""), resource, verb) for verb in verbs}
    return found


def refused(api: ApiServer, user: str) -> list[str]:
    """Requests of an account that were not allowed."""
    return [
        f"{event['verb']} {event['requestURI']}"
        for event in api.audit(user)
        if event.get("annotations", {}).get("authorization.k8s.io/decision") != "allow"
    ]


def granted(rules: Iterable[dict[str, Any]]) -> set[Used]:
    """The rights of a list of rules."""
    return {
        Used(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rules_of(manifests: Sequence[Manifest], component: str) -> list[dict[str, Any]]:
    """Every rule that is granted to a component."""
    roles = of_kind(manifests, "ClusterRole") + of_kind(manifests, "Role")
    return [
        rule
        for role in roles
        if role["metadata"]["labels"]["app.kubernetes.io/component"] == component
        for rule in role["rules"]
    ]


def pod(manifest: Manifest, name: str, inside: str) -> Manifest:
    """A pod as a Deployment or DaemonSet would make it."""
    template = manifest["spec"]["template"]
    metadata = {"name": name, "namespace": inside, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def delete_definition(api: ApiServer) -> None:
    """Take the CRD away, which an uninstallation keeps."""
    api.kubectl("delete", CRD, "--ignore-not-found", "--timeout=20s")


def dump(manifests: Sequence[Manifest], path: pathlib.Path) -> pathlib.Path:
    """Write manifests to a file."""
    path.write_text(yaml.safe_dump_all(manifests))
    return path
