"""The rooms from outside: what importing one costs, what each door says, what the repository must not shadow."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOORS = ["mx-select", "mx-exporter", "mx-operator", "mx-server", "mx-lab"]
HEAVY = ["kopf", "aiohttp", "requests", "opentelemetry.sdk", "prometheus_api_client", "redis", "torch", "rich", "yaml"]


def python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("package", ["mx_wire", "mx_selector"])
def test_what_a_target_imports_is_light(package: str) -> None:
    loaded = python(f"import sys, {package}; print(*[m for m in {HEAVY!r} if m in sys.modules])")
    assert loaded == ""


def test_the_exporter_never_loads_kopf_nor_a_kubernetes_client() -> None:
    unwanted = ["kopf", "kubernetes", "kubernetes_asyncio"]
    assert python(f"import sys, mx_exporter.cli; print(*[m for m in {unwanted!r} if m in sys.modules])") == ""


def test_the_operator_of_python_is_not_shadowed() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert python("import operator; print(operator.add(1, 2))") == "3"


@pytest.mark.parametrize("door", DOORS)
def test_every_door_introduces_itself(door: str) -> None:
    program = str(pathlib.Path(sys.executable).with_name(door))
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {door} ")
    assert all(len(line) <= 120 for line in done.stdout.splitlines())


@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_what_it_does_not_know_with_status_2(door: str) -> None:
    program = str(pathlib.Path(sys.executable).with_name(door))
    done = subprocess.run([program, "--no-such-thing"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"{door}: ")
