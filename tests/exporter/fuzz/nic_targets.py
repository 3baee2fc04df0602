"""What fuzzers throw bytes at on the NIC side, in the configuration and at the kubelet's answers.

Each function takes any bytes and checks its laws: no crash, no number that no file said, no utilization outside [0, 1].
`TARGETS` names them for the runner; hypothesis drives the same functions in the tests.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import logging
import math
import pathlib
import tempfile
from collections.abc import Callable, Iterator

from mx_exporter.access import AuthSettings, Gate
from mx_exporter.config import OPTIONS, Settings, settings
from mx_exporter.errors import ConfigurationError
from mx_exporter.mapping import allocations
from mx_exporter.model import Direction, PortStatus
from mx_exporter.nics.sampler import NicSampler
from mx_exporter.nics.sysfs import Tree, UnreadableError
from mx_exporter.nics.tracks import Timing
from mx_exporter.nics.values import parse_count, parse_rate, parse_state

_PORT = "class/infiniband/mlx5_0/ports/1"
_PCI = ("devices", "pci0000:16", "0000:16:01.0", "0000:1b:00.0")
#: Files whose contents are the fuzzer's, in the order in which its bytes name them.
FILES = (
    f"{_PORT}/state",
    f"{_PORT}/rate",
    f"{_PORT}/counters/port_xmit_data",
    f"{_PORT}/counters/port_rcv_data",
    f"{_PORT}/counters_ext/port_xmit_data_64",
    f"{_PORT}/hw_counters/tx_bytes",
    f"{_PORT}/hw_counters/rx_bytes",
    f"{_PORT}/hw_counters/ip4OutOctets",
    f"{_PORT}/link_layer",
    f"{_PORT}/gid_attrs/ndevs/0",
    "class/infiniband/mlx5_0/node_guid",
    "class/infiniband/mlx5_0/device/numa_node",
    "class/net/eth0/speed",
    "class/net/bond0/bonding/slaves",
    "class/net/eth0/bonding_slave/mii_status",
    "class/net/eth0/bonding_slave/state",
)
_REASONS = ("missing", "invalid_argument", "denied", "unsupported", "gone", "io_error", "timeout")
_WORDS_FILES = tuple(file for file in FILES if "/counters" in file)


class Memory(Tree):
    """A tree in memory: one port of one device on PCI, whose interface is in a bond."""

    def __init__(self) -> None:
        super().__init__("")
        self.files: dict[str, str] = {
            f"{_PORT}/state": "4: ACTIVE",
            f"{_PORT}/rate": "400 Gb/sec (4X NDR)",
            f"{_PORT}/counters/port_xmit_data": "0",
            f"{_PORT}/counters/port_rcv_data": "0",
        }

    def read(self, path: str) -> str:
        text = self.files.get(path)
        if text is None:
            raise UnreadableError("missing")
        if text.startswith("\0"):
            raise UnreadableError(_REASONS[len(text) % len(_REASONS)])
        return text.strip()

    def names(self, path: str) -> tuple[str, ...]:
        found = {file[len(path) + 1 :].split("/")[0] for file in self.files if file.startswith(path + "/")}
        if path.endswith("device/net"):
            found.add("eth0")
        if not found:
            raise UnreadableError("missing")
        return tuple(sorted(found))

    def exists(self, path: str) -> bool:
        return path in self.files or any(file.startswith(path + "/") for file in self.files)

    def target(self, path: str) -> tuple[str, ...]:
        links = {
            "class/infiniband/mlx5_0/device": _PCI,
            "class/net/eth0/device": _PCI,
            "class/net/eth0/master": ("devices", "virtual", "net", "bond0"),
        }
        return links.get(path, ())

    def inode(self, path: str) -> int | None:
        return 7 if self.exists(path) else None


def tree(data: bytes) -> None:
    """Ticks over a tree whose files the bytes write: lines of a file's number (one byte), `+` for a tick, or text."""
    memory, now = Memory(), [1000.0]
    sampler = NicSampler(memory, Timing(), lambda: now[0], patience=None)
    with _silence():
        for line in _lines(data):
            if line.startswith(b"+"):
                now[0] += len(line) / 2
                for status in sampler.tick().statuses.values():
                    _check(status, memory)
            elif line:
                memory.files[FILES[line[0] % len(FILES)]] = line[1:].decode("utf-8", "replace")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What the exporter says of bad files would be most of a fuzzer's work."""
    logger = logging.getLogger("mx_exporter")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _lines(data: bytes) -> Iterator[bytes]:
    yield from data.split(b"\n")[:40]
    yield from (b"++", b"++")


