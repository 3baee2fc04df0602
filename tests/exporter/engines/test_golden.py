"""Pages from users' reports and from every engine of the table, and what the exporter's own page says of them."""

from __future__ import annotations

import pathlib
import textwrap

import pytest

from mx_exporter.engines import ScrapeSettings
from mx_exporter.model import Pod
from tests.exporter.engines.seen import Watched, source
from tests.exporter.engines.servers import OPENMETRICS, Answer, EngineServer

NIC_UNKNOWN = 'mx_exporter_unknown{gpu="",POD,part="nic",reason="no_nic"} 1.0'


def known(engine: str, usage: str, index: str = "", load: str = "") -> str:
    """The page of a pod with one usage."""
    return "\n".join(
        [
            f'mx_kv_cache_usage{{engine="{engine}",engine_index="{index}",POD}} {usage}',
            f'mx_source_load{{gpu="",POD,nic_mapping="none"}} {load or usage}',
            NIC_UNKNOWN,
            'mx_exporter_target_up{POD,target_port="#0"} 1.0',
        ]
    )


def unknown(reason: str, up: int) -> str:
    """The page of a pod that nothing is known of: no usage, no load, and why."""
    return "\n".join(
        [
            NIC_UNKNOWN,
            f'mx_exporter_unknown{{gpu="",POD,part="kv",reason="{reason}"}} 1.0',
            f'mx_exporter_target_up{{POD,target_port="#0"}} {up}.0',
        ]
    )


def seen(folder: pathlib.Path, page: str, kind: str = "") -> str:
    """What one scrape of this page leads to."""
    with EngineServer() as server:
        server.text(textwrap.dedent(page).strip() + "\n", **({"kind": kind} if kind else {}))
        watched = Watched(folder, source(server))
        watched.scrape()
        return watched.page()


VLLM_0_9_1 = """
    # HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.
    # TYPE vllm:gpu_cache_usage_perc gauge
    vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.4
"""
VLLM_0_10_PIDS = """
    # TYPE vllm:kv_cache_usage_perc gauge
    vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="271"} 0.0
    vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="273"} 0.653
    vllm:kv_cache_usage_perc{engine="0",model_name="m",pid="274"} 0.0
"""
TRITON = """
    # TYPE nv_trt_llm_kv_cache_block_metrics gauge
    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4875
    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1560
    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 4679
    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6240
"""

