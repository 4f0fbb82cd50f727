"""Segments in the configuration: the problems of their fields, and of the estimate that they split."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial

from streameval.config.errors import Problem, expecting, refusal
from streameval.config.loading import Place
from streameval.events.segments import Segment, SegmentField, fields_of_segments


def segment_problems(
    segments: Mapping[str, Segment], rewards: Collection[str], of_rankings: bool, split: Callable[[], object]
) -> Iterator[Problem]:
    """The problems of segments.

    Args:
        rewards: the fields of rewards
        of_rankings: whether events are rankings
        split: creates an evaluator of the segments
    """
    if of_rankings:
        found = expecting("nothing next to `ranking`", "segments")
        yield Problem(("segments",), found, "remove them: segments split the estimates of decisions")
        return
    hint = "name a field that is known before the decision, e.g. context.country"
    unusable: list[Problem] = []
    for name, segment in segments.items():
        place: Place = ("segments", name, "field")
        unusable += refusal(place, partial(fields_of_segments, {name: segment}), hint)
        if not unusable and SegmentField(name, segment.field or name).root in rewards:
            unusable.append(Problem(place, expecting("a field that is known before the decision", "a reward"), hint))
    yield from unusable or refusal(("segments",), split, "add ips to estimators, and cumulative to averages")
