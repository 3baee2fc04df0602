"""The matrix that a target's process lives in: the protobufs and Pythons that engines bring.

    nox                          all of it
    nox -s "wire_and_selector-3.10(protobuf='5.27')"

A target runs inside vLLM or SGLang and takes their protobuf (5.27 to 7) and their Python (3.10 and newer) as it finds
them, so what runs there is tested against each pair. Nox looks for python3.10 and python3.12 on PATH and says so when
it skips one.
"""

from __future__ import annotations

import pathlib

import nox

PYTHONS = ["3.10", "3.12"]
PROTOBUFS = {"5.27": "5.27.2", "6": "6.*", "7": "7.*"}

nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "venv"


@nox.session(python=PYTHONS)
@nox.parametrize("protobuf", list(PROTOBUFS))
def wire_and_selector(session: nox.Session, protobuf: str) -> None:
    """Test proto/ and selector/ with one protobuf."""
    pinned = f"protobuf=={PROTOBUFS[protobuf]}"
    session.install("-e", ".[selector]", pinned, *_test_tools())
    # The released client is a peer of the tests; its dependencies start at torch.
    session.install("--no-deps", "-r", "tests/requirements-released.txt")
    session.run("python", "-c", "from google.protobuf import __version__ as v; print('protobuf', v)")
    # Fewer cases and ranks: here the code is tested, not the laws. CI also means no deadlines to hypothesis.
    quick = {"MX_TEST_QUICK": "1", "CI": "1"}
    session.run("python", "-m", "pytest", "-q", "tests/wire", "tests/selector", *session.posargs, env=quick)


def _test_tools() -> list[str]:
    """What the tests need: pinned as in the `dev` extra, and the SDK that one of them reads OpenTelemetry with."""
    project = nox.project.load_toml(pathlib.Path(__file__).with_name("pyproject.toml"))["project"]
    wanted = ("hypothesis", "pytest")
    tools = [requirement for requirement in project["optional-dependencies"]["dev"] if requirement.startswith(wanted)]
    return [*tools, "opentelemetry-sdk", "opentelemetry-exporter-prometheus>=0.61b0", "pyyaml"]
