"""Learn policies from files of events in several passes, and write them as policy files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from streameval.cli.replay import Replay, config_and_files, require_configured
from streameval.cli.tables import Column, new_table
from streameval.cli.terminal import console, progress_bar, say, warning
from streameval.common.text import decimal, decimals_for, interval_text, significant
from streameval.config.memory import usable_memory
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.estimators import SNIPS, ClickSNIPS
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.policies import policy_file

if TYPE_CHECKING:
    from streameval.ope.evaluator.training import Trained, Training

OVERFITTING_HINT = "learn from more events or in fewer passes, or with variance: 1.0, clip: 20 or objective: snips"


def run_learn(
    arguments: Sequence[str],
    directory: Path,
    passes: int,
    validation: float,
    patience: int,
    estimator: str | None,
    events_format: str | None,
    *,
    as_json: bool,
) -> None:
    """Learn the policies of a configuration, write them, and print how they did.

    Raises:
        InputError: An option or a file cannot be used.
    """
    config, files = config_and_files(arguments)
    training = _training(config, estimator, passes, patience)
    _check_names(training.policies, directory)
    policies = list(_trained(config, training, files, events_format, validation))
    for trained in policies:
        write(directory, trained)
        for line in warnings(trained):
            say(line)
    if as_json:
        print(json.dumps({"schema": 1, "policies": [to_dict(trained) for trained in policies]}, indent=2))
        return
    for trained in policies:
        console().print(passes_table(training, trained))
        print(sentence(trained, directory))


def _training(config: Config, estimator: str | None, passes: int, patience: int) -> Training:
    """Return the training of the candidates that learn.

    Raises:
        InputError: No candidate learns, or the estimator is not configured.
    """
    evaluator_config = config.evaluator_config()
    default = SNIPS() if config.ranking is None else ClickSNIPS()
    estimators = {choice.label: choice for choice in config.estimators} or {default.label: default}
    if all(policy.kind not in policy_file.TRAINED for policy in evaluator_config.learned_policies.values()):
        hint = "write policies: {candidates: {apprentice: {kind: learned, objective: snips}}}"
        raise InputError(f"policies.candidates: no candidate is of kind {' or '.join(policy_file.TRAINED)}", hint=hint)
    require_configured("--estimator", estimator, estimators)
    from streameval.ope.evaluator.training import Training  # part of the room `learning`

    training = Training(evaluator_config, next(iter(estimators.values())), passes, patience)
    return training if estimator is None else replace(training, estimator=estimators[estimator])


def _check_names(names: Sequence[str] | Any, directory: Path) -> None:
    """Check that every policy can be written to the directory.

    Raises:
        InputError: The directory is missing, or a name is not a file name.
    """
    if not directory.is_dir():
        raise InputError(f"--to: {directory} is not a directory", hint="create it first")
    for name in names:
        if Path(name).name != name:
            raise InputError(f"the candidate '{name}' cannot be the name of a file", hint="rename it, without a slash")


def _trained(
    config: Config, training: Training, files: Sequence[str], written: str | None, share: float
) -> Iterator[Trained]:
    from streameval.ope.evaluator.training import split_by_time

    replay = Replay(config, Evaluator.from_config(training.online()))
    earlier, later = split_by_time(_read(replay, files, written), share)
    events = sum(map(len, earlier))
    if events < training.config.block or not later:
        hint = "name more files, or another --validation"
        raise InputError(f"{events:,} events are too few to learn from: expected 100 or more", hint=hint)
    for name in training.policies:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with progress_bar(*columns) as bar:
            task = bar.add_task(f"learning {name}", total=training.passes * events)
            yield training.train(name, earlier, later, partial(_advance, bar, task))


def _advance(bar: Progress, task: TaskID, events: int, _: float) -> None:
    bar.advance(task, events)


def _read(replay: Replay, files: Sequence[str], written: str | None) -> list[EventBatch]:
    """Return the events of files, which stay in memory because every pass reads all of them.

    Raises:
        InputError: The features take more than half of the memory.
    """
    batches: list[EventBatch] = []
    size, limit = 0, usable_memory() // 2

    def update(batch: EventBatch) -> None:
        nonlocal size
        replay.evaluator.update(batch)
        rows = batch.action_sets if batch.rankings is None else batch.rankings
        features = None if rows is None else rows.features
        size += 0 if features is None else features.values.nbytes
        if size > limit:
            hint = "name fewer files; `run` and `replay` learn in one pass, without keeping events"
            raise InputError(f"the features of the events take more than {limit / 2**30:.1f} GiB", hint=hint)
        if len(batch):
            batches.append(batch)

    replay.update = update
    replay.read(files, written)
    return batches


def write(directory: Path, trained: Trained) -> None:
    """Write the best weights to NAME.npz, completely or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    path, best = directory / f"{trained.name}.npz", trained.best
    learned = trained.learned_from.events.accepted * best.number
    temporary = path.with_name(f"{path.name}.part")
    try:
        temporary.write_bytes(policy_file.to_bytes(trained.policy, best.weights, learned))
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="check the directory") from error