PAGES = {
    # Generations and spellings of one gauge (vllm#18354, GAIE#1905): each is read, and once.
    "vllm, the old name": (VLLM_0_9_1, known("vllm", "0.4", "0")),
    "vllm, the new name": ('vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.4\n', known("vllm", "0.4", "0")),
    "vllm, both names": (
        'vllm:gpu_cache_usage_perc{engine="0"} 0.4\nvllm:kv_cache_usage_perc{engine="0"} 0.4\n',
        known("vllm", "0.4", "0"),
    ),
    "vllm, engine V0 without an index": ('vllm:gpu_cache_usage_perc{model_name="m"} 0.4\n', known("vllm", "0.4")),
    "vllm through Ray": (
        'ray_vllm_kv_cache_usage_perc{ReplicaId="r1",engine="0",model_name="m"} 0.62\n',
        known("vllm", "0.62", "0"),
    ),
    "vllm, a very small value": (
        'vllm:kv_cache_usage_perc{engine="0"} 9.75010481363281e-06\n',
        known("vllm", "9.75010481363281e-06", "0"),
    ),
    # vllm#28792: one series for each API server, all but one of them zero.
    "vllm, a series for each process": (VLLM_0_10_PIDS, known("vllm", "0.653", "0")),
    "vllm, a stale process beside the right old name": (
        """
        vllm:gpu_cache_usage_perc{engine="0"} 0.31
        vllm:kv_cache_usage_perc{engine="0",pid="271"} 0.97
        vllm:kv_cache_usage_perc{engine="0",pid="273"} 0.31
        """,
        known("vllm", "0.31", "0"),
    ),
    "vllm, a timestamp": (
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.62 1720000000000\n',
        known("vllm", "0.62", "0"),
    ),
    "vllm, a brace inside a label": ('vllm:kv_cache_usage_perc{model_name="a}b"} 0.62\n', known("vllm", "0.62")),
    "vllm, one line is mangled and others are not": (
        'vllm:kv_cache_usage_perc{engine="0" 0.62\nvllm:kv_cache_usage_perc{engine="1"} 0.5\n',
        known("vllm", "0.5", "1"),
    ),
    "vllm asleep has no weights to give": (
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\nvllm:kv_cache_usage_perc{engine="0"} 0.0\n',
        unknown("asleep", 1),
    ),
    "vllm awake": (
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n',
        known("vllm", "0.25", "0"),
    ),
    # What is no ratio is no load: neither idle nor full.
    "vllm, minus one": ('vllm:kv_cache_usage_perc{engine="0"} -1\n', unknown("out_of_range", 1)),
    "vllm, a percent": ('vllm:kv_cache_usage_perc{engine="0"} 62.0\n', unknown("out_of_range", 1)),
    "vllm, infinite": ('vllm:kv_cache_usage_perc{engine="0"} +Inf\n', unknown("not_finite", 1)),
    "vllm, not a number": ('vllm:kv_cache_usage_perc{engine="0"} NaN\n', unknown("not_finite", 1)),
    "vllm, a little over one": ('vllm:kv_cache_usage_perc{engine="0"} 1.004\n', known("vllm", "1.0", "0")),
    "vllm, half a line": ('vllm:kv_cache_usage_perc{engine="0",mod\n', unknown("unreadable", 1)),
    "sglang": ('sglang:token_usage{model_name="m"} 0.37\n', known("sglang", "0.37")),
    "sglang with its pools, the fullest and exact": (
        """
        sglang:token_usage{tp_rank="0"} 0.37
        sglang:full_token_usage{tp_rank="0"} 0.3712
        sglang:swa_token_usage{tp_rank="0"} 0.12
        sglang:mamba_usage{tp_rank="0"} 0.0
        """,
        known("sglang", "0.3712"),
    ),
    "sglang on a prefill server": (
        """
        sglang:utilization{tp_rank="0"} -1.0
        sglang:fwd_occupancy{tp_rank="0"} NaN
        sglang:token_usage{tp_rank="0"} 0.5
        """,
        known("sglang", "0.5"),
    ),
    "sglang's gateway speaks of other pods": (
        'sglang_token_usage{worker_addr="http://10.0.0.9:30000"} 0.9\n',
        unknown("no_gauge", 0),
    ),
    "dynamo, a ratio that is called a percent": (
        'dynamo_component_gpu_cache_usage_percent{dp_rank="0",model="m"} 0.5\n',
        known("dynamo", "0.5", "0"),
    ),
    # dynamo#5796: publishers say 0.0 before they know.
    "dynamo, zero of no blocks": (
        'dynamo_component_gpu_cache_usage_percent{dp_rank="0"} 0.0\ndynamo_component_total_blocks{dp_rank="0"} 0\n',
        unknown("no_blocks", 1),
    ),
    "dynamo, zero and no word of blocks": (
        'dynamo_component_gpu_cache_usage_percent{dp_rank="0"} 0.0\n',
        unknown("no_blocks", 1),
    ),
    "dynamo, zero of many blocks": (
        'dynamo_component_gpu_cache_usage_percent{dp_rank="0"} 0.0\ndynamo_component_total_blocks{dp_rank="0"} 4096\n',
        known("dynamo", "0.0", "0"),
    ),
    "dynamo's frontend speaks of other pods": (
        'dynamo_frontend_worker_active_decode_blocks{dp_rank="0",worker_id="a1"} 17\n',
        unknown("no_gauge", 0),
    ),
    "trtllm": (
        'trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.45\n',
        known("trtllm", "0.45"),
    ),
    "trtllm through dynamo 0.7": ('trtllm:kv_cache_utilization{model_name="m"} 0.45\n', known("trtllm", "0.45")),
    "trtllm without a prefix (aibrix#2004)": (
        'kv_cache_utilization{engine_type="undefined",model_name="undefined"} 0.45\n',
        known("trtllm", "0.45"),
    ),
    "somebody's kv_cache_utilization": ('kv_cache_utilization{disk="sda"} 0.45\n', unknown("no_gauge", 0)),
    "triton, blocks before a fraction that contradicts them": (TRITON, known("triton_trtllm", "0.25")),
    "triton, a fraction alone": (
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="t"} 0.4875\n',
        known("triton_trtllm", "0.4875"),
    ),
    "lmdeploy": ('lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.8\n', known("lmdeploy", "0.8", "0")),
    "a server that is no engine": ("python_gc_objects_collected_total 3\n", unknown("no_gauge", 0)),
    "text-generation-inference has no such gauge": ("tgi_queue_size 3\n", unknown("no_gauge", 0)),
}


