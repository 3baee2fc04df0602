"""Helm 3 and Helm 4 as `scripts/helm` fetched them: the one seam to the program."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import yaml

from tests.parts.tools import cache

CHART = pathlib.Path(__file__).parents[2] / "charts" / "mx-source-load"
VALUES = pathlib.Path(__file__).parent / "values"
MAJORS = (3, 4)
Manifest = dict[str, Any]


class HelmError(Exception):
    """Helm refused; the message is what it printed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Helm:
    """One major version of the program."""

    major: int
    binary: pathlib.Path

    def run(self, *arguments: str | os.PathLike[str], home: pathlib.Path | None = None) -> str:
        """Run it; what it wrote to standard output.

        Raises:
            HelmError: It ended with an error.
        """
        env = {"PATH": os.environ["PATH"], "HOME": str(home or "/nonexistent")}
        done = subprocess.run(
            [self.binary, *arguments], capture_output=True, text=True, timeout=120, check=False, env=env
        )
        if done.returncode:
            raise HelmError((done.stderr + done.stdout).strip())
        return done.stdout

    def template(
        self,
        *values: str | pathlib.Path,
        release: str = "mx",
        namespace: str = "monitoring",
        chart: pathlib.Path = CHART,
        arguments: Sequence[str] = (),
    ) -> list[Manifest]:
        """The objects that it renders, without the empty documents.

        Args:
            values: Files, or names of those in `values/`.
            release: Name of the release.
            namespace: Namespace of the release.
            chart: The chart.
            arguments: Further arguments, such as `--set`.

        Raises:
            HelmError: The values or the templates do not work.
        """
        files = [f"--values={VALUES / f'{value}.yaml' if isinstance(value, str) else value}" for value in values]
        command = ("template", release, str(chart), f"--namespace={namespace}", *files, *arguments)
        rendered = _rendered(self, command, _state(chart))
        return list(json.loads(rendered))


@functools.cache
def _rendered(helm: Helm, command: tuple[str, ...], state: int) -> str:
    # Remembered as JSON: many tests look at the same objects, and each may change its own.
    documents = yaml.load_all(helm.run(*command), yaml.CSafeLoader)
    return json.dumps([document for document in documents if document])


def _state(chart: pathlib.Path) -> int:
    return hash(tuple((path, path.stat().st_mtime_ns) for path in chart.rglob("*") if path.is_file()))


def find(major: int) -> Helm | None:
    """That major version, or None where it was not fetched."""
    binary = cache() / "helm" / str(major) / "helm"
    return Helm(major, binary) if os.access(binary, os.X_OK) else None


def named_values() -> list[str]:
    """The names of the values files, in order."""
    return sorted(path.stem for path in VALUES.glob("*.yaml"))


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    """Those of one kind."""
    return [manifest for manifest in manifests if manifest["kind"] == kind]
