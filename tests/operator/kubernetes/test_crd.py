"""The CRD's schema on a real API server: it refuses what the validator refuses, and its columns answer at a glance."""

from __future__ import annotations

import dataclasses
import subprocess
import urllib.error
from typing import Any

import pytest
import yaml

from mx_operator.policies import labels, read_policy, spec
from tests.operator.kubernetes.clusters import CRD, PATH, Cluster
from tests.operator.policies.cases import BAD, FINE, Bad, policy

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")
_STRICT = f"{PATH}?dryRun=All&fieldValidation=Strict"


@pytest.mark.parametrize("case", [case for case in BAD if case.by_schema], ids=lambda case: case.name)
def test_the_api_server_refuses_it_too(cluster: Cluster, case: Bad) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        cluster.api.request("POST", _STRICT, policy(case.change))
    with caught.value as refused:
        answer = refused.read().decode()
    assert caught.value.code in (400, 422)
    assert case.field.split(".", maxsplit=1)[0].split("[", maxsplit=1)[0] in answer


@pytest.mark.parametrize("case", [case for case in BAD if not case.by_schema], ids=lambda case: case.name)
def test_what_only_the_validator_sees_passes_the_schema(cluster: Cluster, case: Bad) -> None:
    cluster.api.request("POST", _STRICT, policy(case.change))


@pytest.mark.parametrize("name", FINE)
def test_the_api_server_accepts_what_the_validator_accepts(cluster: Cluster, name: str) -> None:
    stored = cluster.api.request("POST", _STRICT, policy(FINE[name]))
    with_defaults, _ = read_policy(stored)
    plain, _ = read_policy(policy(FINE[name]))
    assert dataclasses.replace(with_defaults, uid="", generation=0) == plain


def test_kubectl_says_what_is_wrong_in_plain_words(cluster: Cluster) -> None:
    manifest = yaml.safe_dump(policy(lambda content: content["server"].pop("address")))
    with pytest.raises(subprocess.CalledProcessError) as caught:
        cluster.api.apply(manifest)
    assert "server.address is missing; write host:port of the MX server" in caught.value.stderr


def _schema() -> Any:
    return yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def test_the_schema_and_the_values_have_the_same_choices_and_names() -> None:
    fields = _schema()["spec"]["properties"]
    signal = fields["signals"]["items"]["properties"]
    for found, kind in (
        (fields["mode"], spec.Mode),
        (fields["combine"], spec.Combine),
        (fields["unmeasured"], spec.Unmeasured),
        (fields["server"]["properties"]["writer"], spec.Writer),
        (fields["prometheus"]["properties"]["partialResponse"], spec.PartialResponse),
        (signal["reduce"], spec.Reduce),
    ):
        assert found["enum"] == [member.value for member in kind]
    assert signal["joinLabel"]["enum"] == list(labels.JOIN_LABELS)
    assert set(fields) == {"mode", "priority", "server", "prometheus", "interval", "sourceHeartbeat", "signals"} | {
        "combine",
        "unmeasured",
        "staleAfter",
        "deadband",
        "models",
    }


def test_kubectl_get_answers_whether_for_how_many_and_how_fresh(cluster: Cluster) -> None:
    cluster.create("fleet")
    ready = {"type": "Ready", "status": "True", "reason": "Writing", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"conditions": [ready], "measured": "12/14", "dataAge": "6s", "reportedAt": "2026-01-01T00:00:00Z"}
    body = {"status": status}
    cluster.api.request("PATCH", f"{PATH}/fleet/status", body, content="application/merge-patch+json")
    header, line = cluster.api.kubectl("get", "slp").splitlines()
    assert header.split() == ["NAME", "READY", "WHY", "MEASURED", "DATA-AGE", "REPORTED"]
    assert line.split()[:5] == ["fleet", "True", "Writing", "12/14", "6s"]