@pytest.mark.parametrize("case", PAGES)
def test_page(case: str, tmp_path: pathlib.Path) -> None:
    page, expected = PAGES[case]
    assert seen(tmp_path, page) == expected


def test_openmetrics_with_its_end_and_an_exemplar(tmp_path: pathlib.Path) -> None:
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.62 1720000000.5 # {trace_id="x"} 0.6\n# EOF\n'
    assert seen(tmp_path, page, OPENMETRICS) == known("vllm", "0.62", "0")


def test_openmetrics_without_its_end_is_a_part_of_a_page(tmp_path: pathlib.Path) -> None:
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.62\n'
    assert seen(tmp_path, page, OPENMETRICS) == unknown("truncated", 0)


def test_an_idle_engine_does_not_hide_a_busy_one(tmp_path: pathlib.Path) -> None:
    """The released client takes the first name it knows."""
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.0\nsglang:token_usage{tp_rank="0"} 0.9\n'
    assert seen(tmp_path, page) == "\n".join(
        [
            'mx_kv_cache_usage{engine="sglang",engine_index="",POD} 0.9',
            'mx_kv_cache_usage{engine="vllm",engine_index="0",POD} 0.0',
            'mx_source_load{gpu="",POD,nic_mapping="none"} 0.9',
            NIC_UNKNOWN,
            'mx_exporter_target_up{POD,target_port="#0"} 1.0',
        ]
    )


def test_every_rank_is_kept_and_the_fullest_is_the_load(tmp_path: pathlib.Path) -> None:
    """sglang#6892, aibrix#1614: ranks overwrote or averaged each other."""
    page = "".join(f'sglang:token_usage{{dp_rank="{i}",tp_rank="0"}} {v}\n' for i, v in enumerate((0.2, 0.9, 0.1, 0.3)))
    assert seen(tmp_path, page) == "\n".join(
        [
            'mx_kv_cache_usage{engine="sglang",engine_index="0",POD} 0.2',
            'mx_kv_cache_usage{engine="sglang",engine_index="1",POD} 0.9',
            'mx_kv_cache_usage{engine="sglang",engine_index="2",POD} 0.1',
            'mx_kv_cache_usage{engine="sglang",engine_index="3",POD} 0.3',
            'mx_source_load{gpu="",POD,nic_mapping="none"} 0.9',
            NIC_UNKNOWN,
            'mx_exporter_target_up{POD,target_port="#0"} 1.0',
        ]
    )


def test_dynamo_and_its_engine_speak_of_one_cache(tmp_path: pathlib.Path) -> None:
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.41\ndynamo_component_gpu_cache_usage_percent{dp_rank="0"} 0.4\n'
    assert 'mx_source_load{gpu="",POD,nic_mapping="none"} 0.41' in seen(tmp_path, page).splitlines()


