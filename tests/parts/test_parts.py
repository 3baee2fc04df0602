"""The real parts themselves: each starts, does what a test relies on, and leaves nothing behind."""

from __future__ import annotations

import json
import pathlib
import urllib.error

import pytest
import redis as redis_client

from mx_lab.processes import free_port, listens
from tests.parts import tiny_model
from tests.parts.kubernetes import ApiServer
from tests.parts.prometheus import prometheus
from tests.parts.redis import RedisServer

API_SERVER = pytest.mark.tools("etcd", "kube-apiserver")


def alive(pid: int) -> bool:
    """Whether a process of that id exists and is no zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_prometheus_scrapes_itself_answers_and_goes(prometheus_binary: pathlib.Path, tmp_path: pathlib.Path) -> None:
    port = free_port()
    targets = {"itself": [f"127.0.0.1:{port}"]}
    with prometheus(tmp_path / "prometheus", targets, binary=prometheus_binary, port=port) as server:
        assert server.wait_for('up{job="itself"} == 1') == [
            ({"__name__": "up", "instance": f"127.0.0.1:{port}", "job": "itself"}, 1.0)
        ]
        assert server.process is not None
        pid = server.process.pid
        warnings = [line for line in server.process.output.splitlines() if "level=error" in line or "ERROR" in line]
    assert warnings == []
    assert not alive(pid)
    assert not listens(port)


def test_redis_forgets_everything_at_a_crash(redis: RedisServer) -> None:
    with redis_client.Redis.from_url(redis.url) as client:
        client.set("k", "v")
        assert client.get("k") == b"v"
    redis.kill()
    assert not listens(redis.port)
    redis.start()
    with redis_client.Redis.from_url(redis.url) as client:
        assert client.get("k") is None


@API_SERVER
def test_api_server_lets_a_service_account_do_what_its_role_says_and_audits_it(api_server: ApiServer) -> None:
    token = api_server.service_account("parts-rbac", "reader")
    with pytest.raises(urllib.error.HTTPError) as refused:
        api_server.request("GET", "/api/v1/namespaces/parts-rbac/configmaps", token=token)
    assert refused.value.code == 403
    refused.value.close()
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "reader", "namespace": "parts-rbac"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "reader", "namespace": "parts-rbac"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "parts-rbac"}],
    }
    assert "serverside-applied" in api_server.apply([role, binding])
    assert api_server.request("GET", "/api/v1/namespaces/parts-rbac/configmaps", token=token)["items"] == []
    decisions = [
        (event["responseStatus"]["code"], event["annotations"]["authorization.k8s.io/decision"])
        for event in api_server.audit("system:serviceaccount:parts-rbac:reader")
    ]
    assert decisions == [(403, "forbid"), (200, "allow")]


@API_SERVER
def test_a_watch_from_before_a_compaction_is_answered_410(api_server: ApiServer) -> None:
    old = api_server.request("GET", "/api/v1/namespaces/default/configmaps")["metadata"]["resourceVersion"]
    for turn in range(3):
        body = {"metadata": {"name": f"parts-compaction-{turn}"}}
        api_server.request("POST", "/api/v1/namespaces/default/configmaps", body)
    path = f"/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&resourceVersion={old}"
    api_server.compact()
    event = api_server.request("GET", path)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


@API_SERVER
def test_api_server_survives_a_restart_with_its_objects(api_server: ApiServer) -> None:
    api_server.request("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "parts-restart"}})
    api_server.stop_server()
    assert not listens(api_server.port)
    api_server.start_server()
    found = api_server.request("GET", "/api/v1/namespaces/default/configmaps/parts-restart")
    assert found["metadata"]["name"] == "parts-restart"


def test_the_tiny_models_tokenizer_writes_a_byte_as_a_token(tmp_path: pathlib.Path) -> None:
    tiny_model.write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert config["vocab_size"] == len(vocabulary) == 259
    # As GPT-2 writes them: printable bytes stand for themselves, a space is U+0120, a line feed U+010A.
    assert [vocabulary[character] for character in "Az~\u0120\u010a\u00ff"] == [*b"Az~ \n", 255]
