"""Describe what a configuration would run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from rich.table import Table

from streameval.cli.tables import facts
from streameval.common.component import Component
from streameval.common.text import counted, format_duration
from streameval.config.model import AnyDeadLetters, Config, DeadLetterFile, DeadLetterTopic
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.config import EvaluatorConfig


def configuration_table(config: Config) -> Table:
    """Show the parts that a configuration runs."""
    return facts(_parts(config))


def _parts(config: Config) -> Iterator[tuple[str, str]]:
    evaluated, http, state = config.evaluator_config(), config.http, config.kept_state()
    yield "source", config.source.description if config.source else "none: for `replay` only"
    yield "policies", ", ".join(_policies(config, evaluated))
    if evaluated.ranking is None:
        yield "reward", "\n".join(_rewards(config, evaluated))
    else:
        looks = f"users look at ranks by {_described(evaluated.ranking.examination)}"
        yield "ranking", f"clicks, {_described(evaluated.ranking.metric)}; {looks}"
    if evaluated.propensity is not None:
        model = evaluated.propensity.model
        by = f" by {', '.join(model.by)}" if model.by else ""
        yield "propensities", f"estimated ({model.kind}{by}); intervals leave out their error"
    if evaluated.segments:
        yield (
            "segments",
            "\n".join(f"{name}: {', '.join(segment.labels)}" for name, segment in evaluated.segments.items()),
        )
    for estimators, averages in evaluated.products:
        yield "estimators", _estimators(evaluated, estimators)
        lines = [f"{_described(average)}: {_described(evaluated.interval(average))} interval" for average in averages]
        yield "averages", "\n".join(lines)
    yield "drift", _drift(evaluated)
    yield "promotion", _promotion(config)
    estimates = sum(len(grid.estimators) * len(grid.averages) for grid in evaluated.grids() if not grid.optional)
    number = counted(len(evaluated.policies), "policy")
    yield (
        "estimates",
        f"{len(evaluated.policies) * estimates} for {number}, {config.confidence * 100:g}% intervals",
    )
    scheme, login = "https" if http.tls_certfile else "http", "with a token" if http.token_file else "without a token"
    yield "serves", f"{scheme}://{http.host}:{http.port}, {login}"
    snapshots = f"snapshots in {state.dir}, one every {format_duration(state.interval)}" if state else None
    yield "state", snapshots or "no state directory: a restart starts from zero"
    yield "rejected", _dead_letters(config.dead_letters)
    if config.decisions is not None:
        messages = ["each transition"] if config.promotion else []
        messages += ["each frozen copy"] if config.policies.versions else []
        yield "decisions", f"a message for {' and '.join(messages)}, to the topic {config.decisions.topic}"


def _policies(config: Config, evaluated: EvaluatorConfig) -> Iterator[str]:
    yield f"{config.policies.production} (production)"
    for name in evaluated.policies[1:]:
        policy = evaluated.computed_policies.get(name)
        yield name if policy is None else f"{name} ({policy.kind})"
    for name, copies in evaluated.versions.items():
        every = f"after every {copies.every:,} events, the last {copies.keep}"
        yield f"{name}-1, {name}-2, ... (of {copies.policy} {every})"


def _rewards(config: Config, evaluated: EvaluatorConfig) -> Iterator[str]:
    """Yield a line for each reward, the primary one first."""
    for (name, field, _, _), reward in zip(config.reward_fields, evaluated.rewards, strict=True):
        line = f"the field {field}, from {reward.low:g} to {reward.high:g}"
        if reward.quantile is not None:
            line = f"the field {field}, from {reward.low:g} to the {reward.quantile:g} quantile of earlier rewards"
        if reward.of:
            line = " + ".join(f"{weight:g} {part}" for part, weight in reward.of.items()).replace("+ -", "- ")
            line = " / ".join(reward.of) if reward.is_ratio else line
        for end in ("below", "above"):
            beyond = getattr(reward, end)
            line += f", clipped {end}" if beyond == "clip" and (reward.quantile is None or end == "below") else ""
            line = f"the share of events with {field} {end} {beyond:g}" if isinstance(beyond, float) else line
        guard = "" if reward.max_loss is None else f"; a guardrail: a loss of up to {reward.max_loss:g}"
        yield f"{name}: {line}{guard}" if config.rewards else line


def _estimators(evaluated: EvaluatorConfig, estimators: Sequence[AnyEstimator]) -> str:
    """Name the estimators, at last the ones that need fields which events may lack."""
    is_default = evaluated.default_estimators
    optional = [estimator for estimator in estimators if is_default and evaluated.needs_of(estimator)]
    names = ", ".join(_described(estimator) for estimator in estimators if estimator not in optional)
    better = ", ".join(estimator.label for estimator in optional)
    return f"{names}; {better} if events have features and distributions" if better else names


def _drift(config: EvaluatorConfig) -> str:
    if not config.rewards[0].has_fixed_range:
        what = "is a ratio" if config.rewards[0].is_ratio else "has max: auto"
        return f"off: a detector needs a fixed range of {config.rewards[0].name}, which {what}"
    if config.drift is None:
        return "off"
    return ", ".join([config.drift.name, *(f"{name} {value}" for name, value in config.drift.parameters.items())])


def _promotion(config: Config) -> str:
    settings = config.promotion
    if settings is None:
        return "off"
    rules = ", ".join(rule.label for rule in settings.rules)
    events = f"after {counted(settings.min_events, 'event')}"
    is_held = any(rule.needs_hold for rule in settings.rules)
    hold = f", held for {counted(settings.hold, 'block end')}" if is_held else ""
    idle = config.idle_rules()
    missing = f"; {' and '.join(idle)} cannot promote: no unbiased estimator is on a mixture" if idle else ""
    return f"{rules}: lift over {settings.margin:g}, {events}{hold}{missing}"


def _dead_letters(settings: AnyDeadLetters | None) -> str:
    match settings:
        case DeadLetterFile() as file:
            return f"messages are counted and written to {file.path}"
        case DeadLetterTopic() as topic:
            return f"messages are counted and written to the topic {topic.topic}"
    return "messages are counted but not stored"


def _described(choice: Component) -> str:
    """Return the label of a component, its kind if it is named, and its parameters that are not the defaults."""
    parts = [choice.kind] if choice.name else []
    for option in fields(choice):
        value = getattr(choice, option.name)
        if option.name not in ("name", "kind") and value is not None and value != option.default:
            parts.append(f"{option.name} {value:g}" if isinstance(value, float) else f"{option.name} {value}")
    return f"{choice.label} ({', '.join(parts)})" if parts else choice.label
