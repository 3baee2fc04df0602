"""The file of static sources: text to values, nothing else.

sources:
  - pod: {namespace: serving, name: llama-0, uid: 6f1c..., ip: 10.0.0.5}
    endpoints: [{port: 8000, path: /metrics, scheme: http}]
    nics: [mlx5_0]
    gpus: [{index: 0, uuid: GPU-..., pci_address: "0000:1b:00.0"}]
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from mx_exporter.discovery import endpoints
from mx_exporter.documents import Section
from mx_exporter.model import Endpoint, Gpu, Pod, Source

_T = TypeVar("_T")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_NIC = re.compile(r"[A-Za-z0-9_.-]+(?::[0-9]+)?\Z")


def parse(text: str, name: str) -> tuple[Source, ...]:
    """Read the file.

    Args:
        text: YAML.
        name: What to call the file in a complaint.

    Returns:
        The sources, ordered by pod.

    Raises:
        ConfigurationError: The file does not say what it should; one line says where and what is wanted.
    """
    body = Section.document(text, name)
    sources = [_source(entry) for entry in body.sections("sources")]
    _once(body, "sources", (source.pod for source in sources), lambda pod: f"pod {pod.namespace}/{pod.name}")
    body.finish()
    return tuple(sorted(sources, key=lambda source: source.pod))


def _source(body: Section) -> Source:
    pod = body.section("pod")
    if pod is None:
        body.fail("say whose source it is: {namespace, name, uid, ip}", "pod")
    source = Source(
        pod=_pod(pod),
        endpoints=tuple(_endpoint(entry) for entry in body.sections("endpoints")),
        nic_devices=body.texts("nics"),
        gpus=tuple(_gpu(entry) for entry in body.sections("gpus")),
    )
    for nic in source.nic_devices:
        if not _NIC.match(nic):
            body.fail(f"{nic!r} is neither a device (mlx5_0) nor a port of one (mlx5_0:1)", "nics")
    _once(body, "endpoints", (e.port for e in source.endpoints), lambda port: f"port {port}")
    _once(body, "gpus", (gpu.index for gpu in source.gpus), lambda index: f"index {index}")
    body.finish()
    return source


def _pod(body: Section) -> Pod:
    name = body.text("name")
    if name is None:
        body.fail("give the pod a name", "name")
    ip = _checked(body, lambda: endpoints.address(body.text("ip") or ""))
    pod = Pod(body.text("namespace") or "", name, body.text("uid") or "", ip)
    body.finish()
    return pod


def _endpoint(body: Section) -> Endpoint:
    port, path, scheme = body.take("port", int, 0), body.text("path"), body.text("scheme")
    body.finish()
    return _checked(body, lambda: endpoints.endpoint(port, path, scheme))


def _gpu(body: Section) -> Gpu:
    index = body.take("index", int, -1)
    if index < 0:
        body.fail("must be the GPU's number inside the container, from 0", "index")
    address = (body.text("pci_address") or "").lower()
    if address and not _PCI_ADDRESS.match(address):
        body.fail('must look like "0000:1b:00.0"', "pci_address")
    gpu = Gpu(index, body.text("uuid"), address or None)
    body.finish()
    return gpu


def _checked(body: Section, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except ValueError as error:
        body.fail(str(error))


def _once(body: Section, key: str, values: Iterable[_T], say: Callable[[_T], str]) -> None:
    seen: set[Hashable] = set()
    for value in values:
        if value in seen:
            body.fail(f"{say(value)} appears twice: keep one", key)
        seen.add(value)
