"""The verb `learn`: policies learn from files of events in several passes, and are written as policy files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streameval.cli.arguments import AsJson, ConfigAndFiles, FormatOfEvents, config_and_files
from streameval.cli.terminal import console, say
from streameval.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from streameval.config.model import Config
    from streameval.events import EventBatch
    from streameval.ope.evaluator.evaluator import Evaluator
    from streameval.ope.evaluator.training import Trained, Training

OVERFITTING = "learn from more events or in fewer passes, or with variance: 1.0, clip: 20 or objective: snips"


def learn(
    arguments: ConfigAndFiles,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the policy files NAME.npz.")] = Path(),
    passes: Annotated[int, typer.Option(min=1, max=10_000, help="Passes over the events, at most.")] = 20,
    validation: Annotated[
        float, typer.Option(metavar="SHARE", min=0.01, max=0.9, help="Share of the events, the latest, for validation.")
    ] = 0.2,
    patience: Annotated[
        int,
        typer.Option(min=0, help="Stop after this many passes without a higher lower bound; 0: take the last pass."),
    ] = 3,
    estimator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Estimator of the bound: one of CONFIG. Default: its first.")
    ] = None,
    events_format: FormatOfEvents = None,
    as_json: AsJson = False,
) -> None:
    """Learn policies from files of events, in several passes.

    Each candidate of kind `learned` learns from the earlier events. After each pass it is evaluated, unchanging, on the
    later ones, and the weights with the highest lower bound are written to NAME.npz: see `file` in `streameval init`.

    The bounds of all passes hold together. The values on the events that were learned from do not: they show how far a
    policy overfits.
    """
    from streameval.config.model import Config
    from streameval.service.logging import configure_logging

    configure_logging("critical")
    config, files = config_and_files(arguments)
    settings = Config.load(config)
    training = _training(settings, estimator, passes, patience)
    check_names(training.policies, to)
    found = list(_trained(settings, training, files, events_format, validation))
    for each in found:
        write(to, each)
        for line in warnings(each):
            say(line)
    if as_json:
        import json

        print(json.dumps({"schema": 1, "policies": [as_plain(each) for each in found]}, indent=2))
        return
    for each in found:
        console().print(passes_table(training, each))
        print(sentence(each, to))


def _training(config: Config, estimator: str | None, passes: int, patience: int) -> Training:
    """The training of the candidates that learn.

    Raises:
        InputError: There are none, or there is no such estimator.
    """
    from streameval.common.problems import did_you_mean
    from streameval.ope.estimators import SNIPS
    from streameval.ope.policies.policy_file import LEARNED

    plan = config.evaluator_config()
    known = {each.label: each for each in config.estimators} or {"snips": SNIPS()}
    if all(policy.kind != LEARNED for policy in plan.learned_policies.values()):
        hint = "write policies: {candidates: {apprentice: {kind: learned, objective: snips}}}"
        raise InputError("policies.candidates: no candidate is of kind learned", hint=hint)
    if estimator is not None and estimator not in known:
        hint = did_you_mean(estimator, known) or f"choose one of {', '.join(known)}"
        raise InputError(f"--estimator: '{estimator}' is not configured", hint=hint)
    from streameval.ope.evaluator.training import Training  # a part of the room `learning`

    training = Training(plan, next(iter(known.values())), passes, patience)
    return training if estimator is None else replace(training, estimator=known[estimator])


def check_names(names: Sequence[str] | Any, to: Path) -> None:
    """Require a directory, and names of policies that are names of files.

    Raises:
        InputError: A policy file cannot be written.
    """
    if not to.is_dir():
        raise InputError(f"--to: {to} is not a directory", hint="create it first")
    for name in names:
        if Path(name).name != name:
            raise InputError(f"the candidate '{name}' cannot be the name of a file", hint="rename it, without a slash")


def _trained(
    config: Config, training: Training, files: Sequence[str], written: str | None, share: float
) -> Iterator[Trained]:
    from streameval.cli.replay import Replay
    from streameval.ope.evaluator.evaluator import Evaluator
    from streameval.ope.evaluator.training import split_by_time

    kept = Kept()
    Replay(config, Evaluator.from_config(training.online()), kept.update).read(files, written)
    learn_from, later = split_by_time(kept.batches, share)
    events = sum(map(len, learn_from))
    if events < training.config.block or not later:
        hint = "name more files, or another --validation"
        raise InputError(f"{events:,} events are too few to learn from: expected 100 or more", hint=hint)
    for name in training.policies:
        with progress(name, training.passes, events) as advance:
            yield training.train(name, learn_from, later, advance)


class Kept:
    """The events of files, in memory: every pass reads all of them."""

    def __init__(self) -> None:
        from streameval.config.memory import usable_memory

        self.batches: list[EventBatch] = []
        self._bytes, self._limit = 0, usable_memory() // 2

    def update(self, evaluator: Evaluator, batch: EventBatch, _: float | None) -> None:
        """Keep a batch, and evaluate it online.

        Raises:
            InputError: The features take more than half of the memory.
        """
        evaluator.update(batch)
        features = None if batch.action_sets is None else batch.action_sets.features
        self._bytes += 0 if features is None else features.values.nbytes
        if self._bytes > self._limit:
            hint = "name fewer files; `run` and `replay` learn in one pass, without keeping events"
            raise InputError(f"the features of the events take more than {self._limit / 2**30:.1f} GiB", hint=hint)
        if len(batch):
            self.batches.append(batch)


@contextmanager
def progress(name: str, passes: int, events: int) -> Iterator[Callable[[int, float], None]]:
    """A progress bar on stderr if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task, seen = bar.add_task(f"learning {name}", total=passes * events), 0

        def advance(count: int, lower: float) -> None:
            nonlocal seen
            seen += count
            number = min(passes, 1 + seen // events)
            best = "" if lower == float("-inf") else f", lower bound {lower:.4g}"
            bar.update(task, completed=seen, description=f"learning {name}: pass {number} of at most {passes}{best}")

        yield advance


def write(to: Path, trained: Trained) -> None:
    """Write the best weights to NAME.npz, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    from streameval.ope.policies import policy_file

    path, best = to / f"{trained.name}.npz", trained.best
    learned = trained.learned_from.events.accepted * best.number
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(policy_file.to_bytes(trained.policy, best.weights, learned))
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="check the directory") from error


def passes_table(training: Training, trained: Trained) -> Table:
    """One row for each pass."""
    from streameval.cli.tables import interval_text, new_table
    from streameval.common.text import decimal, decimals_for

    events, later = trained.learned_from.events.accepted, trained.later.events.accepted
    decimals = decimals_for([each.validation.value for each in trained.passes])
    table = new_table(
        f"{trained.name}, by {training.estimator.label}: {events:,} events to learn from, {later:,} later ones; "
        f"the {training.config.confidence * 100:g}% intervals of all passes hold together",
        *(
            ">pass",
            ">value while\nlearning",
            ">mean weight",
            ">value on\nlater events",
            ">interval",
            ">mean weight",
            "",
        ),
    )
    for each in trained.passes:
        on, after = each.training, each.validation
        table.add_row(
            f"{each.number}",
            *(decimal(on.value, decimals), decimal(on.importance_weight_mean, 3)),
            *(decimal(after.value, decimals), interval_text(after.lower, after.upper, decimals)),
            decimal(after.importance_weight_mean, 3),
            "best" if each is trained.best else "",
        )
    return table


def sentence(trained: Trained, to: Path) -> str:
    """The result in words."""
    from streameval.cli.tables import interval_text
    from streameval.common.text import decimal, decimals_for

    best = trained.best.validation
    decimals = decimals_for([best.value])
    interval = interval_text(best.lift_lower, best.lift_upper, decimals, signed=True)
    return (
        f"{to / trained.name}.npz has the weights of pass {trained.best.number}: {decimal(best.value, decimals)} per "
        f"event on later events, {decimal(best.lift, decimals, signed=True)} ({interval}) against "
        f"{trained.later.production}; on the events that it learned from, {decimal(trained.own.value, decimals)}"
    )


def warnings(trained: Trained) -> Iterator[str]:
    """Lines about a policy that overfits, or is not better than production, or is still improving."""
    from streameval.common.text import significant

    best, production = trained.best.validation, trained.later.production
    if trained.overfits:
        own = trained.own
        weight, value = (significant(number or 0.0) for number in (own.importance_weight_mean, own.value))
        yield (
            f"warning: {trained.name} overfits the propensities: on the events that it learned from, its mean weight "
            f"is {weight}, expected 1, and its value {value}"
        )
        yield f"hint: {OVERFITTING}"
    if best.lift_lower is None or best.lift_lower <= 0:
        yield f"warning: {trained.name} is not shown to be better than {production}"
        yield "hint: learn from more events, or evaluate the policy file on later ones with `streameval replay`"
    elif trained.best is trained.passes[-1]:
        yield f"the last pass was the best one: more --passes may improve {trained.name}"


def as_plain(trained: Trained) -> dict[str, Any]:
    """A policy with its passes, as values that JSON has."""
    from msgspec import to_builtins

    best = trained.best.validation
    of_fit = ("value", "importance_weight_mean", "effective_sample_size")
    of_later = (*of_fit, "lower", "upper", "lift", "lift_lower", "lift_upper")

    def plain(estimate: Any, *names: str) -> dict[str, Any]:
        return {name: to_builtins(getattr(estimate, name)) for name in names}

    return {
        "policy": trained.name,
        "estimator": best.estimator,
        "events": {"learned_from": trained.learned_from.events.accepted, "later": trained.later.events.accepted},
        "best": trained.best.number,
        "overfits": trained.overfits,
        "learned_from": plain(trained.own, *of_fit),
        "passes": [
            {
                "number": each.number,
                "while_learning": plain(each.training, *of_fit),
                "later": plain(each.validation, *of_later),
            }
            for each in trained.passes
        ],
    }
