"""What all dashboards have around their panels: variables, links to each other, annotations, time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.cog import builder as cogbuilder
from grafana_foundation_sdk.models import dashboard

from dashboards.grid import Row, filled
from dashboards.house import SOURCE

TAG: Final = "modelexpress"
#: Names whose jobs the variable `job` offers: ours, the released client's and the engines'.
_JOBS: Final = (
    "mx_build_info|mx_source_load|mx_operator_sources|mx_server_sources|mx_p2p_list_sources_total"
    "|vllm:kv_cache_usage_perc|sglang:token_usage|trtllm_kv_cache_utilization|kube_pod_info"
)
#: Names that carry `model_name`: the listing and the engines.
_MODELS: Final = "mx_p2p_source_load|vllm:kv_cache_usage_perc|sglang:token_usage"


def datasource() -> boards.DatasourceVariable:
    """The one datasource; nothing baked in."""
    return boards.DatasourceVariable("datasource").label("Data source").type("prometheus")


def query(
    name: str, label: str, asked: str, *, many: bool, regex: str = "", all_value: str = ".+"
) -> boards.QueryVariable:
    """A variable whose values Prometheus knows; several and all of them when `many`."""
    made = boards.QueryVariable(name).label(label).datasource(SOURCE).query(asked)
    made = made.definition(asked).refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made = made.sort(dashboard.VariableSort.ALPHABETICAL_ASC).multi(many).include_all(many)
    made = made.all_value(all_value) if many else made
    return made.regex(regex) if regex else made


def jobs() -> boards.QueryVariable:
    """Scrape jobs."""
    return query("job", "Job", f'label_values({{__name__=~"{_JOBS}"}}, job)', many=True)


def models() -> boards.QueryVariable:
    """Models; everything, also what carries no model, when all are chosen."""
    asked = f'label_values({{__name__=~"{_MODELS}", job=~"$job"}}, model_name)'
    return query("model", "Model", asked, many=True, all_value=".*")


def choice(name: str, label: str, description: str, options: Sequence[str], first: str) -> boards.CustomVariable:
    """A variable with fixed values."""
    made = [dashboard.VariableOption(text=value, value=value, selected=value == first) for value in options]
    chosen = next(option for option in made if option.selected)
    variable = boards.CustomVariable(name).label(label).description(description).values(",".join(options))
    return variable.options(made).current(chosen)


def filters() -> boards.AdHocVariable:
    """Filters on any label, for every query: cluster, namespace, node."""
    return boards.AdHocVariable("filters").label("Filters").datasource(SOURCE)


def _annotation(
    name: str, color: str, expr: str, title: str, text: str, *, value_is_time: bool
) -> boards.AnnotationQuery:
    made = boards.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expr)
    asked = prometheus.Dataquery().expr(expr).ref_id("Annotation").range()
    made = made.target(asked).title_format(title).text_format(text).step("30s")
    return made.use_value_for_time(True) if value_is_time else made


def markers() -> list[cogbuilder.Builder[dashboard.AnnotationQuery]]:
    """Rollouts, from kube-state-metrics where there is one, and our alerts while they fire."""
    sets = "max by (namespace, replicaset) (kube_replicaset_created) * 1000"
    in_fleet = (
        'group by (namespace) (label_replace(mx_source_load, "namespace", "$1", "k8s_namespace_name", "(.+)"))'
        ' or group by (namespace) ({__name__=~"vllm:kv_cache_usage_perc|sglang:token_usage|mx_p2p_list_sources_total"})'
    )
    stateful = "sum by (namespace, statefulset) (changes(kube_statefulset_metadata_generation[1m])) > 0"
    return [
        _annotation(
            "Deployment rollouts",
            "purple",
            f"{sets} and on (namespace) ({in_fleet})",
            "New pods",
            "{{namespace}}/{{replicaset}}",
            value_is_time=True,
        ),
        _annotation(
            "StatefulSet rollouts",
            "purple",
            f"{stateful} and on (namespace) ({in_fleet})",
            "New pods",
            "{{namespace}}/{{statefulset}}",
            value_is_time=False,
        ),
        _annotation(
            "Alerts",
            "red",
            'ALERTS{alertname=~"Mx.+", alertstate="firing"}',
            "{{alertname}}",
            "{{severity}}: {{policy}}{{instance}}",
            value_is_time=False,
        ),
    ]


def dashboard_of(
    title: str,
    uid: str,
    module_doc: str | None,
    rows: Sequence[Row],
    variables: Sequence[cogbuilder.Builder[dashboard.VariableModel]] = (),
) -> dashboard.Dashboard:
    """A whole dashboard.

    Args:
        title: In Grafana's list.
        uid: In its address; stable.
        module_doc: Docstring of the board's module: its first line describes the dashboard.
        rows: What is on it, from top to bottom.
        variables: Its own, beside those that all have.
    """
    others = (
        boards.DashboardLink("MX dashboards")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )
    made = (
        boards.Dashboard(title)
        .uid(uid)
        .description(str(module_doc).splitlines()[0])
        .tags([TAG])
        .timezone("browser")
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-1h", "now")
        .link(others)
        .variables([datasource(), jobs(), *variables, filters()])
        .annotations(markers())
        .build()
    )
    made.panels = list(filled(rows).panels)
    return made