def passes_table(training: Training, trained: Trained) -> Table:
    """Show one row for each pass."""
    events, later = trained.learned_from.events.accepted, trained.later.events.accepted
    decimals = decimals_for([row.validation.value for row in trained.passes])
    columns: list[Column] = [
        (">pass", lambda row: f"{row.number}"),
        (">value while\nlearning", lambda row: decimal(row.training.value, decimals)),
        (">mean weight", lambda row: decimal(row.training.importance_weight_mean, 3)),
        (">value on\nlater events", lambda row: decimal(row.validation.value, decimals)),
        (">interval", lambda row: interval_text(row.validation.lower, row.validation.upper, decimals)),
        (">mean weight", lambda row: decimal(row.validation.importance_weight_mean, 3)),
        ("", lambda row: "best" if row is trained.best else ""),
    ]
    title = (
        f"{trained.name}, by {training.estimator.label}: {events:,} events to learn from, {later:,} later ones; "
        f"the {training.config.confidence * 100:g}% intervals of all passes hold together"
    )
    return new_table(title, columns, trained.passes)


def sentence(trained: Trained, directory: Path) -> str:
    """Return the result in words."""
    best = trained.best.validation
    decimals = decimals_for([best.value])
    interval = interval_text(best.lift_lower, best.lift_upper, decimals, signed=True)
    return (
        f"{directory / trained.name}.npz has the weights of pass {trained.best.number}: "
        f"{decimal(best.value, decimals)} per event on later events, "
        f"{decimal(best.lift, decimals, signed=True)} ({interval}) against {trained.later.production}; "
        f"on the events that it learned from, {decimal(trained.own.value, decimals)}"
    )


def warnings(trained: Trained) -> Iterator[str]:
    """Yield lines about a policy that overfits, is not better than production, or still improves."""
    best, production = trained.best.validation, trained.later.production
    if trained.overfits:
        own = trained.own
        weight, value = (significant(number or 0.0) for number in (own.importance_weight_mean, own.value))
        message = f"{trained.name} overfits the propensities: on the events that it learned from, its mean weight "
        yield warning(message + f"is {weight}, expected 1, and its value {value}", OVERFITTING_HINT)
    if best.lift_lower is None or best.lift_lower <= 0:
        hint = "learn from more events, or evaluate the policy file on later ones with `streameval replay`"
        yield warning(f"{trained.name} is not shown to be better than {production}", hint)
    elif trained.best is trained.passes[-1]:
        yield f"the last pass was the best one: more --passes may improve {trained.name}"


def to_dict(trained: Trained) -> dict[str, Any]:
    """Convert a policy and its passes to values for JSON."""
    best = trained.best.validation
    own_fields = ("value", "importance_weight_mean", "effective_sample_size")
    later_fields = (*own_fields, "lower", "upper", "lift", "lift_lower", "lift_upper")

    def select(estimate: Any, *names: str) -> dict[str, Any]:
        return {name: to_builtins(getattr(estimate, name)) for name in names}

    return {
        "policy": trained.name,
        "estimator": best.estimator,
        "events": {"learned_from": trained.learned_from.events.accepted, "later": trained.later.events.accepted},
        "best": trained.best.number,
        "overfits": trained.overfits,
        "learned_from": select(trained.own, *own_fields),
        "passes": [
            {
                "number": row.number,
                "while_learning": select(row.training, *own_fields),
                "later": select(row.validation, *later_fields),
            }
            for row in trained.passes
        ],
    }
