"""Build queries, rows, and panels with a title, a description and a unit for both dashboards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries, trend
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = shapes.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24

Shown = TypeVar("Shown", timeseries.Panel, stat.Panel, statetimeline.Panel, table.Panel, trend.Panel)
AnyPanel = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel | trend.Panel
Placed = list[tuple[int, int, AnyPanel]]
"""Panels with their width and height."""


@dataclass(frozen=True)
class Query:
    """Hold an expression and the name of its series. `{{label}}` stands for the value of a label."""

    expression: str
    legend: str


@dataclass(frozen=True)
class About:
    """Hold the title of a panel, its description, and the unit of its numbers."""

    title: str
    description: str
    unit: str


@dataclass(frozen=True)
class Bounded:
    """Hold a value with its interval, shown as three lines: `name`, `name, upper` and `name, lower`."""

    name: str
    color: str
    value: str
    lower: str
    upper: str

    def queries(self) -> list[Query]:
        """Return the queries of the three lines."""
        return [
            Query(self.upper, f"{self.name}, upper"),
            Query(self.lower, f"{self.name}, lower"),
            Query(self.value, self.name),
        ]


def lines(
    about: About, *queries: Query, log_scale: bool = False, zero: bool = False, names_on_the_right: bool = False
) -> timeseries.Panel:
    """Draw lines over time.

    Args:
        about: Title, description and unit.
        queries: One query for each line or group of lines.
        log_scale: Whether the axis is logarithmic.
        zero: Whether the axis includes 0.
        names_on_the_right: Whether the legend is on the right, so that a long one takes no height from the lines.
    """
    panel = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(0)
        .show_points(shapes.VisibilityMode.NEVER)
        .tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING))
        .legend(_legend(shown=True, is_right=names_on_the_right))
    )
    if log_scale:
        panel.scale_distribution(common.ScaleDistributionConfig().type(shapes.ScaleDistribution.LOG).log(10))
    if zero:
        panel.axis_soft_min(0)
        if about.unit == "percentunit":
            panel.axis_soft_max(0.01)  # otherwise the axis of a share that is always 0 goes up to 10,000 %
    return _with(panel, about, queries)


def intervals(about: About, *values: Bounded) -> timeseries.Panel:
    """Draw values, and fill the area between their lower and upper bounds."""
    panel = lines(about, *(query for bounded in values for query in bounded.queries()))
    _fill(panel, *values)
    return panel


def by_number(about: About, key: str, bounded: Bounded, dots: Query, share: Query) -> trend.Panel:
    """Draw current numbers against a label that is a number.

    Args:
        about: Title, description and unit.
        key: Label on the x axis.
        bounded: Line with its interval.
        dots: Query of points.
        share: Query of a share, as bars on their own axis.
    """
    queries = [*bounded.queries(), dots, share]
    panel = trend.Panel().x_field(key).line_width(1).legend(_legend(shown=True))
    _join(panel, key, queries)
    panel.with_transformation(
        models.DataTransformerConfig(
            id_val="convertFieldType", options={"conversions": [{"targetField": key, "destinationType": "number"}]}
        )
    )
    panel.with_transformation(models.DataTransformerConfig(id_val="sortBy", options={"sort": [{"field": key}]}))
    _fill(panel, bounded)
    panel.override_by_name(dots.legend, _look(color=_fixed("orange"), drawStyle="points", pointSize=7))
    bars = {"color": _fixed("text"), "unit": "percentunit", "drawStyle": "bars", "fillOpacity": 15, "lineWidth": 0}
    panel.override_by_name(share.legend, _look(**bars, axisPlacement="right", axisSoftMin=0))
    return _with(panel, about, queries, instant=True)


def _fill(panel: timeseries.Panel | trend.Panel, *values: Bounded) -> None:
    """Fill the area between the lower and upper bounds of values."""
    for bounded in values:
        panel.override_by_name(bounded.name, _look(color=_fixed(bounded.color), lineWidth=2))
        faint = {"color": _fixed(bounded.color), "lineWidth": 0, "hideFrom": _only_in_the_picture()}
        panel.override_by_name(f"{bounded.name}, lower", _look(**faint))
        filled = {"fillBelowTo": f"{bounded.name}, lower", "fillOpacity": 15}
        panel.override_by_name(f"{bounded.name}, upper", _look(**faint, **filled))


def marked(panel: timeseries.Panel, threshold: float) -> timeseries.Panel:
    """Add a dashed line at a reference value to the panel."""
    steps = [models.Threshold(value=None, color="transparent"), models.Threshold(value=threshold, color="orange")]
    return panel.thresholds(
        dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
    ).thresholds_style(common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED))


def number(
    about: About, query: Query, *steps: tuple[float, str], first: str = "green", named: tuple[str, str] | None = None
) -> stat.Panel:
    """Show the current number, in the color of the last step (from, color) that it has reached.

    If the series has ended, the panel shows "not known", because the last number would look like a current one.

    Args:
        about: Title, description and unit.
        query: Query of the number.
        steps: Values with the colors that start there.
        first: Color below all steps.
        named: Label that is shown with the number, and its value if there is no series.
    """
    unknown = models.DashboardSpecialValueMapOptions(
        match=models.SpecialValueMatch.NULL_AND_NAN,
        result=models.ValueMappingResult(text="not known", color="red", index=0),
    )
    nothing = 'label_replace(vector(NaN), "{}", "{}", "", "")'.format(*named) if named else "vector(NaN)"
    now = Query(f"{query.expression} or on () {nothing}", query.legend)
    panel = (
        stat.Panel()
        .color_mode(shapes.BigValueColorMode.VALUE)
        .graph_mode(shapes.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["last"]).values(False))
        .mappings([models.SpecialValueMap(options=unknown)])
        .thresholds(steps_of(first, *steps))
        .text_mode(shapes.BigValueTextMode.VALUE_AND_NAME if named else shapes.BigValueTextMode.AUTO)
    )
    return _with(panel, about, (now,))


def states(about: About, *queries: Query, texts: dict[str, tuple[str, str]]) -> statetimeline.Panel:
    """Show states over time.

    Args:
        about: Title, description and unit.
        queries: Queries of the states.
        texts: Word and color of each value.
    """
    panel = (
        statetimeline.Panel()
        .show_value(shapes.VisibilityMode.AUTO)
        .row_height(0.8)
        .merge_values(True)
        .mappings(words(texts))
        .legend(_legend(shown=False))
    )
    return _with(panel, about, queries)


def columns(
    about: About,
    key: str,
    queries: Sequence[Query],
    *,
    sorted_by: str,
    yes_or_no: Mapping[str, tuple[str, str]],
    percent: Sequence[str] = (),
    descending: bool = True,
) -> table.Panel:
    """Show a table with a row for each value of the label `key` and a column for each query.

    Args:
        about: Title, description and unit.
        key: Label of the rows.
        queries: Queries of the columns.
        sorted_by: Column that sorts the rows.
        yes_or_no: Colors of yes and of no, for columns that have these values.
        percent: Columns with ratios.
        descending: Whether the largest value comes first.
    """
    panel = (
        table.Panel()
        .show_header(True)
        .cell_options(shapes.TableAutoCellOptions())
        .cell_height(shapes.TableCellHeight.MD)
        .sort_by([common.TableSortByFieldState().display_name(sorted_by).desc(descending)])
    )
    _join(panel, key, queries)
    for name, (yes, no) in yes_or_no.items():
        texts = words({"0": ("No", no), "1": ("Yes", yes)})
        panel.override_by_name(name, _look(unit="bool_yes_no", mappings=texts, cellOptions={"type": "color-text"}))
    for name in percent:
        panel.override_by_name(name, _look(unit="percentunit"))
    return _with(panel, about, queries, instant=True)


def _join(panel: table.Panel | trend.Panel, key: str, queries: Sequence[Query]) -> None:
    """Make a row for each value of the label `key`, and a column for each query."""
    names = {f"Value #{_query_id(index)}": query.legend for index, query in enumerate(queries)}
    for name, options in (
        ("joinByField", {"byField": key, "mode": "outer"}),
        ("filterFieldsByName", _only(key, *names)),
        ("organize", {"renameByName": names}),
    ):
        panel.with_transformation(models.DataTransformerConfig(id_val=name, options=options))


def steps_of(first: str, *steps: tuple[float, str]) -> dashboard.ThresholdsConfig:
    """Return colors by value, with `first` below all steps."""
    all_steps = [
        models.Threshold(value=None, color=first),
        *(models.Threshold(value=value, color=color) for value, color in steps),
    ]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(all_steps)


def words(texts: dict[str, tuple[str, str]]) -> list[models.ValueMapping]:
    """Map values to words and colors."""
    results = {
        value: models.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    return [models.ValueMap(options=results)]


def add_rows(board: dashboard.Dashboard, rows: Mapping[str, Placed]) -> None:
    """Place rows of panels (width, height, panel) on the dashboard, and number the panels."""
    top, identity = 0, 0
    for title, panels in rows.items():
        board.with_row(dashboard.Row(title).grid_pos(models.GridPos(x=0, y=top, w=WIDTH, h=1)))
        top, left, highest = top + 1, 0, 0
        for width, height, panel in panels:
            identity += 1
            if left + width > WIDTH:
                top, left, highest = top + highest, 0, 0
            board.with_panel(panel.id(identity).grid_pos(models.GridPos(x=left, y=top, w=width, h=height)))
            left, highest = left + width, max(highest, height)
        top += highest


def repeated(panel: AnyPanel, variable: str, direction: Literal["h", "v"] = "h") -> AnyPanel:
    """Repeat the panel for each value of the variable."""
    return panel.repeat(variable).repeat_direction(direction).max_per_row(3)


def _with(panel: Shown, about: About, queries: Sequence[Query], instant: bool = False) -> Shown:
    panel.title(about.title).description(about.description).unit(about.unit).datasource(SOURCE)
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(_query_id(index))
        target.datasource(SOURCE)
        panel.with_target(target.instant().format(PromQueryFormat.TABLE) if instant else target.range())
    return panel


def _legend(*, shown: bool, is_right: bool = False) -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(shapes.LegendDisplayMode.LIST)
    placement = shapes.LegendPlacement.RIGHT if is_right else shapes.LegendPlacement.BOTTOM
    return legend.placement(placement).show_legend(shown).calcs([])


def _query_id(index: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[index]


def _only(*names: str) -> dict[str, Any]:
    return {"include": {"names": list(names)}}


def _fixed(color: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": color}


def _only_in_the_picture() -> dict[str, bool]:
    return {"legend": True, "tooltip": False, "viz": False}


def _look(**properties: Any) -> list[models.DynamicConfigValue]:
    own = {"color", "unit", "mappings"}
    return [
        models.DynamicConfigValue(id_val=name if name in own else f"custom.{name}", value=value)
        for name, value in properties.items()
    ]
