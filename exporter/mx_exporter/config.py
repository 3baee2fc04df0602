"""Flags, environment and file to one frozen `Settings`; every complaint is one line that names the input and the mend.

A flag goes before its environment variable (`--window` is `MX_EXPORTER_WINDOW`), that before the file, that before the
default. What a file alone can say (credentials, limits, scraping in detail) is described in docs/exporter.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mx_exporter.access import AuthSettings, TlsSettings
from mx_exporter.discovery.endpoints import is_url
from mx_exporter.discovery.settings import KubernetesSettings
from mx_exporter.documents import Section, read
from mx_exporter.engines.settings import ScrapeSettings
from mx_exporter.errors import ConfigurationError
from mx_exporter.nics.readings import Limits
from mx_exporter.nics.tracks import Timing
from mx_exporter.nics.values import GIGABIT

_T = TypeVar("_T")
_LARGEST = 10**9  # of whole numbers in the file; Python refuses to print very long ones
DISCOVERIES = ("none", "static", "kubernetes")
PROTOCOLS = ("grpc", "http/protobuf")


@dataclasses.dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Where metrics are pushed to; nothing is pushed without an endpoint."""

    endpoint: str | None = None
    protocol: str = "grpc"
    interval: float = 15.0
    timeout: float = 10.0
    headers_file: pathlib.Path | None = None  # lines of name: value
    ca_file: pathlib.Path | None = None
    cert_file: pathlib.Path | None = None
    key_file: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """All that was asked for."""

    host: str = "127.0.0.1"
    port: int = 9500
    sysfs: pathlib.Path = pathlib.Path("/sys")
    procfs: pathlib.Path = pathlib.Path("/proc")
    timing: Timing = dataclasses.field(default_factory=Timing)
    limits: Limits = dataclasses.field(default_factory=Limits)
    discovery: str = "none"
    sources: pathlib.Path | None = None
    pod_resources: pathlib.Path | None = None
    scrape: ScrapeSettings = dataclasses.field(default_factory=ScrapeSettings)
    kubernetes: KubernetesSettings = dataclasses.field(default_factory=KubernetesSettings)
    tls: TlsSettings = dataclasses.field(default_factory=TlsSettings)
    auth: AuthSettings = dataclasses.field(default_factory=AuthSettings)
    otlp: OtlpSettings = dataclasses.field(default_factory=OtlpSettings)
    resource: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A setting that has a flag, an environment variable and a key in the file."""

    name: str
    metavar: str
    default: str
    help: str

    @property
    def flag(self) -> str:
        """The flag."""
        return "--" + self.name

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "MX_EXPORTER_" + self.name.upper().replace("-", "_")

    @property
    def key(self) -> str:
        """The key in the file."""
        return _camel(self.name.replace("-", "_"))


OPTIONS = (
    Option("listen", "HOST:PORT", "127.0.0.1:9500", "where /metrics, /healthz and /readyz are served"),
    Option("sysfs", "DIR", "/sys", "root of the host's sysfs, all of it (class entries are links)"),
    Option("procfs", "DIR", "/proc", "root of the host's procfs, for /proc/driver/nvidia/gpus"),
    Option("discovery", "KIND", "none", "who knows the sources of this node: none, static or kubernetes"),
    Option("sources", "FILE", "", "the sources file of static discovery; read again when it changes"),
    Option("pod-resources", "SOCKET", "", "the kubelet's pod-resources socket; tells which NICs and GPUs a pod has"),
    Option("window", "SECONDS", "3", "what utilization is averaged over"),
    Option("interval", "SECONDS", "1", "how often ports are sampled"),
    Option("scrape-interval", "SECONDS", "2", "how often engines' pages are read"),
    Option("otlp-endpoint", "URL", "", "where to push metrics, too (also OTEL_EXPORTER_OTLP_ENDPOINT)"),
    Option("otlp-protocol", "NAME", "grpc", "grpc or http/protobuf (also OTEL_EXPORTER_OTLP_PROTOCOL)"),
    Option("cluster", "NAME", "", "resource attribute k8s.cluster.name"),
    Option("node", "NAME", "", "resource attribute k8s.node.name, and whose pods to find (also NODE_NAME)"),
)
# Names that others gave, looked at after our own.
_FOREIGN = {
    "otlp-endpoint": ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    "otlp-protocol": ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
    "node": ("NODE_NAME",),
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """A setting as it was given, and where."""

    text: str
    origin: str  # the flag, the variable, or the file and the key in it with a colon

    def fail(self, mend: str) -> ConfigurationError:
        return ConfigurationError(f"{self.origin} {self.text!r}: {mend}")


def settings(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """All that was asked for, by flags, environment and file.

    Raises:
        ConfigurationError: Some of it cannot be meant.
    """
    path = arguments.config or environ.get("MX_EXPORTER_CONFIG")
    file = Section.document(read(pathlib.Path(path), "a configuration file") if path else "{}", path or "")
    given = {option.name: _given(option, arguments, environ, file) for option in OPTIONS}
    host, port = _address(given["listen"])
    made = Settings(
        host=host,
        port=port,
        sysfs=pathlib.Path(given["sysfs"].text),
        procfs=pathlib.Path(given["procfs"].text),
        timing=_timing(given, file),
        limits=_limits(file),
        discovery=_one_of(given["discovery"], DISCOVERIES),
        sources=_path(given["sources"]),
        pod_resources=_path(given["pod-resources"]),
        scrape=_filled(ScrapeSettings, file, "scrape", interval=_seconds(given["scrape-interval"], 0.1, 3600)),
        kubernetes=_filled(KubernetesSettings, file, "kubernetes", node_name=given["node"].text or None),
        tls=_filled(TlsSettings, file, "tls"),
        auth=_filled(AuthSettings, file, "auth"),
        otlp=_otlp(given, file),
        resource=_resource(given, file),
    )
    file.finish()
    return _checked(made, given)


def _checked(made: Settings, given: Mapping[str, _Given]) -> Settings:
    """What only shows when settings are seen together."""
    if not made.sysfs.is_dir():
        raise given["sysfs"].fail("not a folder: give the root of a sysfs, like /sys or /host/sys")
    if made.discovery == "static" and made.sources is None:
        raise given["discovery"].fail("static discovery needs --sources FILE")
    if made.discovery != "static" and made.sources is not None:
        raise given["sources"].fail("only static discovery reads it: add --discovery static")
    if made.timing.window < made.timing.interval:
        raise given["window"].fail(f"shorter than the interval of {made.timing.interval:g} s: make it at least that")
    return made


def _given(option: Option, arguments: argparse.Namespace, environ: Mapping[str, str], file: Section) -> _Given:
    found = _found(option, arguments, environ, file)
    if not is_text(found.text):
        raise found.fail("not UTF-8: give text")
    return found


def is_text(text: str) -> bool:
    """Whether it can be sent to anybody: arguments and variables may hold any bytes, which Python smuggles through."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _found(option: Option, arguments: argparse.Namespace, environ: Mapping[str, str], file: Section) -> _Given:
    from_file = _text_or_number(file, option.key)
    flag = getattr(arguments, option.name.replace("-", "_"), None)
    if flag is not None:
        return _Given(flag, option.flag)
    for variable in (option.variable, *_FOREIGN.get(option.name, ())):
        if environ.get(variable):
            return _Given(environ[variable], variable)
    return (
        _Given(option.default, option.flag) if from_file is None else _Given(from_file, f"{file.source}: {option.key}:")
    )


