"""The golden manifests; a wanted change is written with `python -m tests.chart.golden` and reviewed."""

from __future__ import annotations

import pytest
import yaml

from tests.chart import golden
from tests.chart.helm import Helm


@pytest.mark.parametrize("name", golden.NAMES)
def test_manifests_are_as_reviewed(helm: Helm, name: str) -> None:
    reviewed = list(yaml.safe_load_all(golden.path(name).read_text()))
    rendered = golden.manifests(helm, name)
    assert [(m["kind"], m["metadata"]["name"]) for m in rendered] == [
        (m["kind"], m["metadata"]["name"]) for m in reviewed
    ]
    for now, then in zip(rendered, reviewed, strict=True):
        assert now == then
