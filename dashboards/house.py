"""How panels look: one function per kind, so that every dashboard speaks with one voice.

Colours mean something or are not there: blue says how much, green, orange and red say how well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from grafana_foundation_sdk.builders import common as shared
from grafana_foundation_sdk.builders import dashboard as boards
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
PLUGIN_VERSION: Final = "12.0.0"
TIMES: Final = "suffix:\u00d7"
NO_RULES: Final = "the recording rules are not installed"
#: From a series with an address to its dashboard, keeping time and data source.
_TO_SOURCE: Final = "/d/mx-source?var-source=${__field.labels.k8s_pod_ip}&${datasource:queryparam}&${__url_time_range}"

_SORTED_BY: Final = {"lastNotNull": "Last *", "max": "Max", "mean": "Mean"}

#: (from, colour) steps; the first begins at minus infinity.
Steps = Sequence[tuple[float | None, str]]
PLAIN: Final[Steps] = ((None, "blue"),)
GOOD_IF_ONE: Final[Steps] = ((None, "red"), (1, "green"))
BAD_IF_ANY: Final[Steps] = ((None, "green"), (1, "red"))


@dataclasses.dataclass(frozen=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: PromQL; Grafana's variables allowed.
        legend: Legend text with `{{label}}`s.
        instant: Ask for one moment, the range's end, instead of the range.
        format: `table` or `heatmap` where it is not a time series.
        step: Least step of a range query, such as `15s`.
    """

    expr: str
    legend: str = ""
    instant: bool = False
    format: PromQueryFormat = PromQueryFormat.TIME_SERIES
    step: str = ""

    def built(self) -> prometheus.Dataquery:
        """As the SDK has it."""
        query = prometheus.Dataquery().datasource(SOURCE).expr(self.expr).format(self.format)
        query = query.instant() if self.instant else query.range()
        query = query.interval(self.step) if self.step else query
        return query.legend_format(self.legend) if self.legend else query


@dataclasses.dataclass(frozen=True)
class Words:
    """What a panel says about itself.

    Attributes:
        title: Short.
        description: What it answers, and how to read it.
        empty: What to do when there is nothing to show.
    """

    title: str
    description: str
    empty: str = "No data"


def _steps(steps: Steps) -> boards.ThresholdsConfig:
    made = [dashboard.Threshold(value=value, color=color) for value, color in steps]
    return boards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(made)


def _color(mode: dashboard.FieldColorModeId) -> boards.FieldColor:
    return boards.FieldColor().mode(mode)


def values(meanings: Mapping[str, tuple[str, str]]) -> dashboard.ValueMap:
    """Texts and colours for values."""
    options = {
        value: dashboard.ValueMappingResult(text=said, color=color, index=index)
        for index, (value, (said, color)) in enumerate(meanings.items())
    }
    return dashboard.ValueMap(options=options)


def nothing(said: str) -> dashboard.SpecialValueMap:
    """What to say instead of NaN: a share of nothing."""
    result = dashboard.ValueMappingResult(text=said, color="text", index=9)
    options = dashboard.DashboardSpecialValueMapOptions(match=dashboard.SpecialValueMatch.NULL_AND_NAN, result=result)
    return dashboard.SpecialValueMap(options=options)


@dataclasses.dataclass(frozen=True)
class Beside:
    """A second number in a stat: the name of its series, its unit, its thresholds."""

    name: str
    unit: str
    steps: Steps
    decimals: int | None = None

    def properties(self) -> list[dashboard.DynamicConfigValue]:
        """What overrides the panel's own."""
        steps = {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in self.steps]}
        made = {"unit": self.unit, "thresholds": steps, "decimals": self.decimals}
        return [
            dashboard.DynamicConfigValue(id_val=key, value=value) for key, value in made.items() if value is not None
        ]


_SHOWN: Final = {
    (False, False): common.BigValueTextMode.VALUE,
    (True, False): common.BigValueTextMode.NAME,
    (False, True): common.BigValueTextMode.VALUE_AND_NAME,
}


