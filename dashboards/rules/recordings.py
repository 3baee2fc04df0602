"""What is computed once by Prometheus instead of by every dashboard: histograms of whole fleets, cut down to a page.

With 2,000 workers a quantile over raw buckets reads a hundred thousand samples a step. These keep `job`, so that
dashboards choose by it, and drop what tells one worker from another.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import pulled
from dashboards.rules.model import Recording

_TRANSFERS: Final = "mx_p2p_transfer_seconds_bucket"

RECORDINGS: Final = (
    Recording("mx:p2p_transfer_seconds_bucket:pulls5m", f"sum by (job, policy, outcome, le) ({pulled(_TRANSFERS)})"),
    Recording("mx:p2p_transfer_seconds_bucket:ever", f"sum by (job, outcome, le) ({_TRANSFERS})"),
    Recording(
        "mx:selector_chosen_load_age_seconds_bucket:pulls5m",
        f"sum by (job, policy, le) ({pulled('mx_selector_chosen_load_age_seconds_bucket')})",
    ),
    *(
        Recording(
            "mx:time_to_first_token_seconds_bucket:rate5m",
            f"sum by (job, model_name, le) (rate({metric}_bucket[5m]))",
            (("engine", engine),),
        )
        for engine, metric in (
            ("vllm", "vllm:time_to_first_token_seconds"),
            ("sglang", "sglang:time_to_first_token_seconds"),
            ("trtllm", "trtllm_time_to_first_token_seconds"),
        )
    ),
    *(
        Recording(
            "mx:generation_tokens:rate5m",
            f"sum by (job, model_name) (rate({metric}[5m]))",
            (("engine", engine),),
        )
        for engine, metric in (
            ("vllm", "vllm:generation_tokens_total"),
            ("sglang", "sglang:generation_tokens_total"),
            ("trtllm", "trtllm_generation_tokens_total"),
        )
    ),
)