def _check(status: PortStatus, memory: Memory) -> None:
    """What a status says is what the files said."""
    for direction in Direction:
        flow = status.flow(direction)
        for share in (flow.utilization, flow.peak):
            assert share is None or 0.0 <= share <= 1.0
        assert (flow.utilization is None) == (flow.reason is not None)
        assert flow.rate is None or (flow.rate >= 0 and math.isfinite(flow.rate))
        if flow.utilization is not None:
            assert status.up is True
            assert memory.files[f"{_PORT}/state"].strip().startswith("4:")
            assert status.limit is not None
            assert status.limit > 0
        if flow.total is not None:
            assert flow.total in _counts(memory)


def _counts(memory: Memory) -> set[int]:
    """Every byte count that a counter file of the tree can mean."""
    found = set()
    for file, text in memory.files.items():
        digits = text.strip()
        if "counters" in file and digits.isascii() and digits.isdigit():
            found |= {int(digits), int(digits) * 4}
    return found


def value(data: bytes) -> None:
    """One file's text."""
    text = data.decode("ascii", "replace").strip()
    rate = parse_rate(text)
    assert rate is None or (0 < rate[0] < 1e16 and text.startswith(("0", *"123456789")))
    assert parse_state(text) in (True, False, None)
    count = parse_count(text)
    assert isinstance(count, str) or (0 <= count < 2**64 and int(text) == count)


def config_file(data: bytes) -> None:
    """A configuration file: settings within their bounds, or one line that says what is wrong."""
    try:
        got = _settings(data.decode("utf-8", "replace"))
    except ConfigurationError as error:
        said = str(error)
    else:
        said = ""
        assert 0.1 <= got.timing.interval <= got.timing.window <= 600
        assert all(0 < limit < 1e16 for _, limit in got.limits.by_device)
        assert all(isinstance(text, str) for pair in got.resource for text in pair)
    assert "\n" not in said
    assert len(said) < 700


def _settings(text: str) -> Settings:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        flags = dict.fromkeys(option.name.replace("-", "_") for option in OPTIONS)
        return settings(argparse.Namespace(config=file.name, **flags), {})


def pod_resources(data: bytes) -> None:
    """A kubelet's answer: allocations, or a ValueError."""
    try:
        found = allocations.parse(data)
    except ValueError:
        return
    for (namespace, name), allocation in found.items():
        assert isinstance(namespace + name, str)
        assert allocation.addresses or allocation.gpus


_LOGINS = pathlib.Path(__file__).parent / "logins"


def login(data: bytes) -> None:
    """An Authorization header: only the one login and the one token open the page."""
    header = data.decode("latin-1")
    kind, _, rest = header.partition(" ")
    opened = _GATE.allows(header)
    if opened and kind.lower() == "bearer":
        assert rest.strip() == "a-token-of-a-test"
    elif opened:
        assert kind.lower() == "basic"
        assert base64.b64decode(rest.strip()) == b"user:a-password-of-a-test"


_GATE = Gate(AuthSettings(_LOGINS / "users", _LOGINS / "token"))

TARGETS: dict[str, Callable[[bytes], None]] = {
    "tree": tree,
    "value": value,
    "config_file": config_file,
    "pod_resources": pod_resources,
    "login": login,
}