def number(
    words: Words,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    steps: Steps = PLAIN,
    decimals: int | None = None,
    mappings: Sequence[dashboard.ValueMapping] = (),
    name_only: bool = False,
    beside: Sequence[Beside] = (),
) -> dashboard.Panel:
    """A stat: one number per series, of the moment at the range's end, never the last one there was.

    Args:
        words: Title, description, and what to say when empty.
        queries: What to ask.
        unit: Grafana's unit id.
        steps: Thresholds; plain blue when left out.
        decimals: Digits after the point.
        mappings: Texts for values.
        name_only: Show the series' name instead of its value.
        beside: Series of these names are measured otherwise; all names are shown then.
    """
    panel = (
        stat.Panel()
        .title(words.title)
        .description(words.description)
        .datasource(SOURCE)
        .no_value(words.empty)
        .unit(unit)
        .thresholds(_steps(steps))
        .color_scheme(_color(dashboard.FieldColorModeId.THRESHOLDS))
        .mappings(list(mappings))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .text_mode(_SHOWN[name_only, bool(beside)])
        .justify_mode(common.BigValueJustifyMode.AUTO)
        .reduce_options(shared.ReduceDataOptions().calcs(["last"]))
        .targets([dataclasses.replace(query, instant=True).built() for query in queries])
    )
    for other in beside:
        panel = panel.override_by_name(other.name, other.properties())
    return _finished(panel.decimals(decimals).build() if decimals is not None else panel.build())


def lines(
    words: Words,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    top: float | None = None,
    at_least: float | None = None,
    stacked: bool = False,
    limit: float | None = None,
    dashed: str = "",
    bold: str = "",
    colors: Sequence[tuple[str, str]] = (),
    to_source: bool = False,
    calcs: Sequence[str] = ("lastNotNull", "max"),
    legend: str = "table",
) -> dashboard.Panel:
    """A graph over time, from zero.

    Args:
        words: Title, description, and what to say when empty.
        queries: What to ask.
        unit: Grafana's unit id.
        top: Fixed upper end of the axis.
        at_least: Let the axis reach this high, so that a flat zero looks like one.
        stacked: Add the series up.
        limit: Draw a dashed line there.
        dashed: The series of this name, as a regular expression, are there to compare with: dashed.
        bold: The series of this name, as a regular expression, matter most.
        colors: Names, as regular expressions, whose colour means something.
        to_source: A click on a series leads to its source.
        calcs: Columns of the legend.
        legend: `table` below with columns, or a `list`.
    """
    mode = common.LegendDisplayMode.TABLE if legend == "table" else common.LegendDisplayMode.LIST
    key = shared.VizLegendOptions().display_mode(mode).placement(common.LegendPlacement.BOTTOM).show_legend(True)
    hover = shared.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    panel = (
        timeseries.Panel()
        .title(words.title)
        .description(words.description)
        .datasource(SOURCE)
        .no_value(words.empty)
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(30 if stacked else 0)
        .show_points(common.VisibilityMode.NEVER)
        .span_nulls(False)
        .color_scheme(_color(dashboard.FieldColorModeId.PALETTE_CLASSIC))
        .legend(key.calcs(list(calcs)).sort_by(_SORTED_BY[calcs[0]]).sort_desc(True) if legend == "table" else key)
        .tooltip(hover)
        .targets([query.built() for query in queries])
    )
    if top is not None:
        panel = panel.max(top)
    if at_least is not None:
        panel = panel.axis_soft_max(at_least)
    if stacked:
        panel = panel.stacking(shared.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if dashed:
        style = dashboard.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 6]})
        panel = panel.override_by_regexp(dashed, [style])
    if bold:
        panel = panel.override_by_regexp(bold, [dashboard.DynamicConfigValue(id_val="custom.lineWidth", value=3)])
    for name, color in colors:
        fixed = dashboard.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
        panel = panel.override_by_regexp(name, [fixed])
    if to_source:
        panel = panel.data_links([boards.DashboardLink("MX / Source").url(_TO_SOURCE).tooltip("Look at this source")])
    if limit is not None:
        line = shared.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(_steps(((None, "transparent"), (limit, "orange")))).thresholds_style(line)
    return _finished(panel.build())