def _text_or_number(file: Section, key: str) -> str | None:
    value = file.take_scalar(key)
    if isinstance(value, int) and abs(value) > _LARGEST:
        file.fail("is no number that makes sense here", key)
    return None if value is None else str(value)


def _address(given: _Given) -> tuple[str, int]:
    host, colon, port = given.text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise given.fail("give HOST:PORT, like 0.0.0.0:9500")
    return host.strip("[]"), int(port)


def _seconds(given: _Given, low: float, high: float) -> float:
    try:
        value = float(given.text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise given.fail(f"give seconds from {low:g} to {high:g}")
    return value


def _one_of(given: _Given, words: tuple[str, ...]) -> str:
    if given.text not in words:
        raise given.fail(f"give one of {', '.join(words)}")
    return given.text


def _path(given: _Given) -> pathlib.Path | None:
    return pathlib.Path(given.text) if given.text else None


def _timing(given: Mapping[str, _Given], file: Section) -> Timing:
    peak = file.number("peak")
    if peak is not None and not 1 <= peak <= 3600:
        file.fail("give seconds from 1 to 3600", "peak")
    # mlx5 answers two reads within 10 ms (its `lifespan`) with the same numbers.
    interval = _seconds(given["interval"], 0.1, 60)
    return Timing(interval, _seconds(given["window"], 0.1, 600), Timing().peak if peak is None else peak)


def _limits(file: Section) -> Limits:
    """`limits`: patterns of device names to Gb/s in each direction."""
    section = file.section("limits")
    found = []
    for pattern in section.keys() if section else ():
        assert section is not None
        gigabits = section.number(pattern)
        if gigabits is None or not 0 < gigabits <= 1e5:
            section.fail("give the link's rate in Gb/s", pattern)
        found.append((pattern, gigabits * GIGABIT))
    return Limits(tuple(found))


def _otlp(given: Mapping[str, _Given], file: Section) -> OtlpSettings:
    endpoint = given["otlp-endpoint"]
    if endpoint.text and not is_url(endpoint.text):
        raise endpoint.fail("give a URL, like http://collector:4317")
    protocol = _one_of(given["otlp-protocol"], PROTOCOLS)
    return _filled(OtlpSettings, file, "otlp", endpoint=endpoint.text or None, protocol=protocol)


def _resource(given: Mapping[str, _Given], file: Section) -> tuple[tuple[str, str], ...]:
    named = {"k8s.cluster.name": given["cluster"].text, "k8s.node.name": given["node"].text}
    return tuple(sorted({**dict(file.pairs("resource")), **{key: text for key, text in named.items() if text}}.items()))


def _filled(kind: type[_T], file: Section, key: str, **fixed: Any) -> _T:
    """A settings class from the section of the file at `key`: a field `ca_file` is the key `caFile` there.

    Fields that are in `fixed` have options of their own and are not taken from the section.
    """
    section = file.section(key)
    values = dict(fixed)
    if section is not None:
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            if field.name not in fixed:
                value = _TAKE[str(field.type).removesuffix(" | None")](section, _camel(field.name))
                if value is not None:
                    values[field.name] = value
        section.finish()
    return kind(**values)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _positive(section: Section, key: str) -> float | None:
    value = section.number(key)
    if value is not None and not (0 < value < math.inf):
        section.fail("must be more than zero", key)
    return value


def _whole(section: Section, key: str) -> int | None:
    value = section.take(key, int, 0)
    if value < 0:
        section.fail("must be more than zero", key)
    return value or None


def _file(section: Section, key: str) -> pathlib.Path | None:
    text = section.text(key)
    return pathlib.Path(text) if text else None


_TAKE: dict[str, Callable[[Section, str], Any]] = {
    "float": _positive,
    "int": _whole,
    "bool": lambda section, key: section.take(key, bool, False),
    "str": lambda section, key: section.text(key),
    "pathlib.Path": _file,
}

#: The sections of the file and their keys that no option stands for.
FILE_ONLY: dict[str, tuple[str, ...]] = {
    name: tuple(_camel(field.name) for field in dataclasses.fields(kind) if field.name not in options)
    for name, kind, options in (
        ("tls", TlsSettings, ()),
        ("auth", AuthSettings, ()),
        ("scrape", ScrapeSettings, ("interval",)),
        ("kubernetes", KubernetesSettings, ("node_name",)),
        ("otlp", OtlpSettings, ("endpoint", "protocol")),
    )
}
