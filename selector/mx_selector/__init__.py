"""Choosing the source that a target pulls model weights from.

Engines call `select_sources` (or `rank` and `top` on rows they have); `mx-select` shows people what targets would do;
`mx_selector.plugin` puts the policies into the released ModelExpress client. A selection is explainable, the same in
every process, and never worse than the baseline when there is no load to go by.
"""

from mx_selector.attempts import Attempt
from mx_selector.eligibility import compatible
from mx_selector.model import Candidate, Target
from mx_selector.policies.base import Policy, ScoredPolicy
from mx_selector.policies.registry import names, register, resolve
from mx_selector.ranking import rank, top
from mx_selector.selection import Selection, select_from, select_sources

__all__ = [
    "Attempt",
    "Candidate",
    "Policy",
    "ScoredPolicy",
    "Selection",
    "Target",
    "compatible",
    "names",
    "rank",
    "register",
    "resolve",
    "select_from",
    "select_sources",
    "top",
]