def cells(words: Words, query: Query, *, unit: str, scheme: str = "Blues") -> dashboard.Panel:
    """A heatmap of a histogram's cumulative buckets."""
    asked = dataclasses.replace(query, format=PromQueryFormat.HEATMAP, legend="{{le}}")
    color = heatmap.HeatmapColorOptions().mode(heatmap_model.HeatmapColorMode.SCHEME).scheme(scheme).steps(64)
    hover = heatmap.HeatmapTooltip().mode(common.TooltipDisplayMode.SINGLE).y_histogram(True)
    panel = (
        heatmap.Panel()
        .title(words.title)
        .description(words.description)
        .datasource(SOURCE)
        .no_value(words.empty)
        .calculate(False)
        .color(color)
        .cell_gap(1)
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .tooltip(hover)
        .hide_legend()
        .targets([asked.built()])
    )
    return _finished(panel.build())


def states(
    words: Words,
    queries: Sequence[Query],
    mappings: Sequence[dashboard.ValueMapping],
    *,
    steps: Steps = PLAIN,
    unit: str = "short",
) -> dashboard.Panel:
    """A timeline of states: one line per series."""
    panel = (
        statetimeline.Panel()
        .title(words.title)
        .description(words.description)
        .datasource(SOURCE)
        .no_value(words.empty)
        .unit(unit)
        .mappings(list(mappings))
        .thresholds(_steps(steps))
        .color_scheme(_color(dashboard.FieldColorModeId.THRESHOLDS))
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.85)
        .fill_opacity(75)
        .line_width(0)
        .legend(shared.VizLegendOptions().show_legend(False).display_mode(common.LegendDisplayMode.LIST))
        .targets([query.built() for query in queries])
    )
    return _finished(panel.build())


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table: the label or value field it comes from, and how it is shown; `words` have colours."""

    field: str
    title: str
    unit: str = ""
    steps: Steps = ()
    width: int = 0
    words: tuple[tuple[str, str], ...] = ()


def rows(words: Words, queries: Sequence[Query], columns: Sequence[Column], sort: str = "") -> dashboard.Panel:
    """A table: one row per label set, one column per named field, in the order given; all else is left out.

    Args:
        words: Title, description, and what to say when empty.
        queries: What to ask.
        columns: Which fields are shown, and how.
        sort: Title of the column to sort by at first, from A to Z.
    """
    asked = [dataclasses.replace(query, instant=True, format=PromQueryFormat.TABLE) for query in queries]
    organize = {
        "includeByName": {column.field: True for column in columns},
        "indexByName": {column.field: index for index, column in enumerate(columns)},
        "renameByName": {column.field: column.title for column in columns},
    }
    steps = [dashboard.DataTransformerConfig(id_val="organize", options=organize)]
    if len(queries) > 1:
        steps.insert(0, dashboard.DataTransformerConfig(id_val="merge", options={}))
    panel = (
        table.Panel()
        .title(words.title)
        .description(words.description)
        .datasource(SOURCE)
        .no_value(words.empty)
        .cell_height(common.TableCellHeight.SM)
        .targets([query.built() for query in asked])
        .transformations(steps)
    )
    if sort:
        panel = panel.sort_by([shared.TableSortByFieldState().display_name(sort).desc(False)])
    for column in columns:
        panel = panel.override_by_name(column.title, _properties(column))
    return _finished(panel.build())


def _properties(column: Column) -> list[dashboard.DynamicConfigValue]:
    properties = []
    if column.unit:
        properties.append(dashboard.DynamicConfigValue(id_val="unit", value=column.unit))
    if column.unit == "percentunit":
        properties.append(dashboard.DynamicConfigValue(id_val="decimals", value=1))
    if column.width:
        properties.append(dashboard.DynamicConfigValue(id_val="custom.width", value=column.width))
    if column.words:
        mapping = {"type": "value", "options": {word: {"color": color} for word, color in column.words}}
        properties.append(dashboard.DynamicConfigValue(id_val="mappings", value=[mapping]))
        properties.append(dashboard.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    if column.steps:
        made = {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in column.steps]}
        properties.append(dashboard.DynamicConfigValue(id_val="thresholds", value=made))
        properties.append(dashboard.DynamicConfigValue(id_val="color", value={"mode": "thresholds"}))
        properties.append(dashboard.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    return properties


def _finished(panel: dashboard.Panel) -> dashboard.Panel:
    panel.plugin_version = PLUGIN_VERSION
    return panel
