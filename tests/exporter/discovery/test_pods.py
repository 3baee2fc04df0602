"""Which pods are sources and which of their ports are read, from the pod as the API server shows it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.discovery import pods
from mx_exporter.model import Endpoint, Pod, Source

NODE = "node-a"


def pod(*containers: dict[str, Any], annotations: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    found = list(containers) or [{}]
    found[0].setdefault("resources", {"limits": {"nvidia.com/gpu": "8"}})
    return {
        "metadata": {"namespace": "n", "name": "p", "uid": "u", "annotations": annotations or {}},
        "spec": {"nodeName": NODE, "containers": found, **spec},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }


def source(given: dict[str, Any], selected: bool = False) -> Source | None:
    return pods.found(given, NODE, selected).source


def ports(given: dict[str, Any]) -> list[tuple[int, str | None, str]]:
    found = source(given)
    assert found is not None
    return [(endpoint.port, endpoint.path, endpoint.scheme) for endpoint in found.endpoints]


def port(number: int, name: str = "", protocol: str | None = None) -> dict[str, Any]:
    return {"containerPort": number} | ({"name": name} if name else {}) | ({"protocol": protocol} if protocol else {})


def test_a_running_pod_with_a_gpu() -> None:
    given = pod({"ports": [port(8000)], "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    assert source(given) == Source(Pod("n", "p", "u", "10.0.0.1"), (Endpoint(8000),))


@pytest.mark.parametrize(
    "resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "amd.com/gpu", "rdma/hca_shared"]
)
def test_what_makes_a_pod_a_source(resource: str) -> None:
    assert source(pod({}, {"resources": {"requests": {resource: "1"}}}))


def test_a_claim_of_dynamic_resources_makes_one_too() -> None:
    assert source(pod({"resources": {}}, resourceClaims=[{"name": "gpu", "resourceClaimName": "one"}]))


def test_others_are_none_unless_they_are_chosen_or_say_so() -> None:
    web = pod({"resources": {"limits": {"cpu": "1"}}, "ports": [port(8080)]})
    assert source(web) is None
    assert source(web, selected=True)
    web["metadata"]["annotations"] = {"sourceload.dev/port": "8080"}
    assert source(web)


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed", "Unknown", ""])
def test_a_pod_that_does_not_run_keeps_its_address_and_is_no_source(phase: str) -> None:
    given = pod()
    given["status"]["phase"] = phase
    assert source(given) is None


@pytest.mark.parametrize(
    "ip",
    [
        "",
        "127.0.0.1",
        "169.254.169.254",
        "::1",
        "fe80::1",
        "0.0.0.0",
        "224.0.0.1",
        "host",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0.0.0.0",
        "2001:db8::1%eth0",
    ],
)
def test_an_address_that_leads_elsewhere_is_none(ip: str) -> None:
    given = pod()
    given["status"]["podIP"] = ip
    assert source(given) is None


def test_an_address_of_version_6() -> None:
    given = pod()
    given["status"]["podIP"] = "FD00:0::7"
    found = source(given)
    assert found
    assert found.pod.ip == "fd00::7"


def test_another_nodes_pod_is_nothing_to_us() -> None:
    assert pods.found(pod(), "node-b", False) == pods.Found(None)


class TestPorts:
    def test_declared_ones_that_speak_http_or_are_an_engines(self) -> None:
        given = pod(
            {"ports": [port(8000), port(29500, "nccl"), port(5555), port(9000, "metrics"), port(8443, "https-api")]},
            {"ports": [port(30000), port(8081, protocol="UDP"), port(7777, "prom")]},
        )
        assert [number for number, _, _ in ports(given)] == [8000, 9000, 8443, 30000, 7777]
        assert [scheme for _, _, scheme in ports(given)] == ["http", "http", "https", "http", "http"]

    def test_none_is_guessed_where_others_are_declared(self) -> None:
        assert ports(pod({"ports": [port(29500, "nccl")]})) == []

    def test_the_usual_ones_where_none_is_declared(self) -> None:
        assert [number for number, _, _ in ports(pod())] == [8000, 30000]

    def test_none_is_guessed_on_the_nodes_own_address(self) -> None:
        assert ports(pod(hostNetwork=True)) == []
        assert [number for number, _, _ in ports(pod({"ports": [port(8000)]}, hostNetwork=True))] == [8000]

    @pytest.mark.parametrize(
        ("command", "args", "expected"),
        [
            ([], ["--model", "m", "--port", "9123"], [9123]),
            (["vllm", "serve", "m", "--port=9123"], [], [9123]),
            (["sh", "-c", "exec vllm serve m --port 9123 --api-key x"], [], [9123]),
            ([], ["--nccl-port", "9123"], [8000, 30000]),
            ([], ["--port", "$(PORT)"], [8000, 30000]),
            ([], ["--port", "99999"], [8000, 30000]),
        ],
    )
    def test_the_one_an_engine_is_told(self, command: list[str], args: list[str], expected: list[int]) -> None:
        assert [number for number, _, _ in ports(pod({"command": command, "args": args}))] == expected

    @pytest.mark.parametrize(("value", "expected"), [("8081", [8081]), ("-1", [8000, 30000]), ("", [8000, 30000])])
    def test_dynamos_system_port(self, value: str, expected: list[int]) -> None:
        given = pod({"env": [{"name": "DYN_SYSTEM_PORT", "value": value}]})
        assert [number for number, _, _ in ports(given)] == expected

    def test_no_more_than_a_few(self) -> None:
        assert len(ports(pod({"ports": [port(9000 + i, "http") for i in range(50)]}))) == 8


class TestAnnotations:
    def test_port_path_and_scheme(self) -> None:
        chosen = {"sourceload.dev/port": " 9000, 9001", "sourceload.dev/path": "/m", "sourceload.dev/scheme": "https"}
        given = pod({"ports": [port(8000)]}, annotations=chosen)
        assert ports(given) == [(9000, "/m", "https"), (9001, "/m", "https")]

    def test_a_path_alone_goes_with_the_ports_that_are_found(self) -> None:
        assert ports(pod({"ports": [port(8000)]}, annotations={"sourceload.dev/path": "/m"})) == [(8000, "/m", "http")]

    @pytest.mark.parametrize("value", ["true", "True", " true "])
    def test_ignore(self, value: str) -> None:
        assert source(pod(annotations={"sourceload.dev/ignore": value, "sourceload.dev/port": "1"})) is None

    @pytest.mark.parametrize("value", ["false", "", "yes"])
    def test_ignore_is_nothing_else(self, value: str) -> None:
        assert source(pod(annotations={"sourceload.dev/ignore": value}))

    @pytest.mark.parametrize(
        "chosen",
        [
            {"port": "http"}, {"port": "0"}, {"port": "65536"}, {"port": "-1"}, {"port": ""}, {"port": "٣"},
            {"port": "1" * 10_000}, {"path": "metrics"}, {"path": "//evil.example/x\r\nHost: y"}, {"path": "/a?b=c"},
            {"path": "/a#b"}, {"path": "http://evil.example/"}, {"path": "/" + "a" * 300}, {"scheme": "file"},
            {"scheme": "HTTPS"}, {"path": "/a b"}, {"path": "/\nx"},
        ],
    )  # fmt: skip
    def test_what_is_out_of_bounds_leaves_nothing_to_scrape_and_is_said(self, chosen: dict[str, str]) -> None:
        given = pod(
            {"ports": [port(8000)]}, annotations={f"sourceload.dev/{key}": text for key, text in chosen.items()}
        )
        found = pods.found(given, NODE, False)
        assert found.source
        assert found.source.endpoints == ()
        (complaint,) = found.complaints
        assert complaint.startswith("annotations sourceload.dev/*: ")
        assert len(complaint) < 250
        assert "\n" not in complaint

    def test_nothing_else_is_chosen_by_a_pod(self) -> None:
        """No host, no NICs, no other pod's identity, and nothing of the annotations that others read."""
        more = {
            "sourceload.dev/host": "10.9.9.9",
            "sourceload.dev/nics": "mlx5_7",
            "prometheus.io/port": "1234",
            "prometheus.io/path": "/x",
        }
        plain, annotated = pod({"ports": [port(8000)]}), pod({"ports": [port(8000)]}, annotations=more)
        assert source(annotated) == source(plain)
        assert pods.found(annotated, NODE, False).complaints == (
            "annotation 'sourceload.dev/host' is not known",
            "annotation 'sourceload.dev/nics' is not known",
        )


