"""Settings: what goes before what, and complaints that name the input and the mend in one line."""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import tempfile

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.app import Exporter
from mx_exporter.cli import main, parser
from mx_exporter.config import OPTIONS, Settings, settings
from mx_exporter.errors import ConfigurationError
from mx_exporter.nics.tracks import Timing
from tests.exporter.test_serving import certificate


def made(
    *arguments: str, environ: dict[str, str] | None = None, file: str | None = None, at: pathlib.Path | None = None
) -> Settings:
    if file is not None:
        assert at is not None
        path = at / "config.yaml"
        path.write_text(file)
        arguments = (*arguments, "--config", str(path))
    return settings(parser().parse_args(list(arguments)), environ or {})


def test_the_defaults_are_a_nodes_own() -> None:
    assert made() == Settings()


def test_a_flag_goes_before_the_variable_before_the_file(tmp_path: pathlib.Path) -> None:
    file, environ = "window: 5\nlisten: 127.0.0.1:1\n", {"MX_EXPORTER_WINDOW": "7"}
    assert made(file=file, at=tmp_path).timing.window == 5
    assert made(environ=environ, file=file, at=tmp_path).timing.window == 7
    assert made("--window", "9", environ=environ, file=file, at=tmp_path).timing.window == 9
    assert made(environ=environ, file=file, at=tmp_path).port == 1


