"""Golden manifests: what three sets of values come to, whole, so that a review sees every change of an object.

`python -m tests.chart.golden` writes them anew.
"""

from __future__ import annotations

import pathlib

import yaml

from tests.chart import helm as programs
from tests.chart.helm import Helm, Manifest

NAMES = ("defaults", "minimal", "everything")
_FOLDER = pathlib.Path(__file__).parent / "golden"


def path(name: str) -> pathlib.Path:
    """Where the golden manifests of a values file are."""
    return _FOLDER / f"{name}.yaml"


def manifests(helm: Helm, name: str) -> list[Manifest]:
    """What is compared: all objects; without the CRD's spec, dashboards and rules, which have tests of their own."""
    rendered = helm.template(name)
    for manifest in rendered:
        if manifest["kind"] in ("CustomResourceDefinition", "PrometheusRule"):
            del manifest["spec"]
        if manifest["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboards":
            manifest["data"] = dict.fromkeys(manifest["data"], "...")
    return rendered


def main() -> None:
    """Write them."""
    helm = programs.find(4)
    assert helm is not None, "no Helm 4: run scripts/helm"
    _FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        path(name).write_text(yaml.safe_dump_all(manifests(helm, name), sort_keys=False, width=110))


if __name__ == "__main__":
    main()