class TestNics:
    @pytest.mark.parametrize(
        ("env", "expected"),
        [
            ({"UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1"}, ("mlx5_0:1", "mlx5_1:1")),
            ({"UCX_NET_DEVICES": " mlx5_0 , mlx5_1:1 "}, ("mlx5_0", "mlx5_1:1")),
            ({"UCX_NET_DEVICES": "all"}, ()),
            ({"UCX_NET_DEVICES": "^mlx5_0"}, ()),
            ({"UCX_NET_DEVICES": ""}, ()),
        ],
    )
    def test_what_the_environment_names(self, env: dict[str, str], expected: tuple[str, ...]) -> None:
        found = source(pod({"env": [{"name": name, "value": value} for name, value in env.items()]}))
        assert found
        assert found.nic_devices == expected

    @pytest.mark.parametrize(
        ("pin", "expected"),
        [("mlx5_3,mlx5_4:1", ("mlx5_3", "mlx5_4:1")), ("auto", ()), ("1", ()), ("off", ()), ("mlx5_0", ()), ("", ())],
    )
    def test_pins_are_one_for_each_gpu(self, pin: str, expected: tuple[str, ...]) -> None:
        env = [{"name": "MX_RDMA_NIC_PIN", "value": pin}, {"name": "UCX_NET_DEVICES", "value": "mlx5_9"}]
        found = source(pod({"env": env}))
        assert found
        assert (found.nic_pins, found.nic_devices) == (expected, ("mlx5_9",))

    def test_a_value_from_elsewhere_is_not_known(self) -> None:
        found = source(pod({"env": [{"name": "UCX_NET_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}))
        assert found
        assert found.nic_devices == ()


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FULL = pod(
    {
        "ports": [port(8000, "http", "TCP")],
        "env": [{"name": "UCX_NET_DEVICES", "value": "mlx5_0"}],
        "command": ["vllm"],
        "args": ["--port", "1"],
    },
    annotations={"sourceload.dev/path": "/m"},
    resourceClaims=[{"name": "x"}],
    hostNetwork=True,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, one in inner for found in places(one, (*path, key)))]


@given(st.sampled_from(places(FULL)[1:]), json)
def test_no_odd_part_of_a_pod_breaks_anything(place: tuple[Any, ...], odd: Any) -> None:
    given = copy.deepcopy(FULL)
    holder = given
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = odd
    found = pods.found(given, NODE, False).source
    if found is not None:
        assert all(1 <= endpoint.port <= 65535 for endpoint in found.endpoints)
