"""Define the variables of the dashboards, and the selectors that use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.models import dashboard as models

from streameval_dashboards.parts import SOURCE, Placed, add_rows

INSTANCE = 'job=~"$job", instance=~"$instance"'
POLICY = f'{INSTANCE}, policy=~"$policy"'
ESTIMATE = f'{POLICY}, estimator="$estimator", average="$average", reward="$reward"'
ALL_ESTIMATES = f'{INSTANCE}, estimator="$estimator", average="$average", reward="$reward"'
"""Selects the chosen estimates of all policies, including production."""
ALL_ON_AVERAGE = f'{INSTANCE}, average="$average"'
"""Selects all policies and estimators on the chosen average."""
OFTEN = "60s"
"""Minimum interval between the evaluations of annotations."""


def datasource() -> dashboard.DatasourceVariable:
    """Return the variable for the Prometheus data source."""
    return dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def several(name: str, label: str, values_of: str) -> dashboard.QueryVariable:
    """Return a variable with all values selected by default."""
    everything = models.VariableOption(text="All", value="$__all", selected=True)
    return _variable(name, label, values_of).multi(True).include_all(True).current(everything)


def one(name: str, label: str, values_of: str, first: str) -> dashboard.QueryVariable:
    """Return a variable with one value: `first` if it exists, otherwise the last in alphabetical order."""
    chosen = models.VariableOption(text=first, value=first, selected=True)
    variable = _variable(name, label, values_of).multi(False).include_all(False).current(chosen)
    return variable.sort(models.VariableSort.ALPHABETICAL_DESC)


def instance_variables() -> list[dashboard.DatasourceVariable | dashboard.QueryVariable]:
    """Return the variables for data source, job, name and instance. One name keeps policies of two surfaces apart."""
    return [
        datasource(),
        several("job", "Job", "label_values(streameval_ready, job)"),
        _variable("name", "Name", 'label_values(streameval_build_info{job=~"$job"}, name)'),
        several("instance", "Instance", 'label_values(streameval_build_info{job=~"$job", name="$name"}, instance)'),
    ]


def estimate_variables() -> list[dashboard.QueryVariable]:
    """Return the variables for candidates, reward, estimator, average and period."""
    estimates = f"streameval_policy_value{{{INSTANCE}}}"
    chosen = f'streameval_policy_value{{{INSTANCE}, estimator="$estimator"}}'
    return [
        several("policy", "Candidate", f"label_values(streameval_policy_lift{{{INSTANCE}}}, policy)"),
        one("reward", "Reward", f"label_values({estimates}, reward)", "reward"),
        one("estimator", "Estimator", f"label_values({estimates}, estimator)", "stratified_ips"),
        one("average", "Average", f"label_values({chosen}, average)", "mixture"),
        one("period", "Period", f"label_values(streameval_policy_phase_lift{{{INSTANCE}}}, period)", "1d"),
    ]


def annotation(name: str, color: str, expression: str, title: str, shown: bool) -> dashboard.AnnotationQuery:
    """Mark the times at which the expression is above 0.

    Grafana evaluates the expression at 100 times in the displayed range, however long it is. Expressions therefore look
    back to the previous time by `$__interval`.

    Args:
        name: Name of the annotation.
        color: Color of the marks.
        expression: PromQL expression.
        title: Text of a mark.
        shown: Whether the annotation is enabled by default.
    """
    query = prometheus.Dataquery().expr(expression).interval(OFTEN).ref_id("Anno").range()
    marks = dashboard.AnnotationQuery().name(name).enable(shown).icon_color(color).title_format(title)
    marks.expr(expression).step(OFTEN)  # Grafana 11 accepts them only here
    return marks.datasource(SOURCE).target(query.datasource(SOURCE))


def moments(policy_marks: bool) -> list[dashboard.AnnotationQuery]:
    """Return annotations: promotable from and until, drift, and restarts of the daemon.

    Args:
        policy_marks: Whether all are enabled by default, otherwise only restarts.
    """
    promotable = f"max by (policy, rule) (streameval_policy_promotable{{{INSTANCE}}})"
    before = f"max by (policy, rule) (streameval_policy_promotable{{{INSTANCE}}} offset $__interval)"
    drifts = f"max by (policy) (streameval_policy_drift_detections_total{{{INSTANCE}}}"
    drift = f"{drifts}) > {drifts} offset $__interval)"
    start = f"process_start_time_seconds{{{INSTANCE}}}"
    starts = f"{start} > time() - 2 * $__interval_ms / 1000 unless {start} == {start} offset $__interval"
    return [
        annotation("Restarts", "purple", starts, "{{instance}} started", shown=True),
        annotation("Drift", "yellow", drift, "drift of {{policy}}", policy_marks),
        annotation(
            "Promotable",
            "green",
            f"{promotable} == 1 unless {before} == 1",
            "{{policy}} promotable ({{rule}})",
            policy_marks,
        ),
        annotation(
            "Not promotable",
            "red",
            f"{before} == 1 and {promotable} == 0",
            "{{policy}} no longer promotable",
            policy_marks,
        ),
    ]


def board(
    title: str,
    uid: str,
    description: str,
    other: tuple[str, str],
    variables: Iterable[dashboard.DatasourceVariable | dashboard.QueryVariable],
    rows: Mapping[str, Placed],
    policy_marks: bool,
) -> models.Dashboard:
    """Build a dashboard with a link to the other one (name, uid)."""
    name, address = other
    link = dashboard.DashboardLink(name).type(models.DashboardLinkType.LINK).url(f"/d/{address}")
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["streameval"])
        .time("now-6h", "now")
        .refresh("30s")
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(link.keep_time(True).include_vars(True).icon("dashboard").tooltip("").target_blank(False))
    )
    for variable in variables:
        made.with_variable(variable)
    for mark in moments(policy_marks):
        made.annotation(mark)
    add_rows(made, rows)
    return made.build()


def _variable(name: str, label: str, values_of: str) -> dashboard.QueryVariable:
    query: dict[str, object] = {"query": values_of, "refId": "StandardVariableQuery"}
    variable = dashboard.QueryVariable(name).label(label).datasource(SOURCE).query(query)
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.ALPHABETICAL_ASC)
