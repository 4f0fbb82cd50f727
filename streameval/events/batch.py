"""Hold events as columns, the input of everything after decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from streameval.common.arrays import Array, Mask, State, from_plain, require_fit, to_plain, within
from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events.action_sets import (
    ActionNames,
    ActionSets,
    Columns,
    Deferred,
    Index,
    RawFields,
    ScoredOutcomes,
    reconcile,
)
from streameval.events.arguments import (
    by_name,
    check_options,
    list_of_names,
    range_of_reward,
    remedy_of,
    require_one_reward,
    segment_fields,
)
from streameval.events.from_arrays import (
    choice_columns,
    column,
    contexts_of,
    further_reward_columns,
    identifier_column,
    named_actions,
    require_one_index,
    reward_columns,
    scores_of_rankings,
)
from streameval.events.further_rewards import FurtherRewards, RewardField
from streameval.events.origin import NO_IDENTITY, Identity, Origin, fingerprints
from streameval.events.rankings import Rankings, ranking_rules, rankings_from_arrays
from streameval.events.schema import Identifier
from streameval.events.segments import SegmentColumns
from streameval.events.slates import NAMED_LOGGING, SlateColumns
from streameval.events.validation import (
    BrokenRule,
    Fault,
    Rejected,
    choice_rules,
    finite,
    first_faults,
    outcome_rules,
    outcomes_within,
    reward_within,
    seconds_rule,
    single_choice_rule,
    slate_rules,
    slot_reward_rules,
    slot_rewards_within,
    unit_interval_rule,
)

if TYPE_CHECKING:
    from streameval.events.decoder import JsonDecoder
    from streameval.events.tables import ColumnNames


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Columns):
    """Hold n messages as columns, and the messages rejected with them: see `EventBatch` and `RewardBatch`."""

    EVENTS: ClassVar[Mapping[str, Any]] = dict.fromkeys(("reward", "timestamp", "origin"))

    reward: Array
    timestamp: Array
    origin: Origin | None = None
    rejected: tuple[Rejected, ...] = ()

    def __len__(self) -> int:
        return len(self.reward)

    def take(self, events: Mask | Index | slice) -> Self:
        """Return the messages that a mask [n] or row numbers select, with all rejected messages."""
        if isinstance(events, np.ndarray) and events.dtype == bool and events.all():
            return self
        return Columns.take(self, events if isinstance(events, slice) else np.arange(len(self))[events])

    def reject(self, events: Mask | Index, reason: str, detail: Callable[[int], str]) -> Self:
        """Move messages to `rejected`.

        Args:
            events: a mask [n] or row numbers
            reason: one of `REASONS`
            detail: describe the problem of a row
        """
        rows = np.arange(len(self))[events]
        if not len(rows):
            return self
        rejected = [
            Rejected(reason, detail(row), b"", origin=None if self.origin is None else self.origin.position(row))
            for row in rows.tolist()
        ]
        return replace(self.take(np.delete(np.arange(len(self)), rows)), rejected=(*self.rejected, *rejected))


@dataclass(frozen=True, slots=True, eq=False)
class RewardBatch(Batch):
    """Hold n reward messages as columns, and the messages rejected with them.

    Attributes:
        reward: [n] the reward of the decision, or a part of it, NaN if a message has only further rewards
        timestamp: [n] time of the reward, in seconds since 1970
        origin: partitions and offsets of the messages, and fingerprints of the decisions' event ids
        further: the further rewards, None if there is one reward
        reward_id: [n] fingerprints of the ids of the rewards, 0 without one, None if no reward has one
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {**Batch.EVENTS, "further": None, "reward_id": NO_IDENTITY}
    PARTS: ClassVar[Mapping[str, type[Columns]]] = {"origin": Origin, "further": FurtherRewards}

    origin: Origin
    further: FurtherRewards | None = None
    reward_id: Identity | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class EventBatch(Batch):
    """Hold n accepted events as columns, and the messages rejected with them.

    Attributes:
        policies: names of the P columns of `probabilities`
        probabilities: [n, P] the policies' probabilities of the logged action, contiguous over events, NaN = missing
        propensity: [n] in (0, 1], the logging policy's probability of the logged action, NaN if the log lacks it
        reward: [n]. With `further` rewards NaN in events that lack it
        timestamp: [n] seconds since 1970, NaN = not known (only from arrays)
        sampling_probability: [n] in (0, 1], 1 if the log was not downsampled
        action_sets: the actions that the events could choose from, None if no event lists them
        slates: the slots of slates. All other columns treat a slate as one action. None without slates
        scored: the outcomes of scored events, which have the propensity NaN and the reward 0, None without such events
        rankings: the pages of rankings with clicks. `probabilities` are then 1 for the policies that a page has, and
            `reward` is the number of clicks. None for other events
        actions: the names of the logged actions, None if not requested
        raw_fields: fields as Python values, for policies and reward models in code, None if there are none
        unit: [n] fingerprint of the event's user or session, 0 without, None if no event has a unit
        logging_policy: [n] fingerprint of the name of the policy that chose the action, like `unit`
        further: the further rewards, None if there is one reward
        segments: the fields that split estimates, None if there are none
        origin: offsets and identities of the events, None if not requested
        rejected: messages read together with these events that are not events
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("reward", "timestamp", "origin", "probabilities", "propensity", "sampling_probability")),
        **dict.fromkeys(("action_sets", "slates", "scored", "rankings", "actions", "raw_fields"), ...),
        **dict.fromkeys(("unit", "logging_policy"), NO_IDENTITY),
        **dict.fromkeys(("further", "segments")),
    }
    PARTS: ClassVar[Mapping[str, type[Columns]]] = {
        "action_sets": ActionSets,
        "slates": SlateColumns,
        "scored": ScoredOutcomes,
        "rankings": Rankings,
        "actions": ActionNames,
        "raw_fields": RawFields,
        "origin": Origin,
        "further": FurtherRewards,
        "segments": SegmentColumns,
    }

    PROBABILITIES: ClassVar[Sequence[str]] = ("propensity", "probabilities", "sampling_probability")

    policies: tuple[str, ...]
    probabilities: Array
    propensity: Array
    sampling_probability: Array
    action_sets: ActionSets | None = None
    slates: SlateColumns | None = None
    scored: ScoredOutcomes | None = None
    rankings: Rankings | None = None
    actions: ActionNames | None = None
    raw_fields: RawFields | None = None
    unit: Identity | None = None
    logging_policy: Identity | None = None
    further: FurtherRewards | None = None
    segments: SegmentColumns | None = None

    def __repr__(self) -> str:
        return (
            f"EventBatch({counted(len(self), 'event')}, policies={list(self.policies)}, {len(self.rejected)} rejected)"
        )

    def __getitem__(self, events: slice) -> EventBatch:
        """Return consecutive events as views. Rejected messages stay with the slice that starts at 0."""
        start, stop, step = events.indices(len(self))
        if step != 1:
            raise ValueError(f"a batch is cut into consecutive events, not by steps of {step}")
        batch = self.take(slice(start, max(start, stop)))
        return batch if start == 0 else replace(batch, rejected=())

    def with_deferred_fields(self, read: Callable[[], Sequence[Mapping[str, Any]]]) -> EventBatch:
        """Add `raw_fields` that are read at their first use, if an event lists actions, as code needs.

        Args:
            read: return the fields of each event
        """
        has_lists = self.action_sets is not None or self.slates is not None or self.rankings is not None
        return replace(self, raw_fields=RawFields(Deferred(len(self), read))) if has_lists else self

    def trimmed(self) -> EventBatch:
        """Drop optional columns that no event fills, as if the events had been decoded without the others."""
        sets, slates, unit, logged = self.action_sets, self.slates, self.unit, self.logging_policy
        if slates is not None:
            slates = replace(slates, actions=slates.actions.trimmed()) if len(slates.propensity) else None
        return replace(
            self,
            action_sets=sets.trimmed() if sets is not None and len(sets.propensities) else None,
            slates=slates,
            rankings=self.rankings and self.rankings.trimmed(),
            scored=self.scored if self.scored is not None and len(self.scored.propensity) else None,
            unit=unit if unit is not None and unit.any() else None,
            logging_policy=logged if logged is not None and logged.any() else None,
        )

    def faults(
        self,
        reward_range: tuple[float, float] | None = None,
        *,
        rewarded: bool = True,
        field: str | None = None,
        further: Sequence[RewardField] = (),
        estimated: bool = False,
    ) -> dict[int, Fault]:
        """Return the rows that are not events, with the first rule that each of them breaks.

        Args:
            reward_range: smallest and largest reward, None = any
            rewarded: whether to check rewards
            field: the field of the reward, if NaN means that it is missing
            further: ranges of further rewards
            estimated: whether propensities are estimated, and may be missing
        """
        return first_faults(self._rules(reward_range, rewarded, field, further, estimated))

    def _rules(
        self,
        reward_range: tuple[float, float] | None,
        rewarded: bool,
        field: str | None,
        further: Sequence[RewardField],
        estimated: bool,
    ) -> Iterator[BrokenRule]:
        if rewarded:
            missing = np.isnan(self.reward)
            if self.further is not None:
                missing = missing & np.isnan(self.further.values).all(axis=1)
                yield from self.further.infinite()
            if field is not None:
                yield missing, "missing_field", lambda _: f"{field}: missing"
            yield finite("reward", self.reward, np.isinf(self.reward) | missing)
        yield finite("timestamp", self.timestamp, np.isinf(self.timestamp))  # NaN: arrays without times
        yield seconds_rule(self.timestamp)
        yield unit_interval_rule("sampling_probability", self.sampling_probability)
        if self.slates is not None:
            if estimated:
                yield single_choice_rule(self.slates)
            yield from slate_rules(self.slates, self.policies)
            if rewarded:
                yield from self._slot_reward_rules(self.slates)
        if self.scored is not None:
            yield from outcome_rules(self.scored, self.policies, estimated)
        if self.rankings is not None:
            yield from ranking_rules(self.rankings, self.policies)
        yield from choice_rules(self.policies, self.probabilities, self._required(estimated), self.action_sets)
        if reward_range is not None and rewarded:
            yield from self._range_rules(*reward_range, further)

    def _slot_reward_rules(self, slates: SlateColumns) -> Iterator[BrokenRule]:
        yield from slot_reward_rules(slates, self.reward)
        if self.further is not None:
            for index, name in enumerate(self.further.names):
                yield from slot_reward_rules(slates.select_reward(index), self.further.values[:, index], name)

    def _required(self, estimated: bool) -> Array:
        """Return the propensities, [n], with 1 for events that need none."""
        unneeded = np.zeros(len(self), dtype=bool) if self.scored is None else self.scored.sizes > 0
        return np.where(unneeded | (np.isnan(self.propensity) & estimated), 1.0, self.propensity)

    def _range_rules(self, low: float, high: float, further: Sequence[RewardField] = ()) -> Iterator[BrokenRule]:
        """Compare rewards with their ranges. Clicks on rankings are not rewards."""
        if self.rankings is not None:
            return
        broken, reason, detail = reward_within(self.reward, low, high)
        if self.further is not None:
            broken &= ~np.isnan(self.reward)
            yield from self.further.outside(further)
        if self.scored is not None:
            broken &= self.scored.sizes == 0
            yield outcomes_within(self.scored, self.policies, low, high)
        yield broken, reason, detail
        if self.slates is not None:
            yield slot_rewards_within(self.slates, low, high)
            for reward in further:
                index = None if self.further is None else self.further.index(reward.name)
                yield slot_rewards_within(self.slates.select_reward(index), reward.low, reward.high)

    @property
    def action_identity(self) -> Identity | None:
        """Return the fingerprints of the names of the logged actions [n], equal in all batches, None without names."""
        return None if self.actions is None else fingerprints([*self.actions.names, ""])[self.actions.chosen]

    def of_reward(self, name: str) -> EventBatch:
        """Replace the first reward by this further one, by NaN in events and slots that lack it."""
        further = self.further or FurtherRewards((), np.zeros((len(self), 0)))
        slates = self.slates and self.slates.select_reward(further.index(name))
        return replace(self, reward=further.column(name), slates=slates)

    def with_rewards_in(self, low: float, high: float, further: Sequence[RewardField] = ()) -> EventBatch:
        """Reject events with rewards outside [low, high], or outside the ranges of `further` rewards."""
        batch = self if self.rankings is not None else self._with_clipped_rewards(low, high, further)[0]
        faults = first_faults(batch._range_rules(low, high, further))
        return batch.reject(np.array(sorted(faults), dtype=np.int64), "reward_range", lambda row: faults[row].detail)

    def clipped(
        self, reward_range: tuple[float, float] | None = None, further: Sequence[RewardField] = ()
    ) -> tuple[EventBatch, Mask]:
        """Set probabilities and rewards that exceed their range by rounding alone to its ends, see `within`.

        Args:
            reward_range: smallest and largest reward, None = any
            further: ranges of further rewards

        Returns:
            The events, and whether a number of each was set [n].
        """
        batch, events = self.clip_probabilities(len(self))
        if reward_range is not None and self.rankings is None:
            batch, which = batch._with_clipped_rewards(*reward_range, further)
            events |= which
        return batch, events

    def _with_clipped_rewards(self, low: float, high: float, ranges: Sequence[RewardField]) -> tuple[EventBatch, Mask]:
        """Set rewards and outcomes. The rewards of slots have rules of their own."""
        reward, events = within(self.reward, low, high)
        scored, further = self.scored, self.further
        if scored is not None:
            outcomes, which = within(scored.outcomes, low, high)
            events = events | (np.bincount(scored.owner[which.any(axis=1)], minlength=len(self)) > 0)
            scored = replace(scored, outcomes=outcomes)
        if further is not None:
            further, which = further.clipped(ranges)
            events = events | which
        return (replace(self, reward=reward, scored=scored, further=further) if events.any() else self), events

    @classmethod
    def concat(cls, batches: Iterable[EventBatch]) -> EventBatch:
        """Concatenate. The result has the policies of all batches, with NaN for batches that lack them."""
        parts = list(batches) or [_no_events()]
        if len(parts) == 1:
            return parts[0]
        policies = tuple(dict.fromkeys(name for batch in parts for name in batch.policies))
        whole = cls.joined([batch.with_policies(policies) for batch in parts], list(map(len, parts)))
        return replace(whole, rejected=tuple(rejected for batch in parts for rejected in batch.rejected))

    def without_propensities(self) -> EventBatch:
        """Set the propensities of single choices and of outcomes to NaN."""
        sets, scored, unknown = self.action_sets, self.scored, np.full(len(self), np.nan)
        if sets is not None:
            sets = replace(sets, propensities=np.full(len(sets.propensities), np.nan))
        if scored is not None:
            scored = replace(scored, propensity=np.full(len(scored.propensity), np.nan))
        return replace(self, propensity=unknown, action_sets=sets, scored=scored)

    def with_policies(self, policies: Iterable[str]) -> EventBatch:
        """Return the batch with these policies in this order. Policies that it lacks are missing (NaN)."""
        wanted = tuple(policies)
        if wanted == self.policies:
            return self
        return replace(self.select_policies(self.policies, wanted), policies=wanted)

    def with_scores(self, probabilities: Array) -> EventBatch:
        """Fill missing probabilities of policies [n, P] by these, in choices of single actions. NaN fills nothing."""
        single = np.ones(len(self), dtype=bool)
        for part in (self.slates, self.scored):
            single &= True if part is None else part.sizes == 0
        is_filled = np.isnan(self.probabilities) & single[:, None]
        values = np.where(is_filled, probabilities, self.probabilities).T.copy().T
        sets = self.action_sets
        if sets is not None:
            sets = replace(sets, probabilities=sets.probabilities.T.copy().T)
            reconcile(sets, values, sets.probabilities)
        return replace(self, probabilities=values, action_sets=sets)

    @classmethod
    def from_arrays(
        cls,
        *,
        reward: ArrayLike,
        propensity: ArrayLike | None = None,
        policies: Mapping[str, ArrayLike] | None = None,
        action: ArrayLike | None = None,
        propensities: ArrayLike | None = None,
        features: ArrayLike | None = None,
        timestamp: ArrayLike | None = None,
        sampling_probability: ArrayLike | None = None,
        unit: Sequence[Identifier | None] | ArrayLike | None = None,
        logging_policy: Sequence[Identifier | None] | ArrayLike | None = None,
        slate_logging: Literal["factored", "uniform_ranking", "plackett_luce"] = "factored",
        scores: ArrayLike | None = None,
        rewards: Mapping[str, ArrayLike] | None = None,
        segments: Mapping[str, Sequence[Any]] | None = None,
        context: Iterable[Any] | None = None,
    ) -> EventBatch:
        """Build a batch from arrays, which are copied.

        Args:
            reward: [n], [n, l] if the slots of slates have rewards, which sum to the reward of the slate
            propensity: [n] the logging policy's probability of the logged action, [n, l] for slates of l slots. If
                `propensities` are missing too, an evaluator can only estimate it
            policies: by name, [n] the policy's probability of the logged action, or [n, A] its distribution over the
                action set, [n, l] or [n, l, A] for slates. NaN = missing
            action: [n] index of the logged action in its set, from 0, [n, l] for slates. Without propensities, sets
                and features: the names of the logged actions
            propensities: [n, A] the logging policy's distribution, in place of `propensity`, [n, l, A] for slates
            features: [n, A, d] features of the actions. All NaN for an event without features
            timestamp: [n] seconds since 1970
            sampling_probability: [n] in (0, 1], for a downsampled log
            unit: [n] the user or session of each event, a string or an integer, None or "" for an independent event
            logging_policy: [n] the name of the policy that chose the action
            slate_logging: how the logging policy filled the slots: independently, by a uniformly drawn ranking, or by
                one in which each action is drawn with a probability proportional to `exp(score)` among those left
            scores: [n, A] with `plackett_luce`, the score of each action. Propensities follow from them
            rewards: further rewards by name, [n] or [n, l] of slots, NaN = missing, then possible in `reward`, too
            segments: [n] values of segments by name: text, whole numbers or truth values, None = the event lacks it
            context: [n] the context of each event, a mapping or another value, for policies and reward models in code

        Raises:
            ValueError: An array has the wrong shape, or an event breaks a rule. Names the first such row.

        >>> EventBatch.from_arrays(reward=[1, 0], propensity=[0.5, 0.0])
        Traceback (most recent call last):
        ValueError: row 1: propensity_range: propensity: 0 is not in (0, 1]
        """
        named = by_name("policies", policies, 'write policies={"challenger": [...]}, an array by name')
        single: dict[str, Any] = {"reward": reward, "propensity": propensity, "action": action, "timestamp": timestamp}
        single |= {"unit": unit, "logging_policy": logging_policy, "sampling_probability": sampling_probability}
        single |= {"propensities": propensities, "features": features}
        segmented = by_name("segments", segments, 'write segments={"country": [...]}, the values by name')
        further_rewards = by_name("rewards", rewards, 'write rewards={"click": [...]}, an array by name')
        require_one_index(
            {**single, "scores": scores, "context": context},
            policies=named,
            rewards=further_rewards,
            segments=segmented,
        )
        ways = ["plackett_luce"] if scores is not None else [*NAMED_LOGGING]
        if slate_logging not in ways:
            with_scores = " with scores" if scores is not None else ""
            raise ValueError(f"slate_logging: expected {' or '.join(ways)}{with_scores}, found {slate_logging!r}")
        drawn = None
        if slate_logging == "plackett_luce":
            drawn, propensities = scores_of_rankings(action, scores, [propensity, propensities])
        values, slot_rewards = reward_columns(reward, propensity, propensities)
        n = len(values)
        logged, probabilities, sets, slates = choice_columns(
            n, propensity, named, action, propensities, features, slate_logging, slot_rewards, drawn
        )
        further = None
        if rewards is not None:
            further, slates = further_reward_columns(further_rewards, n, slates)
        estimated = propensity is None and propensities is None
        kept = np.ones(n) if sampling_probability is None else column("sampling_probability", sampling_probability, n)
        batch = cls(
            policies=tuple(named),
            probabilities=probabilities,
            propensity=logged,
            reward=values,
            timestamp=np.full(n, np.nan) if timestamp is None else column("timestamp", timestamp, n),
            sampling_probability=kept,
            action_sets=sets,
            slates=slates,
            actions=named_actions(action, n) if estimated and action is not None and sets is None else None,
            unit=None if unit is None else identifier_column("unit", unit, n),
            logging_policy=None if logging_policy is None else identifier_column("logging_policy", logging_policy, n),
            further=further,
            segments=None if segments is None else SegmentColumns.from_columns(segmented, n),
            raw_fields=None if context is None else RawFields([{"context": one} for one in contexts_of(context, n)]),
        )
        return batch._without_faults(estimated)

    def _without_faults(self, estimated: bool = False) -> EventBatch:
        """Return the batch.

        Raises:
            ValueError: A row breaks a rule. Names the first such row.
        """
        batch, _ = self.clipped()
        for row, fault in sorted(batch.faults(estimated=estimated).items()):
            percent = "; divide percent by 100" if batch._are_percent(fault.reason) else ""
            raise ValueError(f"row {row}: {fault.reason}: {fault.detail}{percent}")
        return batch

    def _are_percent(self, reason: str) -> bool:
        """Return whether numbers that are rejected for this reason look like percent: none is over 100."""
        columns = {"propensity_range": self.propensity, "probability_range": self.probabilities}
        values = columns.get(reason, np.ones(1))
        known = values[~np.isnan(values)].tolist()
        return 1 < max(known, default=0) <= 100 and min(known) >= 0

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        columns: Mapping[str, Any] | None = None,
        *,
        policies: Sequence[str] = (),
        reward_field: str = "reward",
        reward_range: tuple[float, float] | None = None,
        scores: Sequence[str] | None = None,
        segments: Mapping[str, str] | None = None,
        estimated: bool = False,
    ) -> EventBatch:
        """Build a batch from a frame of pandas, polars or another library that supports Arrow. Needs pyarrow.

        Rows that are not events are in `rejected`, with the index of the row as `place`. Dates and times are read by
        the type of their column. Without a timestamp, rows count in their order.

        Args:
            frame: one row per event
            columns: the column of each field, as in the configuration, by default a column with the field's name.
                `{"policies": {"challenger": "p_new"}}` names the columns of policies
            policies: policies in columns of their own names
            reward_field: the field of the reward
            reward_range: smallest and largest reward. Other rows are rejected
            scores: fields with scores that policies read, such as `softmax`
            segments: by name, the field of each segment: a column, or `context.NAME` for a column in `context`
            estimated: whether propensities are estimated, so that the frame needs none

        Raises:
            TypeError: This is not a frame.
            InputError: pyarrow is not installed, or a column is missing or mixes types.
            ProblemsError: Another argument is wrong.

        >>> frame = {"action": ["a", "b"], "p": [0.5, 0.5], "reward": [1, 0], "challenger": [0.7, 0.2]}
        >>> EventBatch.from_frame(frame, {"propensity": "p"}, policies=["challenger"])
        EventBatch(2 events, policies=['challenger'], 0 rejected)
        """
        from streameval.events.decoder import JsonDecoder
        from streameval.events.tables import ColumnNames

        check_options(reward_field, estimated)
        scores = list_of_names("scores", scores)
        names = ColumnNames.from_mapping(columns, list_of_names("policies", policies) or ())
        require_one_reward(reward_field, names.reward)
        reward_range, fields = range_of_reward(reward_range), segment_fields(segments)
        raw_fields = () if estimated and scores is None else scores
        options: dict[str, Any] = {"segments": fields, "named": estimated, "estimated": estimated}
        options["deferred"] = JsonDecoder([], reward_field, scores=()) if raw_fields is None else None
        decoder = JsonDecoder(list(names.policies), reward_field, reward_range, raw_fields, **options)
        return replace(decode_frame(frame, names, decoder), origin=None)

    @classmethod
    def from_rankings(
        cls,
        *,
        clicks: ArrayLike,
        ranks: Mapping[str, ArrayLike],
        propensities: ArrayLike | None = None,
        swap: ArrayLike | None = None,
        marginals: ArrayLike | None = None,
        features: ArrayLike | None = None,
        list_length: int | None = None,
        rank_probabilities: ArrayLike | None = None,
        timestamp: ArrayLike | None = None,
        sampling_probability: ArrayLike | None = None,
        unit: Sequence[Identifier | None] | ArrayLike | None = None,
    ) -> EventBatch:
        """Build a batch of rankings with clicks from arrays, which are copied.

        Args:
            clicks: [n, L] 1 if the item that production showed at this rank was clicked, else 0, NaN without an item
            ranks: by policy, [n, L] its rank of this item, from 1, infinite below the cut. A row of NaN = missing, so
                give pages without clicks their ranks, too, or any others: they do not count
            propensities: [n, L] the probability that the user looks at the item
            swap: [n, 2] the two ranks with items that were exchanged by chance, 0 without an exchange
            marginals: [n, L, 2] the probabilities that production shows the item at this rank and at the next one
            features: [n, L, d] features of the items
            list_length: number of items that the policies show, if `ranks` are whole lists, None = only the ranks of
                clicked items are known
            rank_probabilities: [n, L, K] the probabilities that production shows the item at rank 1, 2, ..., K >= L
            timestamp: [n] seconds since 1970
            sampling_probability: [n] in (0, 1], for a downsampled log
            unit: [n] the user or session of each page

        Raises:
            ValueError: An array has the wrong shape, or a page breaks a rule. Names the first such row.

        >>> batch = EventBatch.from_rankings(clicks=[[0, 1, 1]], ranks={"challenger": [[3, 1, 2]]})
        >>> batch.rankings.rank, batch.rankings.ranks.ravel()
        (array([2., 3.]), array([1., 2.]))
        """
        placed, rankings = rankings_from_arrays(
            clicks, ranks, propensities, swap, marginals, features, list_length, rank_probabilities
        )
        batch = cls.from_arrays(
            reward=rankings.clicks,
            propensity=np.ones(len(placed)),
            policies=dict(zip(ranks, placed.T, strict=True)),
            timestamp=timestamp,
            sampling_probability=sampling_probability,
            unit=unit,
        )
        return replace(batch, rankings=rankings)._without_faults()

    def to_state(self) -> State:
        """Return the columns as a plain value without rejected messages. Arrays become bytes, uncopied."""
        state: State = to_plain(Columns.to_state(replace(self, rejected=())), lasting=True)
        return state

    @classmethod
    def from_state(cls, state: State) -> EventBatch:
        """Restore from `to_state`, bit for bit.

        Raises:
            DamagedError: The state has other columns.
        """
        require_fit(state, cls.concat([]).to_state())
        columns = from_plain(state)
        tuples = {name: tuple(columns[name]) for name in ("policies", "rejected")}
        batch: EventBatch = super(EventBatch, cls).from_state(columns | tuples)
        return batch


def decode_frame(frame: Any, names: ColumnNames, decoder: JsonDecoder) -> EventBatch:
    """Decode the rows of a frame.

    Raises:
        TypeError: This is not a frame.
        InputError: pyarrow is not installed, or a column is missing or mixes types.
    """
    try:
        from streameval.events.arrow import from_frame
    except ImportError as error:
        hint = "pip install 'streameval[columnar]'"
        raise InputError("frames need pyarrow, which is not installed", hint=hint) from error
    return from_frame(frame, names, decoder)


@cache
def _no_events() -> EventBatch:
    return EventBatch.from_arrays(reward=[], propensity=[])


def way_to_a_batch(value: object) -> str:
    """Explain how to make a batch from a value of another type."""
    if isinstance(value, Mapping):
        return "give one event to update_one, and columns to EventBatch.from_arrays"
    if hasattr(value, "__arrow_c_stream__"):
        return "EventBatch.from_frame makes one"
    if isinstance(value, Sequence) and value and not isinstance(value[0], EventBatch):
        return remedy_of(value)
    return "read_events yields them; call update with each"
