"""Policies from YAML files: several documents in a file, the same validator as for custom resources."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from typing import Any, Final

import yaml

from mx_operator.policies.endpoints import Limits
from mx_operator.policies.findings import Finding, PolicyError
from mx_operator.policies.spec import SourceLoadPolicy
from mx_operator.policies.validation import read_policy

_MAX_BYTES: Final = 4 * 1024 * 1024


def read_policies(
    path: str | os.PathLike[str], limits: Limits | None = None
) -> tuple[tuple[SourceLoadPolicy, ...], tuple[Finding, ...]]:
    """Read every policy of a file.

    Args:
        path: YAML; documents are separated by `---`, empty ones are ignored.
        limits: What the installation lets policies name.

    Returns:
        The policies in the file's order, and the warnings about all of them, their fields led by the policy's name.

    Raises:
        PolicyError: The file cannot be read, has no policy, names one twice, or any policy is wrong; holds every
            error of every document.
    """
    policies: dict[str, SourceLoadPolicy] = {}
    warnings: list[Finding] = []
    errors: list[Finding] = []
    for number, document in enumerate(_documents(path), start=1):
        try:
            policy, remarks = read_policy(document, limits or Limits())
        except PolicyError as error:
            errors += [_led(finding, _name(document) or f"document {number}") for finding in error.findings]
            continue
        if policy.name in policies:
            errors.append(Finding(f"{policy.name} metadata.name", "is there twice", "give one another name"))
        policies[policy.name] = policy
        warnings += [_led(finding, policy.name) for finding in remarks]
    if not policies and not errors:
        errors.append(Finding("(document)", "the file holds no policy", "write a SourceLoadPolicy into it"))
    if errors:
        raise PolicyError(os.fspath(path), errors)
    return tuple(policies.values()), tuple(warnings)


def _led(finding: Finding, name: str) -> Finding:
    return Finding(f"{name} {finding.field}", finding.problem, finding.fix, finding.severity)


def _name(document: object) -> str | None:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) and name else None


def _documents(path: str | os.PathLike[str]) -> Iterator[Any]:
    where = os.fspath(path)
    try:
        raw = pathlib.Path(path).read_bytes()
        if len(raw) > _MAX_BYTES:
            raise PolicyError(where, [Finding("(file)", f"is {len(raw)} bytes", "keep policies below 4 MiB")])
        documents = list(yaml.safe_load_all(raw.decode("utf-8")))
    except OSError as error:
        fix = "give the path of a YAML file"
        raise PolicyError(where, [Finding("(file)", str(error.strerror or error), fix)]) from error
    except UnicodeDecodeError as error:
        raise PolicyError(where, [Finding("(file)", "is not UTF-8 text", "save it as UTF-8")]) from error
    except yaml.YAMLError as error:
        raise PolicyError(where, [Finding(_spot(error), "is not YAML", "mend the line")]) from error
    return (document for document in documents if document is not None)


def _spot(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
