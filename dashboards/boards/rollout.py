"""MX / Rollout: is this rollout hurting serving, and are pulls going where they should?

The first row answers; what follows shows why. Works with our selector's and the released client's metrics; what needs
ours, the operator or the exporter says so where it is empty.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models import dashboard

from dashboards import house, shell
from dashboards.house import Query, Words
from dashboards.names import (
    LISTED,
    LISTED_PODS,
    MEASURED,
    NEEDS_EXPORTER,
    NEEDS_SELECTOR,
    NEEDS_TARGETS,
    NO_SOURCE_LABEL,
    ROWS,
)
from dashboards.promql import (
    LINES,
    WINDOW,
    cumulative,
    greatest,
    known,
    leading,
    named,
    nonzero,
    pulled,
    quantile,
    select,
    total,
)

_RATIO: Final = ((None, "green"), (1.25, "orange"), (2, "red"))
#: A row is stamped by each heartbeat (30 s) and each write; an unchanged load is not written again.
_AGE: Final = ((None, "green"), (35, "orange"), (60, "red"))
_TO_BEFORE: Final = house.Beside("to before", house.TIMES, _RATIO, 2)
_SHARE: Final = ((None, "green"), (0.05, "orange"), (0.15, "red"))
_DECILES: Final = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1")

_CHOSEN: Final = "mx_selector_chosen_load"
_PULLS: Final = select("mx:p2p_transfer_seconds_bucket:pulls5m")
_EVER: Final = select("mx:p2p_transfer_seconds_bucket:ever")
_AGES: Final = select("mx:selector_chosen_load_age_seconds_bucket:pulls5m")
_TTFT: Final = select("mx:time_to_first_token_seconds_bucket:rate5m", 'model_name=~"$model"')
_HOUR_BEFORE: Final = f"avg_over_time({_TTFT}[$baseline] offset $baseline)"
_PULL_P99: Final = quantile(0.99, (), select("mx:p2p_transfer_seconds_bucket:pulls5m", outcome="success"))
_PULL_P99_BEFORE: Final = quantile(
    0.99, (), f"{select('mx:p2p_transfer_seconds_bucket:ever', outcome='success')} offset $baseline"
)


def rollout() -> dashboard.Dashboard:
    """The dashboard."""
    rows = (
        ("Is it hurting serving, and do pulls go where they should?", [(4, 4, _answers())]),
        ("Sources", [(12, 10, [_load_per_source(), _load_heatmap()])]),
        (
            "Pulls",
            [
                (8, 8, [_pulls_by_policy(), _pulls_per_source(), _busy_share()]),
                (12, 9, [_transfer_seconds(), _chosen_age()]),
            ],
        ),
        ("Network", [(12, 9, [_nic(direction, words) for direction, words in _NIC_WORDS.items()])]),
        ("Serving", [(12, 9, [_kv(), _first_token()]), (12, 8, [_tokens(), _requests()])]),
    )
    variables = [
        shell.models(),
        shell.choice("busy", "Busy from", "Load from which on a source counts as busy.", _BUSY, "0.7"),
        shell.choice("baseline", "Before", "How long before is the time to compare with.", _BEFORE, "1h"),
    ]
    return shell.dashboard_of("MX / Rollout", "mx-rollout", __doc__, rows, variables)


_BUSY: Final = ("0.5", "0.6", "0.7", "0.8", "0.9")
_BEFORE: Final = ("5m", "15m", "30m", "1h", "6h", "1d")


def _answers() -> list[dashboard.Panel]:
    rows = f"count({ROWS})"
    policies = f"sum({greatest(('policy',), select('mx_operator_sources', state='listed'))})"
    listings = [total((), pulled(select(f"mx_p2p_candidates_{part}", stage="listed"))) for part in ("sum", "count")]
    seen = f"{listings[0]} / ({listings[1]} > 0)"
    busy = f"sum({LISTED} >= bool $busy) or sum({MEASURED} >= bool $busy)"
    ttft, before = quantile(0.99, (), _TTFT), quantile(0.99, (), _HOUR_BEFORE)
    return [
        house.number(
            Words(
                "Sources ready",
                "READY sources on the MX server, as the operator lists them; without an operator, how many a target's "
                "listing held on average. Metric: `mx_p2p_source_info`, `mx_operator_sources`, `mx_p2p_candidates`.",
                "No listing",
            ),
            [Query(f"{rows} or {policies} or {seen}")],
        ),
        house.number(
            Words(
                "Busy sources",
                "Sources at or above the load chosen as busy: as listed, or as measured where nobody lists. "
                "Metric: `mx_p2p_source_load`, `mx_source_load`.",
                "No load known",
            ),
            [Query(busy)],
        ),
        house.number(
            Words(
                "Pulls to busy",
                f"Share of the selections of the last {WINDOW} whose first source was busier than the chosen limit, "
                "all policies together. Needs no per-source label. Metric: `mx_selector_chosen_load`.",
                NEEDS_SELECTOR,
            ),
            [Query(_share())],
            unit="percentunit",
            steps=_SHARE,
            decimals=0,
            mappings=[house.nothing("no pulls")],
        ),
        house.number(
            Words(
                "Pull time p99",
                f"99th percentile of the successful pulls of the last {WINDOW}, and how many times that is what the "
                "workers that ran at the time chosen as before had seen. Metric: `mx_p2p_transfer_seconds`.",
                "No pulls",
            ),
            [
                Query(_PULL_P99, "now"),
                Query(f"{_PULL_P99} / {_PULL_P99_BEFORE}", "to before"),
            ],
            unit="s",
            mappings=[house.nothing("no pulls")],
            beside=[_TO_BEFORE],
        ),
        house.number(
            Words(
                "Age of load p95",
                f"How old the load was that targets chose by in the last {WINDOW}, at the 95th percentile; up to "
                "a heartbeat's interval is right. Metric: `mx_selector_chosen_load_age_seconds`.",
                NEEDS_SELECTOR,
            ),
            [Query(quantile(0.95, (), _AGES))],
            unit="s",
            steps=_AGE,
            mappings=[house.nothing("no pulls")],
        ),
        house.number(
            Words(
                "First token p99",
                "Time to first token of all engines at the 99th percentile, and how many times that is what it was at "
                "the time chosen as before (1 h: the hour that ended an hour ago). "
                "Metric: `vllm:time_to_first_token_seconds`, `sglang:time_to_first_token_seconds`.",
                "No engine",
            ),
            [Query(ttft, "now"), Query(f"{ttft} / {before}", "to before")],
            unit="s",
            mappings=[house.nothing("no traffic")],
            beside=[_TO_BEFORE],
        ),
    ]


def _share(*by: str) -> str:
    """Share of selections whose first source was above the limit; NaN where there were none."""
    below = total(by, pulled(select(f"{_CHOSEN}_bucket", le="$busy")))
    every = total(by, pulled(select(f"{_CHOSEN}_count")))
    return f"1 - {below} / {every}"


def _load_per_source() -> dashboard.Panel:
    selector = select("mx_p2p_source_load", 'source_worker_id!=""', origin="")
    seen, best = (greatest(("source_worker_id",), one) for one in (selector, f"{selector} @ end()"))
    nobody_lists = f"unless on () group({select('mx_p2p_source_load', origin='listing')})"
    return house.lines(
        Words(
            "Load per source, as targets see it",
            "What the MX server lists for the 15 sources that were busiest in the last hour, and, where no operator "
            "lists, what targets saw when they chose (their last look, not a live reading). "
            "Metric: `mx_p2p_source_load`.",
            f"No operator lists, and {NO_SOURCE_LABEL}",
        ),
        [
            Query(
                leading(LISTED_PODS, ("source_worker_id",), LISTED),
                "{{k8s_pod_name}} {{source_worker_id}} {{k8s_pod_ip}}",
            ),
            Query(f"{seen} and topk({LINES}, {best}) {nobody_lists}", "{{source_worker_id}} at selection"),
        ],
        unit="percentunit",
        top=1,
        to_source=True,
    )


def _load_heatmap() -> dashboard.Panel:
    return house.cells(
        Words(
            "Sources by load",
            "How many sources are in each tenth of load: all of them, not only the busiest. "
            "Metric: `mx_p2p_source_load`.",
            "No listing: is mx-operator scraped?",
        ),
        Query(cumulative(LISTED, _DECILES), step="1m"),
        unit="percentunit",
    )


def _pulls_by_policy() -> dashboard.Panel:
    def of(matcher: str) -> str:
        return f"{total(('policy', 'result'), pulled(select('mx_p2p_source_attempts_total', matcher)))} / 5"

    return house.lines(
        Words(
            "Pulls by policy and result",
            f"Attempts to pull, a minute, over {WINDOW}. Anything but success costs a target time. "
            "Metric: `mx_p2p_source_attempts_total`.",
            NEEDS_TARGETS,
        ),
        [
            Query(of('result="success"'), "{{policy}} {{result}}"),
            Query(nonzero(of('result!="success"')), "{{policy}} {{result}}"),
        ],
        colors=(("/ (metadata_miss|incompatible|transfer_retry)$/", "orange"), ("/ transfer_fallback$/", "red")),
        unit="cpm",
        stacked=True,
    )


def _pulls_per_source() -> dashboard.Panel:
    selections = select("mx_p2p_source_selections_total", 'source_worker_id!=""')
    most = f"topk({LINES}, sum by (source_worker_id) ({selections} @ end()))"
    per = total(("source_worker_id",), pulled(selections))
    return house.lines(
        Words(
            "Pulls per source",
            f"Pulls started from each source, a minute, over {WINDOW}; the 15 most chosen. The label is off by "
            "default, in the released client and in ours: its values are new with every process. "
            "Metric: `mx_p2p_source_selections_total`.",
            NO_SOURCE_LABEL,
        ),
        [Query(f"{per} / 5 and on (source_worker_id) {most}", "{{source_worker_id}}")],
        unit="cpm",
    )


def _busy_share() -> dashboard.Panel:
    return house.lines(
        Words(
            "Share of pulls that went to busy sources",
            f"By policy, over {WINDOW}. A policy that does not look at the load goes there as often as there are busy "
            "sources (dashed: their share). Metric: `mx_selector_chosen_load`, `mx_p2p_source_load`.",
            NEEDS_SELECTOR,
        ),
        [
            Query(known(_share("policy")), "{{policy}}"),
            Query(f"avg({LISTED} >= bool $busy)", "share of sources that are busy"),
        ],
        unit="percentunit",
        at_least=0.5,
        calcs=("lastNotNull", "mean"),
        dashed="/^share of/",
    )


def _transfer_seconds() -> dashboard.Panel:
    return house.lines(
        Words(
            "Pull time by policy and outcome",
            f"Median and 99th percentile over {WINDOW}. A retry or fallback took this long before it was given up. "
            "Metric: `mx_p2p_transfer_seconds`.",
            f"No pulls, or {house.NO_RULES}",
        ),
        [
            Query(known(quantile(0.99, ("policy", "outcome"), _PULLS)), "{{policy}} {{outcome}} p99"),
            Query(known(quantile(0.5, ("policy", "outcome"), _PULLS)), "{{policy}} {{outcome}} p50"),
        ],
        unit="s",
    )


def _chosen_age() -> dashboard.Panel:
    return house.lines(
        Words(
            "Age of the load that targets chose by",
            "From the server's stamp to the selection. Up to a heartbeat's interval is right: a load that has not "
            "changed is not written again. Metric: `mx_selector_chosen_load_age_seconds`.",
            NEEDS_SELECTOR,
        ),
        [Query(known(quantile(q, (), _AGES)), f"p{100 * q:g}") for q in (0.5, 0.95, 0.99)],
        unit="s",
    )


_NIC_WORDS: Final = {
    "transmit": "Sent by node, the 15 that send most now. A pull is sent by its source.",
    "receive": "Received by node, the 15 that receive most now. A pull is received by the new worker.",
}


def _nic(direction: str, words: str) -> dashboard.Panel:
    moved = select("hw_network_io_bytes_total", network_io_direction=direction)
    used = select("hw_network_bandwidth_utilization", network_io_direction=direction)
    busiest = f"topk({LINES}, sum by (instance) ({used} @ end()))"
    return house.lines(
        Words(
            f"NIC {direction} per node",
            f"{words} Metric: `hw_network_io_bytes_total`.",
            NEEDS_EXPORTER,
        ),
        [
            Query(
                f"sum by (node, instance) (rate({moved}[$__rate_interval])) and on (instance) {busiest}",
                "{{node}} {{instance}}",
            )
        ],
        unit="Bps",
    )


def _kv() -> dashboard.Panel:
    pod = ("k8s_namespace_name", "k8s_pod_name", "k8s_pod_ip")
    usage = greatest(pod, select("mx_kv_cache_usage"))
    return house.lines(
        Words(
            "KV cache per worker",
            "Share of the KV cache in use, of the 15 workers that were fullest in the last hour. "
            "Metric: `mx_kv_cache_usage`.",
            NEEDS_EXPORTER,
        ),
        [Query(leading(usage, pod), "{{k8s_namespace_name}}/{{k8s_pod_name}}")],
        unit="percentunit",
        top=1,
        to_source=True,
    )


def _first_token() -> dashboard.Panel:
    return house.lines(
        Words(
            "Time to first token",
            "By engine, 99th percentile and median over 5 minutes; dashed the 99th percentile of the time chosen as "
            "before. Metric: `vllm:time_to_first_token_seconds`, `sglang:time_to_first_token_seconds`.",
            f"No traffic, or {house.NO_RULES}",
        ),
        [
            Query(known(quantile(0.99, ("engine",), _TTFT)), "{{engine}} p99"),
            Query(known(quantile(0.5, ("engine",), _TTFT)), "{{engine}} p50"),
            Query(known(quantile(0.99, ("engine",), _HOUR_BEFORE)), "{{engine}} p99 before"),
        ],
        unit="s",
        dashed="/before$/",
    )


def _tokens() -> dashboard.Panel:
    tokens = total(("engine", "model_name"), select("mx:generation_tokens:rate5m", 'model_name=~"$model"'))
    return house.lines(
        Words(
            "Generated tokens",
            "A second, by engine and model. Metric: `vllm:generation_tokens_total`, `sglang:generation_tokens_total`.",
            f"No engine, or {house.NO_RULES}",
        ),
        [Query(tokens, "{{engine}} {{model_name}}")],
        unit="tokens/s",
        stacked=True,
    )


def _requests() -> dashboard.Panel:
    running = named("vllm:num_requests_running", "sglang:num_running_reqs", "trtllm_num_requests_running")
    waiting = named("vllm:num_requests_waiting", "sglang:num_queue_reqs", "trtllm_num_requests_waiting")
    queries = [
        Query(total((), select("", names, 'model_name=~"$model"')), legend)
        for names, legend in ((running, "running"), (waiting, "waiting"))
    ]
    return house.lines(
        Words(
            "Requests",
            "Running and waiting in all engines. A queue that grows while pulls run is the harm to look for. "
            "Metric: `vllm:num_requests_running`, `sglang:num_running_reqs`, `vllm:num_requests_waiting`, "
            "`sglang:num_queue_reqs`.",
            "No engine's metrics",
        ),
        queries,
    )