def test_a_gauge_that_froze_in_a_mass_abort(tmp_path: pathlib.Path) -> None:
    """vllm#29928, vllm#22545: 0.99 for ever, so that the source got no work and never counted again."""
    frozen = (
        'vllm:kv_cache_usage_perc{engine="0"} 0.99\nvllm:num_requests_running{engine="0"} 106.0\n'
        'vllm:generation_tokens_total{engine="0"} 123456.0\n'
    )
    with EngineServer().text(frozen) as server:
        watched = Watched(tmp_path, source(server))
        for _ in range(30):
            watched.scrape()
        assert watched.page() == known("vllm", "0.99", "0")
        watched.scrape()
        assert watched.page() == unknown("frozen", 1)
        server.text(frozen.replace("123456.0", "123457.0"))
        watched.scrape()
        assert watched.page() == known("vllm", "0.99", "0")


def test_an_idle_engine_is_not_frozen(tmp_path: pathlib.Path) -> None:
    idle = 'vllm:kv_cache_usage_perc{engine="0"} 0.0\nvllm:generation_tokens_total{engine="0"} 5.0\n'
    with EngineServer().text(idle) as server:
        watched = Watched(tmp_path, source(server))
        for _ in range(100):
            watched.scrape()
        assert watched.page() == known("vllm", "0.0", "0")


def test_turbomind_may_hold_its_cache_at_rest(tmp_path: pathlib.Path) -> None:
    resting = "lmdeploy:gpu_cache_usage_perc 0.7\nlmdeploy:generation_tokens_total 5\nlmdeploy:num_requests_running 0\n"
    with EngineServer().text(resting) as server:
        watched = Watched(tmp_path, source(server))
        for _ in range(100):
            watched.scrape()
        assert watched.page() == known("lmdeploy", "0.7")
        server.text(resting.replace("running 0", "running 4"))
        for _ in range(40):
            watched.scrape()
        assert watched.page() == unknown("frozen", 1)


def test_json_is_no_page_and_is_not_asked_for_again(tmp_path: pathlib.Path) -> None:
    """TensorRT-LLM's /metrics is a queue of statistics that a reader drains (TensorRT-LLM#4926, #7056)."""
    with EngineServer({"/metrics": Answer(b"[]", kind="application/json")}) as server:
        watched = Watched(tmp_path, source(server))
        for _ in range(5):
            watched.scrape()
        assert watched.page() == unknown("json", 0)
        assert server.asked("/metrics") == 1
        assert server.asked("/prometheus/metrics") == 5


def test_trtllm_is_found_at_its_other_path(tmp_path: pathlib.Path) -> None:
    with EngineServer({"/metrics": Answer(b"[]", kind="application/json")}) as server:
        server.text("trtllm_kv_cache_utilization 0.45\n", "/prometheus/metrics")
        watched = Watched(tmp_path, source(server))
        for _ in range(5):
            watched.scrape()
        assert watched.page() == known("trtllm", "0.45")
        assert (server.asked("/metrics"), server.asked("/prometheus/metrics")) == (1, 5)


def test_json_that_calls_itself_text(tmp_path: pathlib.Path) -> None:
    assert seen(tmp_path, '[{"kvCacheStats": {"usedNumBlocks": 1}}]\n') == unknown("json", 0)


def test_a_page_of_22_megabytes_in_one_label(tmp_path: pathlib.Path) -> None:
    """vllm#44691: with the wanted line last, half a page must not pass for a whole one."""
    page = f'vllm:cache_config_info{{x="{"y" * (22 << 20)}"}} 1\nvllm:kv_cache_usage_perc{{engine="0"}} 0.62\n'
    with EngineServer().text(page) as server:
        small = Watched(tmp_path / "small", source(server))
        small.scrape()
        assert small.page() == unknown("too_large", 0)
        large = Watched(tmp_path / "large", source(server), settings=ScrapeSettings(max_page=32 << 20, timeout=5))
        large.scrape()
        assert large.page() == known("vllm", "0.62", "0")


