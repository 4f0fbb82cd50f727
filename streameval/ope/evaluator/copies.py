"""Decide which frozen copies of learning policies are due, and which of them a config keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from streameval.common.arrays import State, from_plain
from streameval.events import EventBatch
from streameval.ope.candidates.versions import FrozenPolicy, VersionsOf
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.state import EvaluatorState
from streameval.ope.policies.base import LearningPolicy
from streameval.ope.report import NewVersion

KEPT = 200
"""New frozen copies that are kept until they are taken, the newest ones."""


def made(config: EvaluatorConfig) -> dict[str, FrozenPolicy]:
    """Return the frozen copies that are candidates, by name."""
    return {name: policy for name, policy in config.computed_policies.items() if isinstance(policy, FrozenPolicy)}


def due(config: EvaluatorConfig, state: EvaluatorState) -> int | None:
    """Return the number of events up to the next copy, or None if there is none."""
    return min(
        (versions.every - events % versions.every for _, versions, events in _copied(config, state)), default=None
    )


def after(config: EvaluatorConfig, state: EvaluatorState) -> Iterator[tuple[FrozenPolicy, list[str]]]:
    """Yield the copies that are due now, each with the copies that it replaces."""
    for name, versions, events in _copied(config, state):
        number, since = divmod(events, versions.every)
        policy = cast(LearningPolicy, config.computed_policies[versions.policy])
        copy = FrozenPolicy(name, number, events, versions.copied(policy))
        if not since and number and copy.name not in config.policies:
            old = made(config).items()
            yield copy, [label for label, one in old if one.of == name and one.number <= number - versions.keep]


def _copied(config: EvaluatorConfig, state: EvaluatorState) -> Iterator[tuple[str, VersionsOf, int]]:
    """Yield the policies that are copied, with the number of events since each was added."""
    for name, versions in config.versions.items():
        if versions.policy in config.policies:
            since = state.counts["since"][config.policies.index(versions.policy)]
            yield name, versions, state.events.accepted - int(since)


def announced(
    copy: FrozenPolicy,
    policy: str,
    file: str | None,
    state: EvaluatorState,
    retired: Sequence[str],
    events: EventBatch,
) -> NewVersion:
    """Return the message about a copy that was made after these events."""
    position = None if events.origin is None or not len(events) else events.origin.position(len(events) - 1)
    return NewVersion(copy.name, policy, copy.events, state.events.newest, tuple(retired), position, file)


def file_of(copy: FrozenPolicy, learned: State, config: EvaluatorConfig) -> str | None:
    """Return the name of the file of a copy, or None if it has none.

    Raises:
        StateError: Code of a policy gives no content.
    """
    content = copy.written(learned, config.reward_model.coefficients, config.rewards[0].range)
    return None if content is None else copy.file


def with_copies(config: EvaluatorConfig, before: EvaluatorConfig) -> EvaluatorConfig:
    """Return the config with the copies that it keeps: the last ones of the policies that it still has."""
    copies = sorted(made(before).values(), key=lambda copy: copy.number)
    same_model = config.reward_model == before.reward_model
    kept: dict[str, FrozenPolicy] = {}
    for name, versions in config.versions.items():
        policy = versions.copied(cast(LearningPolicy, config.computed_policies[versions.policy]))
        own = [copy for copy in copies if copy.of == name and copy.events == copy.number * versions.every]
        same = [copy for copy in own if copy.policy == policy and (same_model or not copy.keeps_model)]
        kept |= {copy.name: copy for copy in same[-versions.keep :]}
    return replace(
        config,
        policies=(*config.policies, *(name for name in kept if name not in config.policies)),
        computed_policies={**config.computed_policies, **kept},
        candidate_order={**config.candidate_order, **dict.fromkeys(kept, 0)},
    )


def frozen_copies(config: EvaluatorConfig, state: State) -> Iterator[tuple[FrozenPolicy, State, bytes | None]]:
    """Yield the frozen copies in a plain state, what each has learned, and the content of its file if it has one."""
    for name, copy in made(config).items():
        learned = from_plain(state["rooms"]["learning"][name])
        yield copy, learned, copy.written(learned, config.reward_model.coefficients, config.rewards[0].range)
