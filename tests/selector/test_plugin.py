"""Our policies inside the real released client: registered by one import, chosen by its variable, on its own page."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.parts import vllm

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.released

PREPARE = """
import logging, os, sys, types
from tests.parts import released
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="LOG %(message)s")
ours = lambda: __import__("mx_selector.plugin")
theirs = lambda: released.module("source_selection")
"""
USE = """
selection = released.module("source_selection")
row = released.module("p2p_pb2").SourceInstanceRef
rows = [row(mx_source_id="s", worker_id=f"w{i}", source_load=load) for i, load in enumerate((0.9, 0.1, 0.0, 0.5))]
context = types.SimpleNamespace(identity=types.SimpleNamespace(model_name="m"), worker_id="t", worker_rank=0)
selector = selection.get_configured_selector()
from mx_selector import Target, rank
assert isinstance(selector, selection.SourceSelector)
assert selector.order(rows, context) == rank(rows, Target("m", "t", 0), selector.name), selector.name
print("policy", selection.configured_policy_label(), type(selector).__module__)
"""


def run(script: str, **environ: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MX_", "PROMETHEUS_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("order", ["ours(); theirs()", "theirs(); ours()"])
@pytest.mark.parametrize("policy", ["headroom", "load_aware", "rendezvous_hash", "topology_aware"])
def test_one_import_puts_our_policies_into_the_registry(order: str, policy: str) -> None:
    # Entered by its folder, the package exists only once something of it was asked for.
    out = run(PREPARE + 'released.module("envs")\n' + order + USE, MX_P2P_SOURCE_SELECTOR=policy)
    assert out == f"policy {policy} mx_selector.plugin\n"


def test_without_the_released_client_the_import_is_quiet() -> None:
    out = run('import sys; sys.modules["modelexpress"] = None\nimport mx_selector.plugin as p\nprint(p.register())')
    assert out == "False\n"


def test_it_can_be_switched_off() -> None:
    script = PREPARE + 'released.module("envs")\nours()' + USE.replace("assert selector.order", "0 and selector.order")
    assert run(script, MX_P2P_SOURCE_SELECTOR="load_aware", MX_SELECTOR_PLUGIN="0") == (
        "policy load_aware modelexpress.source_selection\n"
    )


def test_random_stays_theirs() -> None:
    script = PREPARE + 'released.module("envs")\nours()' + USE.replace("assert selector.order", "0 and selector.order")
    assert run(script) == "policy random modelexpress.source_selection\n"


def test_a_context_without_an_identity_still_gives_all_candidates() -> None:
    script = (
        PREPARE
        + 'released.module("envs")\nours()'
        + USE
        + (
            "assert len(selector.order(rows, types.SimpleNamespace(worker_id='t'))) == 4\n"
            "assert len(selector.order([*rows, object()], context)) == 5\n"
        )
    )
    out = run(script, MX_P2P_SOURCE_SELECTOR="headroom")
    assert "LOG the load context lacks something to choose by" in out
    assert out.count("falling back to the baseline order") == 1


def test_our_families_join_the_page_that_the_released_client_serves() -> None:
    script = (
        PREPARE
        + """
released.module("envs")
ours()
metrics = released.module("metrics")
assert metrics.enable_metrics()
"""
        + USE
        + """
metrics.metrics.observe_candidate_loads(selector.order(rows, context))
import prometheus_client
print(prometheus_client.generate_latest(metrics.metrics._exposition_registry()).decode())
"""
    )
    page = run(script, MX_P2P_SOURCE_SELECTOR="headroom", MX_METRICS_ENABLED="1", MX_METRICS_SCHEME="x")
    assert 'mx_selector_chosen_load_count{policy="headroom",scheme="x"} 2.0' in page
    assert 'mx_p2p_source_load{scheme="x"} 0' in page
    assert page.count("# TYPE mx_p2p_source_load gauge") == 1


def test_vllm_finds_the_entry_point() -> None:
    """In a process of its own: loading it registers, and the other tests need the released policies as they are."""
    out = run(
        PREPARE + 'released.module("envs")\n'
        "import importlib.metadata\n"
        "(entry,) = importlib.metadata.entry_points(group='vllm.general_plugins', name='mx_selector')\n"
        "print(entry.value, entry.load()())\n"
    )
    assert out == "mx_selector.plugin:register True\n"


def installed_is_older() -> bool:
    """Whether the project beside vLLM is not this tree's."""
    site = next((vllm.root() / "venv" / "lib").glob("python3*/site-packages"))
    ours = ROOT / "selector" / "mx_selector"
    return any(
        not (installed := site / "mx_selector" / path.relative_to(ours)).exists()
        or installed.read_bytes() != path.read_bytes()
        for path in ours.rglob("*.py")
    )


@pytest.mark.real_vllm
@pytest.mark.timeout(300)
def test_a_real_vllm_process_selects_by_headroom() -> None:
    """Under vLLM's own plugin loader, through the released client's own load strategy, told by its own variable."""
    script = """
import types
import vllm.plugins
vllm.plugins.load_general_plugins()
from modelexpress import p2p_pb2, source_selection
import mx_selector
loads = {"a": 0.9, "b": 0.1, "c": 0.0, "d": 0.5}
rows = [p2p_pb2.SourceInstanceRef(mx_source_id="s", worker_id=w, source_load=load) for w, load in loads.items()]
context = types.SimpleNamespace(identity=types.SimpleNamespace(model_name="m"), worker_id="t", worker_rank=0)
expected = mx_selector.rank(rows, mx_selector.Target("m", "t", 0), "headroom")
selector = source_selection.get_configured_selector()
assert selector.order(rows, context) == expected
from modelexpress.load_strategy.rdma_strategy import RdmaStrategy
context.identity = p2p_pb2.SourceIdentity(model_name="m")
context.global_rank = 0
context.accelerator_backend = types.SimpleNamespace(name="cuda")
listed = p2p_pb2.ListSourcesResponse(instances=rows)
context.mx_client = types.SimpleNamespace(list_sources=lambda **_: listed)
found = RdmaStrategy()._find_source_instances(context)
assert [r.worker_id for r in found] == [r.worker_id for r in expected], found
print("POLICY", source_selection.configured_policy_label(), type(selector).__module__)
"""
    if installed_is_older():
        pytest.skip("the project installed beside the real vLLM is older than this tree: run scripts/real-vllm")
    done = subprocess.run(
        [vllm.python(), "-c", script],
        env=os.environ | {"MX_P2P_SOURCE_SELECTOR": "headroom"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "POLICY headroom mx_selector.plugin" in done.stdout
    assert "Failed to load plugin" not in done.stdout + done.stderr
