"""What a security review asks, over every values file: no privilege, no more rights than the features in use need."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART, Helm, named_values, of_kind

READ_ONLY_HOST_PATHS = {"/sys", "/var/lib/kubelet/pod-resources"}


def pod_specs(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Component to its pod's spec."""
    return {
        manifest["metadata"]["labels"]["app.kubernetes.io/component"]: manifest["spec"]["template"]["spec"]
        for manifest in of_kind(manifests, "DaemonSet") + of_kind(manifests, "Deployment")
    }


def rules(manifests: list[dict[str, Any]], component: str) -> list[tuple[str, dict[str, Any]]]:
    """(kind of role, rule) of everything that is granted to a component."""
    return [
        (manifest["kind"], rule)
        for kind in ("ClusterRole", "Role")
        for manifest in of_kind(manifests, kind)
        if manifest["metadata"]["labels"]["app.kubernetes.io/component"] == component
        for rule in manifest["rules"]
    ]


@pytest.mark.parametrize("values", named_values())
def test_no_pod_has_any_privilege(helm4: Helm, values: str) -> None:
    for component, spec in pod_specs(helm4.template(values)).items():
        for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            assert not spec.get(field)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert not security.get("privileged")
            assert all("hostPort" not in port for port in container["ports"])
            mounts = {mount["name"]: mount for mount in container.get("volumeMounts", [])}
            for volume in spec.get("volumes", []):
                if "hostPath" in volume:
                    assert component == "exporter"
                    assert volume["hostPath"]["path"] in READ_ONLY_HOST_PATHS
                    assert mounts[volume["name"]]["readOnly"] is True


@pytest.mark.parametrize("values", named_values())
def test_root_only_where_the_kubelets_socket_is_used(helm4: Helm, values: str) -> None:
    for spec in pod_specs(helm4.template(values)).values():
        socket = any(volume["name"] == "pod-resources" for volume in spec.get("volumes", []))
        assert (spec["securityContext"].get("runAsUser") == 0) is socket
        assert spec["securityContext"]["runAsNonRoot"] is not socket


def test_a_token_only_where_the_api_is_used(helm4: Helm) -> None:
    def token(component: str, *values: str) -> bool:
        return bool(pod_specs(helm4.template(*values))[component]["automountServiceAccountToken"])

    assert token("exporter", "defaults")
    assert not token("exporter", "static-discovery")
    assert not token("exporter", "minimal")
    assert not token("server", "server-memory")
    assert not token("server", "server-redis")
    assert token("server", "everything")


def test_no_rights_without_a_feature_that_uses_them(helm4: Helm) -> None:
    assert rules(helm4.template("minimal"), "exporter") == []
    assert rules(helm4.template("own-accounts"), "operator") == []
    assert rules(helm4.template("server-redis"), "server") == []
    kinds = {
        resource: kind for kind, rule in rules(helm4.template("everything"), "server") for resource in rule["resources"]
    }
    assert kinds.pop("tokenreviews") == "ClusterRole"
    assert set(kinds.values()) == {"Role"}


@pytest.mark.parametrize("values", named_values())
def test_rights_name_what_they_are_for(helm4: Helm, values: str) -> None:
    manifests = helm4.template(values)
    for component in ("exporter", "operator", "server"):
        for _, rule in rules(manifests, component):
            granted = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert "*" not in granted
            assert "secrets" not in granted
            assert granted.isdisjoint({"escalate", "bind", "impersonate", "update", "deletecollection"})


def test_only_what_is_cluster_scoped_is_granted_cluster_wide(helm4: Helm) -> None:
    granted = {
        r
        for kind, rule in rules(helm4.template("everything"), "operator")
        if kind == "ClusterRole"
        for r in rule["resources"]
    }
    assert granted == {"sourceloadpolicies", "sourceloadpolicies/status", "customresourcedefinitions"}


def test_the_first_policys_namespace_is_granted_for_what_it_does(helm4: Helm) -> None:
    def objects(*values: str) -> list[tuple[str, list[str]]]:
        policy = ["--set=policy.spec.server.address=mx:8001", "--set=policy.spec.prometheus.url=http://p"]
        further = [f"--set=policy.spec.server.{value}" for value in values]
        return [
            (role["metadata"]["namespace"], sorted(r for rule in role["rules"] for r in rule["resources"]))
            for role in of_kind(helm4.template(arguments=[*policy, *further]), "Role")
            if role["metadata"]["name"].endswith("-objects")
        ]

    assert objects() == []
    assert objects("namespace=mx") == [("mx", ["modelmetadatas"])]
    assert objects("namespace=mx", "writer=kubernetes") == [("mx", ["modelmetadatas", "modelmetadatas/status"])]


def test_the_servers_token_is_for_the_server_alone(helm4: Helm) -> None:
    volumes = {v["name"]: v for v in pod_specs(helm4.template("everything"))["operator"]["volumes"]}
    projected = volumes["server-token"]["projected"]["sources"]
    assert projected == [
        {"serviceAccountToken": {"path": "modelexpress", "audience": "modelexpress", "expirationSeconds": 3600}}
    ]


def test_network_policies_close_what_is_not_used(helm4: Helm) -> None:
    policies = {
        p["metadata"]["labels"]["app.kubernetes.io/component"]: p["spec"]
        for p in of_kind(helm4.template("everything"), "NetworkPolicy")
    }
    assert set(policies) == {"exporter", "operator", "server"}
    assert policies["operator"]["policyTypes"] == ["Ingress", "Egress"]
    allowed = {port["port"] for rule in policies["operator"]["egress"] for port in rule["ports"]}
    assert allowed == {53, 443, 6443, 8001, 9090}
    assert policies["exporter"]["ingress"][0]["from"]
    assert [p["port"] for p in policies["exporter"]["ingress"][0]["ports"]] == [9500]


def test_a_namespace_for_the_exporter_says_which_level_it_needs(helm4: Helm) -> None:
    namespace = of_kind(helm4.template("everything"), "Namespace")[0]
    assert namespace["metadata"]["name"] == "mx-exporter"
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert of_kind(helm4.template("two-namespaces"), "Namespace") == []
    assert of_kind(helm4.template("two-namespaces"), "DaemonSet")[0]["metadata"]["namespace"] == "node-agents"


def test_the_rights_are_those_of_the_rule_lists(helm4: Helm) -> None:
    lists = {path.stem: yaml.safe_load(path.read_text()) for path in (CHART / "rbac").glob("*.yaml")}
    manifests = helm4.template("everything")
    for component, features in lists.items():
        granted = [rule for _, rule in rules(manifests, component)]
        for feature in features.values():
            for rule in feature:
                assert rule in granted


def test_users_are_the_clusters_where_the_values_say_so(helm: Helm) -> None:
    for spec in pod_specs(helm.template("openshift")).values():
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
