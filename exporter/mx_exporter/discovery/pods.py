"""From a pod, as the API server shows it, to a source: pure decisions.

A pod is a source when it runs and asks for an accelerator, or says itself where its metrics are. Of a pod's own words
count four annotations, which choose among the pod's own ports and nothing beyond them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mx_exporter.discovery import endpoints
from mx_exporter.model import Endpoint, Pod, Source

PREFIX = "sourceload.dev/"
_KNOWN = frozenset({"port", "path", "scheme", "ignore"})

#: Resources that make a pod a source: what serves weights holds an accelerator or an RDMA device.
_ACCELERATORS = (
    "nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/", "habana.ai/gaudi", "google.com/tpu",
    "aws.amazon.com/neuron", "huawei.com/ascend", "rdma/",
)  # fmt: skip
#: vLLM and trtllm-serve, Triton's metrics, Ray's, Dynamo's, vLLM behind a sidecar, LMDeploy's, SGLang's.
_ENGINE_PORTS = frozenset({8000, 8002, 8080, 8081, 8200, 9090, 23333, 30000})
_TALKS_HTTP = re.compile(r"http|metric|prom|api|openai|serv|web|llm|sglang|engine")
#: Where an engine listens that nobody declared a port for.
_DEFAULT_PORTS = (8000, 30000)
_MAX_ENDPOINTS = 8
_PORT_ARGUMENT = re.compile(r"(?:^|\s)--port(?:=|\s+)([0-9]{1,5})(?:\s|$)")
_NIC = re.compile(r"[A-Za-z0-9_.-]+(?::[0-9]+)?\Z")


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What a pod is to us: a source or none, and what its owner should hear."""

    source: Source | None
    complaints: tuple[str, ...] = ()


def found(pod: Mapping[str, Any], node: str, selected: bool) -> Found:
    """Decide about one pod.

    Args:
        pod: The object, as JSON; odd parts count as absent.
        node: The node we are on; other nodes' pods are nothing to us.
        selected: Whether a selector chose the pods already, so that any running one counts.

    Returns:
        Its source, if it is one.
    """
    annotations = _own_annotations(pod)
    identity = _identity(pod)
    if identity is None or _text(pod, "spec", "nodeName") != node or annotations.get("ignore", "").lower() == "true":
        return Found(None)
    if not (selected or "port" in annotations or _wants_accelerator(pod)):
        return Found(None)
    complaints = [f"annotation {PREFIX + name[:63]!r} is not known" for name in sorted(annotations.keys() - _KNOWN)]
    try:
        own = tuple(_endpoints(pod, annotations))
    except ValueError as error:
        own = ()
        complaints.append(f"annotations {PREFIX}*: {error}; nothing is scraped there")
    source = Source(identity, own[:_MAX_ENDPOINTS], _nics(pod, "UCX_NET_DEVICES"), _pins(pod))
    return Found(source, tuple(complaints))


def uid(pod: Mapping[str, Any]) -> str:
    """What tells a pod from every other one, earlier ones of its name too."""
    return _text(pod, "metadata", "uid")


def _identity(pod: Mapping[str, Any]) -> Pod | None:
    """Who it is, while it runs: a pod that has ended keeps showing its address, which another pod has by then."""
    ip = _text(pod, "status", "podIP")
    if _text(pod, "status", "phase") != "Running" or not ip:
        return None
    try:
        ip = endpoints.pod_address(ip)
    except ValueError:
        return None
    return Pod(_text(pod, "metadata", "namespace"), _text(pod, "metadata", "name"), uid(pod), ip)


def _own_annotations(pod: Mapping[str, Any]) -> dict[str, str]:
    all_of_them = _at(pod, "metadata", "annotations")
    return {
        name.removeprefix(PREFIX): value.strip()
        for name, value in _pairs(all_of_them)
        if name.startswith(PREFIX) and isinstance(value, str)
    }


def _endpoints(pod: Mapping[str, Any], annotations: Mapping[str, str]) -> Iterator[Endpoint]:
    path, scheme = annotations.get("path"), annotations.get("scheme")
    ports = _numbers(annotations["port"]) if "port" in annotations else _declared(pod)
    for number, own_scheme in ports.items():
        yield endpoints.endpoint(number, path, scheme or own_scheme)


def _numbers(text: str) -> dict[int, str | None]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 5 for part in parts):
        raise ValueError(f"port must be a number or several with commas, not {text[:80]!r}")
    return {int(part): None for part in parts}


def _declared(pod: Mapping[str, Any]) -> dict[int, str | None]:
    """Ports that speak of themselves as HTTP, or that an engine is known to use, or that it is told to use."""
    declared = [port for container in _containers(pod) for port in _list(container, "ports") if _is_tcp(port)]
    chosen = {port["containerPort"]: _scheme(port) for port in declared if _talks_http(port)}
    for container in _containers(pod):
        for number in _told(container):
            chosen.setdefault(number, None)
    if not chosen and not declared and _at(pod, "spec", "hostNetwork") is not True:
        return dict.fromkeys(_DEFAULT_PORTS)
    return chosen


def _is_tcp(port: Any) -> bool:
    number = _at(port, "containerPort")
    return type(number) is int and 1 <= number <= 65535 and _at(port, "protocol") in (None, "TCP")


def _talks_http(port: Mapping[str, Any]) -> bool:
    return port["containerPort"] in _ENGINE_PORTS or bool(_TALKS_HTTP.search(_text(port, "name")))


def _scheme(port: Mapping[str, Any]) -> str | None:
    return "https" if _text(port, "name").startswith("https") else None


def _told(container: Mapping[str, Any]) -> Iterator[int]:
    words = [word for key in ("command", "args") for word in _list(container, key) if isinstance(word, str)]
    texts = [match[1] for match in _PORT_ARGUMENT.finditer(" ".join(words))] + [_env(container, "DYN_SYSTEM_PORT")]
    for text in texts:
        if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= 65535:
            yield int(text)


def _wants_accelerator(pod: Mapping[str, Any]) -> bool:
    if _list(_at(pod, "spec"), "resourceClaims"):
        return True
    return any(
        name.startswith(_ACCELERATORS)
        for container in _containers(pod)
        for kind in ("limits", "requests")
        for name, _ in _pairs(_at(container, "resources", kind))
    )


def _nics(pod: Mapping[str, Any], variable: str) -> tuple[str, ...]:
    """The devices that a variable of the environment lists; none where it chooses in another way (all, ^, auto)."""
    for container in _containers(pod):
        names = [name.strip() for name in _env(container, variable).split(",") if name.strip()]
        if names and names != ["all"] and all(_NIC.match(name) for name in names):
            return tuple(names)
    return ()


def _pins(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """MX's pins, one for each GPU. A single word (auto, 1, off) is no list: MX looks for a comma, and so do we."""
    names = _nics(pod, "MX_RDMA_NIC_PIN")
    return names if len(names) > 1 else ()


def _env(container: Mapping[str, Any], name: str) -> str:
    """The value of a variable that the pod's own text spells out; others cannot be known from here."""
    return next((_text(entry, "value") for entry in _list(container, "env") if _at(entry, "name") == name), "")


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for container in _list(_at(pod, "spec"), "containers"):
        if isinstance(container, dict):
            yield container


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _text(value: Any, *keys: str) -> str:
    found = _at(value, *keys)
    return found if isinstance(found, str) else ""


def _list(value: Any, key: str) -> list[Any]:
    found = _at(value, key)
    return found if isinstance(found, list) else []


def _pairs(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((name, inner) for name, inner in value.items() if isinstance(name, str))
