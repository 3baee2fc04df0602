"""The static file: what it may say, how a mistake is said, and what becomes of a change."""

from __future__ import annotations

import pathlib
import time

import pytest

from mx_exporter.discovery import sources_file
from mx_exporter.discovery.static import StaticDiscovery
from mx_exporter.errors import ConfigurationError
from mx_exporter.model import Endpoint, Gpu, Pod, Source
from tests.exporter.looking import Clock

FULL = """
sources:
  - pod: {namespace: serving, name: b, uid: 6f1c, ip: "10.0.0.5"}
    endpoints: [{port: 8000}, {port: 8001, path: /m, scheme: https}]
    nics: [mlx5_0, "mlx5_1:1"]
    gpus: [{index: 0, uuid: GPU-1, pci_address: "0000:1B:00.0"}, {index: 1}]
  - pod: {name: a, ip: "FD00:0::1"}
"""


def test_what_a_file_says() -> None:
    assert sources_file.parse(FULL, "f") == (
        Source(Pod("", "a", "", "fd00::1")),
        Source(
            Pod("serving", "b", "6f1c", "10.0.0.5"),
            (Endpoint(8000), Endpoint(8001, "/m", "https")),
            ("mlx5_0", "mlx5_1:1"),
            gpus=(Gpu(0, "GPU-1", "0000:1b:00.0"), Gpu(1)),
        ),
    )


POD = "pod: {name: a, ip: 10.0.0.1}"
MISTAKES = {
    "": "the document: must be a mapping",
    "sources: [": "line 1: not YAML (",
    "sources: {}": "sources: must be a list",
    "source: []": "source: is not known here: did you mean sources?",
    "sources: [{}]": "sources[0].pod: say whose source it is",
    "sources: [{pod: {ip: 10.0.0.1}}]": "sources[0].pod.name: give the pod a name",
    "sources: [{pod: {name: a}}]": "sources[0].pod: ip must be an IP address, not ''",
    "sources: [{pod: {name: a, ip: localhost}}]": "sources[0].pod: ip must be an IP address, not 'localhost'",
    "sources: [{pod: {name: a, ip: 10.0.0.1, uid: 12}}]": "sources[0].pod.uid: must be text",
    f"sources: [{{{POD}, nic: [a]}}]": "sources[0].nic: is not known here",
    f"sources: [{{{POD}, nics: [a b]}}]": "sources[0].nics: 'a b' is neither a device (mlx5_0) nor a port",
    f"sources: [{{{POD}, endpoints: [{{}}]}}]": "sources[0].endpoints[0]: port must be between 1 and 65535, not 0",
    f"sources: [{{{POD}, endpoints: [{{port: '8000'}}]}}]": "sources[0].endpoints[0].port: must be a whole number",
    f"sources: [{{{POD}, endpoints: [{{port: true}}]}}]": "sources[0].endpoints[0].port: must be a whole number",
    f"sources: [{{{POD}, endpoints: [{{port: 1, path: x}}]}}]": "sources[0].endpoints[0]: path must be a plain path",
    f"sources: [{{{POD}, endpoints: [{{port: 1, scheme: ftp}}]}}]": "sources[0].endpoints[0]: scheme must be http or",
    f"sources: [{{{POD}, endpoints: [{{port: 1}}, {{port: 1}}]}}]": "sources[0].endpoints: port 1 appears twice",
    f"sources: [{{{POD}, gpus: [{{}}]}}]": "sources[0].gpus[0].index: must be the GPU's number",
    f"sources: [{{{POD}, gpus: [{{index: 0, pci_address: 1b}}]}}]": "sources[0].gpus[0].pci_address: must look like",
    f"sources: [{{{POD}, gpus: [{{index: 0}}, {{index: 0}}]}}]": "sources[0].gpus: index 0 appears twice",
    f"sources: [{{{POD}}}, {{{POD}}}]": "sources: pod /a appears twice: keep one",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line_that_says_where(text: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        sources_file.parse(text, "sources.yaml")
    assert str(error.value).startswith(f"sources.yaml: {MISTAKES[text]}")
    assert "\n" not in str(error.value)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "sources.yaml"
    file.write_text("sources: [{pod: {name: a, ip: 10.0.0.1}}]")
    return file


def names(discovery: StaticDiscovery) -> list[str]:
    return [source.pod.name for source in discovery.sources()]


def test_a_change_is_seen_and_a_broken_one_leaves_what_was_known(
    file: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    discovery = StaticDiscovery(file, clock)
    assert discovery.age() is None
    discovery.refresh()
    assert (names(discovery), discovery.age()) == (["a"], 0)
    clock.now += 5
    assert discovery.age() == 5
    discovery.refresh()
    assert discovery.age() == 0
    file.write_text("sources: [{pod: {name: b, ip: 10.0.0.1}}, ")
    for _ in range(3):
        clock.now += 1
        discovery.refresh()
    assert (names(discovery), discovery.age()) == (["a"], 3)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    file.write_text("sources: [{pod: {name: b, ip: 10.0.0.1}}]")
    discovery.refresh()
    assert (names(discovery), discovery.age()) == (["b"], 0)


def test_a_file_that_went_away_and_came_back(file: pathlib.Path) -> None:
    discovery = StaticDiscovery(file, Clock())
    discovery.refresh()
    text = file.read_text()
    file.unlink()
    discovery.refresh()
    assert names(discovery) == ["a"]
    file.write_text(text.replace("name: a", "name: c"))
    discovery.refresh()
    assert names(discovery) == ["c"]


def test_a_mounted_configmap_changes_by_its_link(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sources.yaml").write_text(f"sources: [{{pod: {{name: {name}, ip: 10.0.0.1}}}}]")
    data, file = tmp_path / "..data", tmp_path / "sources.yaml"
    data.symlink_to("a")
    file.symlink_to("..data/sources.yaml")
    discovery = StaticDiscovery(file, Clock())
    discovery.refresh()
    (tmp_path / "new").symlink_to("b")
    (tmp_path / "new").rename(data)
    discovery.refresh()
    assert names(discovery) == ["b"]


def test_the_thread_follows_and_ends(file: pathlib.Path) -> None:
    discovery = StaticDiscovery(file, poll=0.01)
    discovery.start()
    file.write_text("sources: []")
    end = time.monotonic() + 5
    while names(discovery) and time.monotonic() < end:
        time.sleep(0.01)
    assert names(discovery) == []
    discovery.stop()
    assert discovery._thread is not None
    assert not discovery._thread.is_alive()


def test_a_file_that_is_not_there_ends_the_start(tmp_path: pathlib.Path) -> None:
    discovery = StaticDiscovery(tmp_path / "no.yaml")
    with pytest.raises(ConfigurationError, match=r"no\.yaml: No such file or directory: name a file of sources"):
        discovery.start()
    discovery.stop()
