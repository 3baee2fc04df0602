"""One cluster for these tests, empty of policies before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operator.kubernetes.clusters import Cluster
from tests.parts.kubernetes import ApiServer


@pytest.fixture(scope="session")
def _cluster(api_server: ApiServer) -> Cluster:
    return Cluster(api_server)


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    _cluster.clear()
    yield _cluster
    _cluster.clear()
