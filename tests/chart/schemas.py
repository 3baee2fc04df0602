"""Strict validation of rendered objects: unknown fields are errors.

Kubernetes' own kinds against the schemas of kubernetes-validate (several versions); the Prometheus Operator's and our
own kind against their CRDs' schemas, made as strict as the API server is with `fieldValidation: Strict`.
"""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import jsonschema
import kubernetes_validate  # type: ignore[import-untyped]
import yaml
from referencing import Registry, Resource

OLDEST = "1.30"
NEWEST = "1.37"
_SCHEMAS = pathlib.Path(str(kubernetes_validate.__file__)).parent / "kubernetes-json-schema"
Validator = jsonschema.Draft202012Validator


def errors(manifest: dict[str, Any], version: str, crds: tuple[pathlib.Path, ...]) -> list[str]:
    """What is wrong with an object, one line each; a kind that nothing describes is an error too."""
    return _errors(json.dumps(manifest, sort_keys=True), version, crds)


@functools.cache
def _errors(text: str, version: str, crds: tuple[pathlib.Path, ...]) -> list[str]:
    # Remembered by content: most objects are the same for many values, and the CRD takes a second.
    manifest = json.loads(text)
    group, _, _ = manifest["apiVersion"].rpartition("/")
    custom = _custom(crds).get((manifest["apiVersion"], manifest["kind"]))
    validator = custom or _core(version, group, manifest["apiVersion"].rpartition("/")[2], manifest["kind"])
    if validator is None:
        return [f"{manifest['apiVersion']} {manifest['kind']}: no schema"]
    name = f"{manifest['kind']}/{manifest['metadata']['name']}"
    return [f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@functools.cache
def _definitions(version: str) -> Registry[Any]:
    text = (_SCHEMAS / f"v{version}.0-local-strict" / "_definitions.json").read_text()
    resource: Resource[Any] = Resource.from_contents(json.loads(text))
    registry: Registry[Any] = Registry().with_resource("_definitions.json", resource).crawl()
    return registry


@functools.cache
def _core(version: str, group: str, api: str, kind: str) -> Validator | None:
    # rbac.authorization.k8s.io/v1 is filed under rbac-v1.
    stem = "-".join(part for part in (kind.lower(), group.partition(".")[0], api) if part)
    path = _SCHEMAS / f"v{version}.0-local-strict" / f"{stem}.json"
    if not path.exists():
        return None
    return Validator(json.loads(path.read_text()), registry=_definitions(version))


@functools.cache
def _custom(crds: tuple[pathlib.Path, ...]) -> dict[tuple[str, str], Validator]:
    found = {}
    for path in crds:
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"], root=True)
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = Validator(schema)
    return found


def strict(schema: Any, root: bool = False) -> Any:
    """A CRD's schema as JSON Schema that refuses unknown fields."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items() if not key.startswith("x-kubernetes-validations")}
    if made.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if isinstance(made.get("properties"), dict) and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if root:
        for name in ("apiVersion", "kind", "metadata"):
            made["properties"].setdefault(name, {})
        made["properties"]["metadata"] = {"type": "object"}
    return made
