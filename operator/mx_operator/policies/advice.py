"""Warnings about a valid policy: settings that are allowed and will disappoint."""

from __future__ import annotations

from typing import Final

from mx_operator.policies import durations, queries
from mx_operator.policies.findings import Finding, Severity
from mx_operator.policies.spec import Prometheus, Signal, SourceLoadPolicy

#: What a Prometheus that says nothing of itself is taken to scrape at; operators' charts use 15, 30 or 60 s.
_USUAL_SCRAPE: Final = 15.0


def advise(policy: SourceLoadPolicy) -> list[Finding]:
    """The warnings a policy deserves, in the order of its fields."""
    found = [_secret_in_the_clear(policy), _stale_after(policy), _timeout(policy)]
    for index, signal in enumerate(policy.signals):
        found.append(_join_label(signal, f"spec.signals[{index}]"))
    return [finding for finding in found if finding is not None]


def _warning(field: str, problem: str, fix: str) -> Finding:
    return Finding(field, problem, fix, Severity.WARNING)


def _stale_after(policy: SourceLoadPolicy) -> Finding | None:
    known = policy.prometheus.scrape_interval
    scrape = _USUAL_SCRAPE if known is None else known
    needed = 2 * scrape + policy.interval
    if policy.stale_after >= needed:
        return None
    said = f"{durations.show(policy.stale_after)} is less than twice the scrape interval plus interval"
    fix = f"write at least {durations.show(needed)}"
    if known is None:
        fix += ", or say prometheus.scrapeInterval if it is shorter than 15s"
    return _warning("spec.staleAfter", f"{said}: sources go stale between two scrapes", fix)


def _timeout(policy: SourceLoadPolicy) -> Finding | None:
    if policy.prometheus.timeout <= 10 * policy.interval:
        return None
    problem = f"{durations.show(policy.prometheus.timeout)} is more than ten cycles: one slow query makes loads old"
    return _warning("spec.prometheus.timeout", problem, f"write at most {durations.show(10 * policy.interval)}")


def _secret_in_the_clear(policy: SourceLoadPolicy) -> Finding | None:
    if policy.prometheus.url.startswith("https://") or not _credentials(policy.prometheus):
        return None
    return _warning("spec.prometheus.url", "sends credentials over http://", "use https:// where it is offered")


def _credentials(prometheus: Prometheus) -> bool:
    return bool(prometheus.bearer_token_file or prometheus.basic_auth_file or prometheus.oauth2)


def _join_label(signal: Signal, path: str) -> Finding | None:
    wanted = [label for label in (signal.join_label, signal.companion_label) if label]
    missing = [label for label in wanted if not queries.mentions(signal.query, [label])]
    if not missing or not queries.aggregates_by(signal.query):
        return None
    problem = f"the query never names {missing[0]}, by which its series are joined to sources"
    return _warning(f"{path}.joinLabel", problem, f"keep it in the query: ... by ({', '.join(wanted)})")
