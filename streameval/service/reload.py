"""Add and remove candidates while the daemon runs, and read the log again for new ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import structlog

from streameval.config.model import Config
from streameval.errors import ConfigError, StreamevalError
from streameval.ingest.base import BackfillReader, SourceStatus, TopicPartition
from streameval.ingest.pipeline import Decoder, EventPipeline, SecondReading
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.service.status import BackfillStatus

CANDIDATES_KEY = "policies.candidates"
SLICE_SECONDS = 0.2
"""Duration of a slice of a backfill. It is longer if a busy live stream must be caught up with."""
BUSY_TIMEOUT_SECONDS = 0.05  # to wait for messages in a slice

log = structlog.get_logger("streameval")


class Change(NamedTuple):
    """Hold the result of a reload: the decoder from now on, and the backfill of new candidates."""

    events: Decoder
    backfill: Backfill | None = None


class Reload:
    """Read the configuration again, and apply its candidates. An invalid configuration changes nothing.

    Args:
        load: Reads the configuration.
        config: Configuration that is in use.
        evaluator: Takes the candidates.
        history: Opens a second reader of the log, up to live positions, for new candidates. Without it, they start with
            the next event.
    """

    def __init__(
        self,
        load: Callable[[], Config],
        config: Config,
        evaluator: Evaluator,
        history: Callable[[Mapping[TopicPartition, int]], BackfillReader] | None = None,
    ) -> None:
        self._load, self.config, self._evaluator, self._history = load, config, evaluator, history

    def __call__(self) -> Change:
        """Return the change for the daemon.

        Raises:
            StreamevalError: The configuration is refused. Nothing has changed.
        """
        before = self._evaluator.policies
        config, events = self._read()
        late = self._evaluator.change_candidates(config.evaluator_config())
        self.config = config
        added = [] if late is None else list(late.policies[1:])
        kept = set(self._evaluator.policies).difference(added)
        log.info("reloaded", added=added, removed=[name for name in before if name not in kept])
        return Change(events, self.admit(late))

    def _read(self) -> tuple[Config, Decoder]:
        """Return the new configuration with its decoder.

        Raises:
            ConfigError: It is invalid, needs a restart, or cannot be read.
        """
        try:
            config = self._load()
            require_reloadable(self.config, config)
            return config, config.event_format()
        except StreamevalError:
            raise
        except Exception as error:  # at a start it would end the process, which a running daemon must not
            hint = "`streameval check` reads it in the same way; until it passes, the daemon continues as before"
            raise ConfigError(
                f"the configuration cannot be read: {type(error).__name__}: {error}", hint=hint
            ) from error

    def admit(self, late: Evaluator | None) -> Backfill | None:
        """Let new candidates join at once, or return the backfill after which they join."""
        if late is None:
            return None
        if self._history is None:
            self._evaluator.activate(late)
            return None
        return Backfill(self._evaluator, late, self._history)


class Backfill:
    """Give new candidates each event of the log once, up to the live position, and then let them join.

    They join from zero if the log cannot be read. The daemon calls `slice` between two polls of the live source. Each
    slice reads more events than the live loop did since the last one, so the live position is reached.

    Args:
        evaluator: Takes the live events.
        late: Evaluator of the new candidates.
        open: Opens a second reader of the log, up to live positions.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        late: Evaluator,
        open: Callable[[Mapping[TopicPartition, int]], BackfillReader],
    ) -> None:
        self._evaluator, self._late, self._open = evaluator, late, open
        self._policies = late.policies[1:]
        self._reader: BackfillReader | None = None
        self._pipeline: SecondReading | None = None
        self._read = 0

    def slice(self, pipeline: EventPipeline, live: SourceStatus, min_events: int) -> bool:
        """Read for `SLICE_SECONDS`, and at least `min_events` events. Return True when the backfill has ended."""
        policies, before = list(self._policies), self._read
        if not self._evaluator.is_pending(self._late):
            log.info("backfill_given_up", policies=policies, reason="a reload has changed the candidates")
        elif not live.positions:
            return False
        else:
            try:
                waiting = self._advance(pipeline, live, min_events)
            except StreamevalError as error:
                log.error("backfill_failed", policies=policies, error=error.message, hint=error.hint)
                self._evaluator.activate(self._late, from_zero=True)
            else:
                if waiting is not None:
                    if self._read > before:
                        log.info("backfill_continues", policies=policies, events=self._read, waiting=waiting)
                    return False
                log.info("backfill_done", policies=policies, events=self._read)
                self._evaluator.activate(self._late)
        self.close()
        return True

    def progress(self, live: SourceStatus) -> BackfillStatus:
        """Return how many events were read, and how many are still to read."""
        waiting = self._reader.behind(live.positions) if self._reader else None
        return BackfillStatus(self._policies, self._read, waiting)

    def close(self) -> None:
        """Close the second reader."""
        if self._reader is not None:
            self._reader.close()

    def _advance(self, pipeline: EventPipeline, live: SourceStatus, min_events: int) -> int | None:
        """Read on, and return the number of events still to read, or None when the candidates can join.

        They can join at the live position, once this pipeline buffers every event that the live one buffers.
        """
        positions = live.positions
        self._reader = self._reader or self._open(positions)
        pipeline.decide(positions)  # both pipelines decide alike: candidates get what is buffered from either of them
        self._pipeline = self._pipeline or pipeline.second_reading()
        self._pipeline.events = pipeline.events
        end, least = time.monotonic() + SLICE_SECONDS, self._read + min_events
        while not self._reader.caught_up(positions):
            records = self._reader.poll(positions, BUSY_TIMEOUT_SECONDS)
            ends = dict.fromkeys(positions)
            for group in self._pipeline.groups(records, ends):
                self._late.update(self._pipeline.take(group, ends))
            self._read += sum(map(len, records))
            if not records or (time.monotonic() > end and self._read >= least):
                break
        if not self._reader.caught_up(positions):
            return self._reader.behind(positions)
        rest = self._pipeline.hand_over()
        if rest is None:
            return 0
        self._late.update(rest)
        return None


def require_reloadable(before: Config, after: Config) -> None:
    """Require that two configurations differ in candidates only.

    Raises:
        ConfigError: Something else differs.
    """
    refused = needing_restart(before, after)
    if refused:
        raise ConfigError(
            f"a running daemon cannot change {', '.join(refused)}",
            hint=f"restart the daemon to change them; only {CANDIDATES_KEY} may change while it runs",
        )


def needing_restart(before: Config, after: Config) -> list[str]:
    """Return the keys that differ, except for the candidates and the headers of their lists in events."""
    candidates = {"policies": {"candidates"}, "source": {"policies_of"}}
    return sorted(_differing(before.model_dump(exclude=candidates), after.model_dump(exclude=candidates), ""))


def _differing(before: Any, after: Any, key: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before.keys() | after.keys():
            yield from _differing(before.get(name), after.get(name), f"{key}.{name}" if key else str(name))
    elif before != after:
        yield key
