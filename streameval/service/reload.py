"""The configuration looked at again while the daemon runs: candidates come and go, all else takes a restart."""

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
    """A latecomer of a roster."""

    def __init__(self, roster: CohortEvaluator, evaluator: Evaluator) -> None:
        self._roster, self._evaluator = roster, evaluator
        self.policies = evaluator.policies[1:]

    @property
    def awaited(self) -> bool:
        """Whether one of its candidates is still configured."""
        return self._roster.awaits(self._evaluator)

    def update(self, batch: EventBatch) -> None:
        """What has happened before it came."""
        self._evaluator.update(batch)

    def join(self, *, anew: bool) -> None:
        """From now on it gets what the others get."""
        self._roster.join(self._evaluator, anew=anew)


class Reload:
    """Reads the file again, and brings the roster in line with its candidates; a file of no use changes nothing.

    `history` opens a second reading of the log, up to the live positions that it is given, for candidates that are new;
    without it they begin with the next event.
    """

    def __init__(
        self,
        path: Path,
        config: Config,
        roster: CohortEvaluator,
        history: Callable[[Mapping[TopicPartition, int]], BackfillReader] | None = None,
    ) -> None:
        self._path, self._config, self._roster, self._history = path, config, roster, history

    def __call__(self) -> Change | None:
        """What the daemon is to do now; None when the file is refused, which is logged with the reason."""
        try:
            config = Config.load(self._path)
            return self._change(config)
        except StreamevalError as error:
            log.error("reload_failed", error=error.message, hint=error.hint)
            return None

    def _change(self, config: Config) -> Change:
        refused = needing_restart(self._config, config)
        if refused:
            raise ConfigError(
                f"{self._path}: a running daemon cannot change {', '.join(refused)}",
                hint=f"restart it for them; only {CANDIDATES} may change while it runs",
            )
        events, before = config.event_format(), self._roster.policies
        late = self._roster.change(config.plan())
        self._config = config
        kept = set(self._roster.policies)
        added = () if late is None else late.policies[1:]
        log.info("reloaded", added=list(added), removed=[name for name in before if name not in kept])
        return Change(events, self.admit(late))

    def admit(self, late: Evaluator | None) -> Backfill | None:
        """Let who came late join; who is to be given the history before that joins with the Backfill."""
        if late is None:
            return None
        latecomer = LateCandidates(self._roster, late)
        if self._history is None:
            latecomer.join(anew=False)
            return None
        return Backfill(latecomer, self._history)


def needing_restart(before: Config, after: Config) -> list[str]:
    """The keys that differ, those of the candidates left out."""
    leaving_out = {"policies": {"candidates"}}
    return sorted(_differing(before.model_dump(exclude=leaving_out), after.model_dump(exclude=leaving_out), ""))


def _differing(before: Any, after: Any, key: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            yield from _differing(before.get(name), after.get(name), f"{key}.{name}" if key else str(name))
    elif before != after:
        yield key