@pytest.mark.parametrize(("answer", "reason"), [(Answer(status=500), "http_status"), (Answer(b""), "empty")])
def test_a_server_that_fails_while_it_serves(tmp_path: pathlib.Path, answer: Answer, reason: str) -> None:
    """vllm#49983, vllm#8612: a status of 500 or an empty page. A reading outlives three intervals of it."""
    with EngineServer({"/metrics": answer}) as server:
        watched = Watched(tmp_path, source(server, path="/metrics"))
        watched.scrape()
        assert watched.page() == unknown(reason, 0)
        server.text('vllm:kv_cache_usage_perc{engine="0"} 0.62\n')
        watched.scrape()
        assert watched.page() == known("vllm", "0.62", "0")
        server.answers["/metrics"] = answer
        for _ in range(3):
            watched.scrape()
            assert watched.page() == known("vllm", "0.62", "0").replace('"#0"} 1.0', '"#0"} 0.0')
        watched.scrape()
        assert watched.page() == unknown(reason, 0)


def test_an_engine_that_is_gone_is_unknown_at_once(tmp_path: pathlib.Path) -> None:
    with EngineServer().text('vllm:kv_cache_usage_perc{engine="0"} 0.62\n') as server:
        watched = Watched(tmp_path, source(server))
        watched.scrape()
        server.close()
        watched.scrape()
        assert watched.page() == unknown("refused", 0)
        server.open()
        watched.scrape()
        assert watched.page() == known("vllm", "0.62", "0")


def test_pods_on_one_address_are_told_apart_by_their_ports(tmp_path: pathlib.Path) -> None:
    """hostNetwork: each pod has its own page's value; the page of a port that both claim is nobody's."""
    a, b, c = (Pod("serving", name, f"uid-{name}", "127.0.0.1") for name in "abc")
    with (
        EngineServer().text('vllm:kv_cache_usage_perc{engine="0"} 0.2\n') as one,
        EngineServer().text('vllm:kv_cache_usage_perc{engine="0"} 0.8\n') as two,
    ):
        watched = Watched(tmp_path, source(one, pod=a), source(two, pod=b))
        watched.scrape()
        usages = {pod.name: [usage.value for usage in of_pod] for pod, of_pod in watched.engines.usages().items()}
        assert usages == {"a": [0.2], "b": [0.8]}
        watched.discovery.known += (source(two, pod=c),)
        watched.scrape()
        found = {pod.name: of_pod[0] for pod, of_pod in watched.engines.usages().items()}
        assert (found["a"].value, found["b"].value, found["c"].value) == (0.2, None, None)
        assert (found["b"].reason, found["c"].reason) == ("shared_address", "shared_address")


def test_a_pod_that_went_is_gone_from_the_next_page(tmp_path: pathlib.Path) -> None:
    """dcgm-exporter#140: series stayed after their pod."""
    with EngineServer().text('vllm:kv_cache_usage_perc{engine="0"} 0.62\n') as server:
        watched = Watched(tmp_path, source(server))
        watched.scrape()
        assert "mx_source_load" in watched.page()
        watched.discovery.known = ()
        assert watched.page() == ""
        assert watched.engines.usages() == {}
        assert watched.engines.scrapes() == ()


def test_one_engine_on_two_ports_is_one(tmp_path: pathlib.Path) -> None:
    """MX's own metrics port repeats vLLM's series: they share PROMETHEUS_MULTIPROC_DIR."""
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.62\n'
    with EngineServer().text(page) as api, EngineServer().text(page + "mx_p2p_transfers_total 3\n") as mx:
        watched = Watched(tmp_path, source(api, mx))
        watched.scrape()
        assert watched.page() == known("vllm", "0.62", "0") + '\nmx_exporter_target_up{POD,target_port="#1"} 1.0'


def test_lines_that_cannot_be_read_are_counted_for_their_port(tmp_path: pathlib.Path) -> None:
    """Also of a page without a gauge; a page that has fewer of them takes nothing back."""
    with EngineServer().text('vllm:num_requests_running{engine="0"} many\n') as server:
        watched = Watched(tmp_path, source(server))
        seen = []
        for page in (None, 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:num_requests_running{ 1\n', None):
            if page:
                server.text(page)
            watched.scrape()
            seen += [(status.up, status.bad_lines) for status in watched.engines.scrapes()]
        assert seen == [(False, 1), (True, 2), (True, 3)]
