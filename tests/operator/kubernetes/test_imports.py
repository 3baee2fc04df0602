"""File mode must not pay for Kubernetes: kopf alone is 90 MB of memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = "import sys, {module}; print(*sorted({{'kopf', 'kubernetes'}} & set(sys.modules)))"


@pytest.mark.parametrize(
    ("module", "loaded"),
    [
        ("mx_operator.app", ""),
        ("mx_operator.dry", ""),
        ("mx_operator.policies", ""),
        ("mx_operator.kubernetes", "kopf"),
    ],
)
def test_kopf_is_loaded_by_cluster_mode_alone(module: str, loaded: str) -> None:
    done = subprocess.run([sys.executable, "-c", ASK.format(module=module)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loaded