def test_names_that_others_gave_count_after_our_own() -> None:
    environ = {"NODE_NAME": "n1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}
    assert made(environ=environ).kubernetes.node_name == "n1"
    assert made(environ=environ | {"MX_EXPORTER_NODE": "n2"}).resource == (("k8s.node.name", "n2"),)
    assert made(environ=environ).otlp.endpoint == "http://c:4317"


def test_all_that_a_file_can_say(tmp_path: pathlib.Path) -> None:
    file = """
        listen: "[::1]:9600"
        discovery: kubernetes
        podResources: /var/lib/kubelet/pod-resources/kubelet.sock
        window: 5
        interval: 0.5
        peak: 60
        limits: {"rdmap*": 200, mlx5_bond_0: 400.5}
        scrape: {timeout: 2, maxPage: 1000000, caFile: /ca, bearerTokenFile: /token, insecureSkipVerify: true}
        kubernetes: {apiServer: https://api:6443, podSelector: app=vllm}
        tls: {certFile: /c, keyFile: /k, clientCaFile: /a}
        auth: {basicFile: /users, bearerTokenFile: /bearer}
        otlp: {interval: 5, headersFile: /h}
        resource: {team: inference}
        cluster: c1
    """
    got = made(file=file, at=tmp_path)
    assert (got.host, got.port, got.discovery) == ("::1", 9600, "kubernetes")
    assert got.timing == Timing(0.5, 5, 60)
    assert got.limits.by_device == (("rdmap*", 25e9), ("mlx5_bond_0", 400.5 * 125e6))
    assert (got.scrape.timeout, got.scrape.max_page, got.scrape.insecure_skip_verify) == (2, 1000000, True)
    assert (got.kubernetes.api_server, got.kubernetes.pod_selector) == ("https://api:6443", "app=vllm")
    assert got.tls.client_ca_file == pathlib.Path("/a")
    assert got.auth.basic_file == pathlib.Path("/users")
    assert (got.otlp.interval, got.otlp.headers_file) == (5, pathlib.Path("/h"))
    assert got.resource == (("k8s.cluster.name", "c1"), ("team", "inference"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--listen", "9500"], "--listen '9500': give HOST:PORT, like 0.0.0.0:9500"),
        (["--listen", "h:99999"], "--listen 'h:99999': give HOST:PORT, like 0.0.0.0:9500"),
        (["--window", "abc"], "--window 'abc': give seconds from 0.1 to 600"),
        (["--window", "nan"], "--window 'nan': give seconds from 0.1 to 600"),
        (["--interval", "0"], "--interval '0': give seconds from 0.1 to 60"),
        (["--window", "0.5"], "--window '0.5': shorter than the interval of 1 s: make it at least that"),
        (["--discovery", "consul"], "--discovery 'consul': give one of none, static, kubernetes"),
        (["--discovery", "static"], "--discovery 'static': static discovery needs --sources FILE"),
        (["--sources", "f"], "--sources 'f': only static discovery reads it: add --discovery static"),
        (["--sysfs", "/nowhere"], "--sysfs '/nowhere': not a folder: give the root of a sysfs, like /sys or /host/sys"),
        (["--otlp-endpoint", "c:4317"], "--otlp-endpoint 'c:4317': give a URL, like http://collector:4317"),
        (["--otlp-endpoint", "http://"], "--otlp-endpoint 'http://': give a URL, like http://collector:4317"),
        (["--otlp-endpoint", "http://[::1"], "--otlp-endpoint 'http://[::1': give a URL, like http://collector:4317"),
        (["--otlp-endpoint", "http://c:x"], "--otlp-endpoint 'http://c:x': give a URL, like http://collector:4317"),
        (["--otlp-protocol", "http/json"], "--otlp-protocol 'http/json': give one of grpc, http/protobuf"),
        (["--cluster", "c\udcff"], "--cluster 'c\\udcff': not UTF-8: give text"),
        (["--config", "/nowhere"], "/nowhere: No such file or directory: name a configuration file that can be read"),
    ],
)  # fmt: skip
def test_a_flag_that_cannot_be_meant_is_one_line_and_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"mx-exporter: {complaint}\n"


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("windw: 3", "windw: is not known here: did you mean window?"),
        ("nothing: 3", "nothing: is not known here: remove it; known here: listen, sysfs, procfs, "),
        ("window: three", "window: 'three': give seconds from 0.1 to 600"),
        ("discovery: consul", "discovery: 'consul': give one of none, static, kubernetes"),
        ("window: 0.5", "window: '0.5': shorter than the interval of 1 s"),
        ("window: [3]", "window: must be text or a number"),
        ("window: true", "window: must be text or a number"),
        (f"window: 0x{'f' * 5000}", "window: is no number that makes sense here"),
        ("peak: 0", "peak: give seconds from 1 to 3600"),
        ("limits: {mlx5_0: fast}", "limits.mlx5_0: must be a number"),
        ("limits: {mlx5_0: -1}", "limits.mlx5_0: give the link's rate in Gb/s"),
        ("limits: {1: 2}", "limits: must have names as its keys"),
        ("scrape: {timeout: 0}", "scrape.timeout: must be more than zero"),
        ("scrape: {interval: 1}", "scrape.interval: is not known here"),
        ("scrape: {maxPage: 1.5}", "scrape.maxPage: must be a whole number"),
        ("tls: {certFile: 5}", "tls.certFile: must be text"),
        ("auth: yes", "auth: must be a mapping"),
        ("resource: {a: 1}", "resource: must map names to text"),
        ("- a", "the document: must be a mapping"),
        ("scrape: {timout: 1}", "scrape.timout: is not known here: did you mean timeout?"),
        ("\na: [", "line 2: not YAML ("),
        ("a: \x01", "not YAML ("),
    ],
)
def test_a_file_that_cannot_be_meant_names_the_place(
    file: str, complaint: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(file)
    assert main(["--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"mx-exporter: {path}: {complaint}")
    assert error.count("\n") == 1
    assert "<unicode string>" not in error
    assert "column" not in error


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--windw", "3"], "unrecognized arguments: --windw 3"),
        (["serve"], "unrecognized arguments: serve"),
        (["--window"], "argument --window: expected one argument"),
    ],
)
def test_arguments_that_are_none_are_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"mx-exporter: {complaint}: see mx-exporter --help\n"


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"mx-exporter {importlib.metadata.version('mx-source-load')}\n"


def test_a_login_file_that_nobody_could_log_in_with_ends_the_start(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "users").write_text("s3cret\n")
    (tmp_path / "config.yaml").write_text(f"auth: {{basicFile: {tmp_path}/users}}")
    assert main(["--config", str(tmp_path / "config.yaml"), "--sysfs", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"mx-exporter: {tmp_path}/users: line 1: no user and password: write USER:PASSWORD, one login a line\n"
    )


def test_the_help_says_what_only_the_file_can_say(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "tls {certFile, keyFile, clientCaFile}" in text
    assert "peak, limits, resource" in text
    assert "insecureSkipVerify" in text


def sample() -> str:
    """The sample configuration of the exporter's page, as it stands there."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "exporter.md").read_text("utf-8")
    samples = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "scrapeInterval:" in block]
    assert len(samples) == 1
    return str(samples[0])


def test_the_sample_of_the_page_starts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a reader would: the sample in a file, beside it the files that it names."""
    cert, key = certificate(tmp_path, "tls")
    for name, text in {
        "ca.crt": cert.read_text(),
        "users": "prom:pass",
        "token": "t0ken",
        "headers": "tenant: a",
        "engines.yaml": "engines: [{engine: mine, usage: [{metric: a:b}]}]",
        "sources.yaml": "sources: []",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    got = made(file=sample(), at=tmp_path)
    assert (got.discovery, got.port, got.limits.by_device) == ("static", 9500, (("rdmap*", 25e9),))
    assert got.tls.key_file is not None
    assert got.tls.key_file.absolute() == key
    exporter = Exporter(got)
    exporter.server.stop()


def test_the_help_has_every_option_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(option.flag in text and f"[{option.variable}]" in text for option in OPTIONS)


@given(
    st.dictionaries(
        st.sampled_from([option.key for option in OPTIONS]), st.text(max_size=30) | st.integers() | st.floats()
    )
)
def test_whatever_the_file_says_it_is_taken_or_complained_of(values: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        got = taken(yaml.safe_dump(values), pathlib.Path(folder))
    assert got is None or 0 < got.timing.interval <= got.timing.window
    assert got is None or 0 <= got.port <= 65535


def taken(file: str, at: pathlib.Path) -> Settings | None:
    """The settings of a file; None when it was complained of, in one line."""
    try:
        return made(file=file, at=at)
    except ConfigurationError as error:
        complaint = str(error)
    assert "\n" not in complaint
    return None


def test_resource_attributes_that_are_no_text_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    """They would be on every page, and no page could be sent."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a\udcff")
    assert main(["--sysfs", str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().err == "mx-exporter: resource attribute team 'a\\udcff': not UTF-8: give text\n"
