"""Reload: reads the configuration again while the daemon runs, and adds and removes candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from streameval.config.model import Config
from streameval.errors import ConfigError, StreamevalError
from streameval.events import EventBatch
from streameval.ingest.backfill_reader import BackfillReader
from streameval.ingest.base import TopicPartition
from streameval.ope.evaluator.cohorts import CohortEvaluator
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.service.backfill import Backfill
from streameval.service.daemon import Change

log = structlog.get_logger("streameval")

CANDIDATES = "policies.candidates"


class LateCandidates:
    """The candidates of `late`, an evaluator that `evaluator` made for them."""

    def __init__(self, evaluator: CohortEvaluator, late: Evaluator) -> None:
        self._evaluator, self._late = evaluator, late
        self.policies = late.policies[1:]

    @property
    def awaited(self) -> bool:
        """Whether one of them is still configured."""
        return self._evaluator.is_pending(self._late)

    def update(self, batch: EventBatch) -> None:
        """Take earlier events."""
        self._late.update(batch)

    def join(self, *, from_zero: bool) -> None:
        """Get all live events from now on."""
        self._evaluator.activate(self._late, from_zero=from_zero)


class Reload:
    """Reads the file again and applies its candidates to the evaluator; an invalid file changes nothing.

    `history` opens a second reader of the log, up to given live positions, for new candidates; without it they start
    with the next event.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        evaluator: CohortEvaluator,
        history: Callable[[Mapping[TopicPartition, int]], BackfillReader] | None = None,
    ) -> None:
        self._path, self._config, self._evaluator, self._history = path, config, evaluator, history

    def __call__(self) -> Change | None:
        """The change for the daemon; None when the file is refused, which is logged with the reason."""
        try:
            return self._change(Config.load(self._path))
        except StreamevalError as error:
            log.error("reload_failed", error=error.message, hint=error.hint)
            return None

    def _change(self, config: Config) -> Change:
        refused = needing_restart(self._config, config)
        if refused:
            raise ConfigError(
                f"{self._path}: a running daemon cannot change {', '.join(refused)}",
                hint=f"restart the daemon to change them; only {CANDIDATES} may change while it runs",
            )
        events, before = config.event_format(), self._evaluator.policies
        late = self._evaluator.change_candidates(config.plan())
        self._config = config
        kept = set(self._evaluator.policies)
        added = () if late is None else late.policies[1:]
        log.info("reloaded", added=list(added), removed=[name for name in before if name not in kept])
        return Change(events, self.admit(late))

    def admit(self, late: Evaluator | None) -> Backfill | None:
        """Let new candidates join: at once, or with the returned Backfill."""
        if late is None:
            return None
        candidates = LateCandidates(self._evaluator, late)
        if self._history is None:
            candidates.join(from_zero=False)
            return None
        return Backfill(candidates, self._history)


def needing_restart(before: Config, after: Config) -> list[str]:
    """The keys that differ, except those of the candidates."""
    candidates = {"policies": {"candidates"}}
    return sorted(_differing(before.model_dump(exclude=candidates), after.model_dump(exclude=candidates), ""))


def _differing(before: Any, after: Any, key: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            yield from _differing(before.get(name), after.get(name), f"{key}.{name}" if key else str(name))
    elif before != after:
        yield key
