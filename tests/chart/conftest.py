"""Helm for the chart's tests; where it was not fetched they are skipped with a line that says how to get it."""

from __future__ import annotations

import pytest

from tests.chart import helm as programs


@pytest.fixture(params=programs.MAJORS, ids=lambda major: f"helm{major}")
def helm(request: pytest.FixtureRequest) -> programs.Helm:
    """Each major version of Helm that users run."""
    return found(request.param)


@pytest.fixture
def helm4() -> programs.Helm:
    """Helm 4, for what does not depend on the version."""
    return found(4)


def found(major: int) -> programs.Helm:
    program = programs.find(major)
    if program is None:
        pytest.skip(f"no Helm {major}: run scripts/helm")
    return program
