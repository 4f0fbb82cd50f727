"""Decode and check rankings with clicks, the third form of events.

A page shows items in an order, and its user clicks some of them. Each candidate gives the ranks at which it would have
shown the clicked items, or its whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, ClassVar, TypeAlias, cast

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import astuple
from numpy.typing import ArrayLike

from streameval.common.arrays import Array, floats, is_positive_probability
from streameval.common.text import counted
from streameval.events.action_sets import Columns, Features, Index, Listed, cumulative_offsets
from streameval.events.from_arrays import column
from streameval.events.schema import (
    NAN,
    FeatureRows,
    Identifier,
    Probability,
    SamplingProbability,
    Timestamp,
    Unit,
    derived,
    described,
    described_schema,
    policies_type,
)
from streameval.events.validation import MAX_FEATURES, BrokenRule, Fault, policy_rule

BELOW_CUT = float("inf")
"""Rank of an item that a policy does not show."""
MAX_RANK = 1_000_000
MAX_ITEMS = 10_000  # shown on a page, unless configured: a policy's whole list adds a row for each of them

Rank: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_RANK)]
Items: TypeAlias = list[Identifier]


class Page(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """The page that production showed, and the clicks on it."""

    shown: Annotated[Items, described("The items in the order in which production showed them.", uniqueItems=True)]
    clicked: Annotated[Items, described("The items that the user clicked.", uniqueItems=True)]
    propensities: Annotated[
        list[Probability] | None,
        described("The probability that the user looks at the rank of each item of `clicked`; above 0."),
    ] = None
    swap: Annotated[
        list[Rank] | None,
        described("The two ranks with items that were exchanged on this page, by chance.", minItems=2, maxItems=2),
    ] = None
    marginals: Annotated[
        list[list[Probability]] | None,
        described(
            "If production is random: for each of `shown`, the probabilities that production shows it at this rank "
            "and at the next rank."
        ),
    ] = None
    rank_probabilities: Annotated[
        list[list[Probability]] | None,
        described(
            "If production is random: for each of `shown`, the probabilities that production shows it at rank 1, 2, "
            "... It is never at later ranks."
        ),
    ] = None


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The ranks at which a policy shows the items of a page: `ranks`, or its whole `ranking`."""

    ranks: Annotated[
        dict[str, Rank] | None, described("The rank of each clicked item, from 1; without a rank it is below the cut.")
    ] = None
    ranking: Annotated[Items | None, described("All items in the order of the policy.", uniqueItems=True)] = None
    support: Annotated[
        float | None,
        described(
            "With `ranks`: the share of the policy's gain at ranks with items that production showed.",
            minimum=0,
            maximum=1,
        ),
    ] = None


class RankingEvent(msgspec.Struct, kw_only=True, frozen=True, gc=False):
    """One page that production showed, with its clicks and the ranks that other policies give its items.

    Optional fields may be null, which means the same as absent. Fields not named here are ignored.
    """

    slots: ClassVar[None] = None
    scored: ClassVar[None] = None

    event_id: Annotated[Identifier, described("Identifies the event.")]
    timestamp: Annotated[
        Timestamp, described("Time of the page: seconds since 1970 (UTC), or RFC 3339 with an offset.")
    ]
    ranking: Page
    policies: Annotated[
        dict[str, Placement | None] | None,
        described("By policy name. A policy that is absent or null is missing for this event only."),
    ] = None
    features: Annotated[FeatureRows, described("One row of up to 4096 numbers for each of `ranking.shown`.")] = None
    sampling_probability: SamplingProbability = 1.0
    unit: Unit = None
    context: Annotated[Raw | UnsetType, described("The context of the page, of any type.")] = UNSET

    @property
    def actions(self) -> Items:
        """Return the items shown. Reward models may read their names."""
        return self.ranking.shown


@lru_cache(maxsize=16)
def ranking_type(policies: tuple[str, ...] | None = None, named: bool = False) -> type[RankingEvent]:
    """Return `RankingEvent` for one configuration. For the arguments see `RankingDecoder`."""
    changed: list[Any] = [("context", Any, None)] if named else []
    if policies is not None:
        placements = policies_type(policies, Placement | None, None)
        changed.append(("policies", placements, msgspec.field(default_factory=placements)))
    return cast("type[RankingEvent]", derived(RankingEvent, changed))


def ranking_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one ranking with clicks."""
    return described_schema(RankingEvent)


# --- One page: its lists must fit together before they can become columns ---


def page_fault(event: RankingEvent, max_items: int = MAX_ITEMS) -> Fault | None:
    """Return the fault of a page with too many items or with lists that do not fit together, or None."""
    page = event.ranking
    if len(page.shown) > max_items:
        return Fault("malformed", f"ranking.shown: {len(page.shown)} items, more than the limit of {max_items}")
    shown, clicked = set(page.shown), set(page.clicked)
    if len(shown) < len(page.shown) or len(clicked) < len(page.clicked):
        lists = {"ranking.shown": page.shown, "ranking.clicked": page.clicked}
        return next(_repeated(lists))
    if not shown >= clicked:
        unknown = next(item for item in page.clicked if item not in shown)
        return Fault("unknown_action", f"ranking.clicked: {unknown!r} is not one of `shown`")
    optional = page.propensities, page.swap, page.marginals, page.rank_probabilities, event.features
    if all(field is None for field in optional):
        return None
    return next(_mismatches(event), None)


def propensities_fault(event: RankingEvent) -> Fault | None:
    """Return the fault of a page with clicks that lacks their propensities, or None."""
    if event.ranking.clicked and event.ranking.propensities is None:
        return Fault("missing_field", "ranking.propensities: missing")
    return None


def _repeated(lists: Mapping[str, Items]) -> Iterator[Fault]:
    for field, items in lists.items():
        if len(set(items)) < len(items):
            seen: set[Identifier] = set()
            repeated = next(item for item in items if item in seen or seen.add(item))  # type: ignore[func-returns-value]
            yield Fault("malformed", f"{field}: {repeated!r} is listed twice")


def _mismatches(event: RankingEvent) -> Iterator[Fault]:
    page, features = event.ranking, event.features or []
    lengths: dict[str, tuple[Any, Items, str]] = {
        "ranking.propensities": (page.propensities, page.clicked, "clicked"),
        "ranking.marginals": (page.marginals, page.shown, "shown"),
        "ranking.rank_probabilities": (page.rank_probabilities, page.shown, "shown"),
        "features": (event.features, page.shown, "shown"),
    }
    for field, (values, items, which) in lengths.items():
        if values is not None and len(values) != len(items):
            yield Fault(
                "malformed", f"{field}: {counted(len(values), 'entry')} for {counted(len(items), 'item')} {which}"
            )
    for index, propensity in enumerate(page.propensities or ()):
        if not is_positive_probability(propensity):
            yield Fault("propensity_range", f"ranking.propensities[{index}]: {propensity:.10g} is not in (0, 1]")
    if page.swap is not None and (len(set(page.swap)) != 2 or max(page.swap) > len(page.shown)):
        yield Fault("malformed", f"ranking.swap: not two ranks of the {counted(len(page.shown), 'item')} shown")
    for index, pair in enumerate(page.marginals or ()):
        if len(pair) != 2:
            yield Fault("malformed", f"ranking.marginals[{index}]: {counted(len(pair), 'entry')}, expected 2")
        elif not (is_positive_probability(pair[0]) and (pair[1] == 0 or is_positive_probability(pair[1]))):
            entries = ", ".join(f"{entry:.10g}" for entry in pair)
            yield Fault("propensity_range", f"ranking.marginals[{index}]: {entries} are not in (0, 1] and [0, 1]")
    yield from _unlikely_ranks(page.rank_probabilities or ())
    widths = set(map(len, features))
    if len(widths) > 1 or max(widths, default=0) > MAX_FEATURES:
        yield Fault("malformed", f"features: rows of {min(widths)} to {max(widths)} numbers, expected one length")


def _unlikely_ranks(rows: Sequence[Sequence[float]]) -> Iterator[Fault]:
    """Yield the faults of the probabilities of ranks. The item at rank k needs a positive probability of rank k."""
    place, lengths = "ranking.rank_probabilities", set(map(len, rows))
    if len(lengths) > 1:
        yield Fault("malformed", f"{place}: rows of {min(lengths)} to {max(lengths)} numbers, expected one length")
    for index, row in enumerate(rows):
        if len(row) <= index:
            yield Fault("malformed", f"{place}[{index}]: {counted(len(row), 'entry')}, expected more than {index}")
            return
        if row[index] > 0 and min(row) >= 0 and max(row) <= 1:
            continue
        wrong = next((entry for entry in row if entry != 0 and not is_positive_probability(entry)), None)
        if wrong is not None or row[index] == 0:
            entry = row[index] if wrong is None else wrong
            expected = "is not in [0, 1]" if row[index] else f"is its probability of rank {index + 1}, and it is there"
            yield Fault("propensity_range", f"{place}[{index}]: {entry:.10g} {expected}")


# --- Columns ---


@dataclass(frozen=True, slots=True, eq=False)
class Rankings(Listed):
    """Hold the items of n pages: all items shown if a policy gives its whole list, else the clicked items.

    Attributes:
        shown: [n] number of items shown
        swap_from: [n] the lower of the two ranks with exchanged items, 0 without an exchange
        swap_to: [n] the higher of the two ranks with exchanged items, 0 without an exchange
        support: [n, P] share of a policy's gain at ranks with shown items, as logged, NaN = not logged
        list_length: [n, P] length of a policy's whole list, NaN = it gives the ranks of clicked items alone
        rank: [rows] rank at which production showed the item, from 1
        clicked: [rows] 1 if it was clicked, else 0
        propensity: [rows] probability of a look at it, as logged, NaN = not logged
        next_ratio: [rows] probability that production shows it at the next rank, divided by the probability of its
            rank, NaN = not logged
        ranks: [rows, P] the policies' ranks of the item, infinite below the cut, NaN if not known
        features: features of all items shown, None = no page has features
        rank_probabilities: the probabilities of ranks 1, 2, ... of all items shown, in the form of features
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("shown", "swap_from", "swap_to"), 0),
        **dict.fromkeys(("support", "list_length"), np.nan),
        **dict.fromkeys(("features", "rank_probabilities"), ...),
    }
    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "offsets": ("rank", "clicked", "propensity", "next_ratio", "ranks")
    }
    PARTS: ClassVar[Mapping[str, type[Columns]]] = dict.fromkeys(("features", "rank_probabilities"), Features)
    PROBABILITIES: ClassVar[Sequence[str]] = ("propensity", "support")

    shown: Index
    swap_from: Index
    swap_to: Index
    support: Array
    list_length: Array
    rank: Array
    clicked: Array
    propensity: Array
    next_ratio: Array
    ranks: Array
    features: Features | None = None
    rank_probabilities: Features | None = None

    @property
    def clicks(self) -> Array:
        """Return the number of clicks, [n]."""
        return np.bincount(self.owner, self.clicked, len(self.shown)).astype(float)

    def trimmed(self) -> Rankings:
        """Drop features and probabilities of ranks if no page has them."""
        tables = [self.features, self.rank_probabilities]
        features, probabilities = (table if table is not None and len(table.values) else None for table in tables)
        return replace(self, features=features, rank_probabilities=probabilities)


NO_PLACEMENT = Placement()
FEW_ITEMS = 8  # are found one by one, faster than through a dictionary of all items of the page
NO_RANKS: Mapping[str, int] = {}


def ranking_columns(
    events: Sequence[RankingEvent], policies: tuple[str, ...] | None
) -> tuple[tuple[str, ...], Array, Rankings]:
    """Return the columns of pages with lists that fit together.

    Returns:
        The names of the policies, [n, P] 1 if a page has the policy, else NaN, and the items.
    """
    names, cells = _placements(events, policies)
    shape, pages = (len(events), len(names)), [event.ranking for event in events]
    lists: list[Any] = [cell.ranking for cell in cells]
    tables: list[Any] = [cell.ranks for cell in cells]
    if tables.count(None):
        pairs = zip(cells, [page for page in pages for _ in names], strict=True)
        tables = [NO_RANKS if _has_nothing_to_rank(cell, page) else cell.ranks for cell, page in pairs]
    lengths: list[int | None] = lists
    if lists.count(None) < len(lists):
        lengths = [None if items is None else _length(items) for items in lists]
        tables = [table if items is None else _table(items) for table, items in zip(tables, lists, strict=True)]
    listed = _by_policy(lengths, shape)
    placed = np.ones(shape[::-1]).T
    if tables.count(None):
        placed = _by_policy([None if table is None else 1.0 for table in tables], shape)
    tables_of = [event.features for event in events], [page.rank_probabilities for page in pages]
    has_tables = [pair != (None, None) for pair in zip(*tables_of, strict=True)]
    is_whole = ~np.isnan(listed).all(axis=1) | np.array(has_tables, dtype=bool)
    items = [page.shown if whole else page.clicked for page, whole in zip(pages, is_whole.tolist(), strict=True)]
    offsets = cumulative_offsets(np.array(list(map(len, items)), dtype=np.int64))
    rankings = Rankings(
        offsets=offsets,
        shown=np.array([len(page.shown) for page in pages], dtype=np.int64),
        swap_from=np.array([min(page.swap) if page.swap else 0 for page in pages], dtype=np.int64),
        swap_to=np.array([max(page.swap) if page.swap else 0 for page in pages], dtype=np.int64),
        support=_by_policy([cell.support for cell in cells], shape),
        list_length=listed,
        rank=floats(list(chain.from_iterable(map(_shown_ranks, pages, items)))),
        clicked=np.ones(offsets[-1]),
        propensity=_per_item(pages, items, _propensities),
        next_ratio=_per_item(pages, items, _next_ratios),
        ranks=_ranks(tables, items, placed),
        features=Features.from_tables(tables_of[0]),
        rank_probabilities=Features.from_tables(tables_of[1]),
    )
    if is_whole.any():  # with items that were not clicked
        clicks = [set(page.clicked) for page in pages]
        clicked = [float(item in chosen) for chosen, row in zip(clicks, items, strict=True) for item in row]
        rankings = _without_unknown_ranks(replace(rankings, clicked=floats(clicked)))
    return names, placed, rankings


def _has_nothing_to_rank(cell: Placement, page: Page) -> bool:
    """Tell whether a policy is in a page without clicks: an empty placement then has all ranks, and is not missing."""
    return cell is not NO_PLACEMENT and cell.ranks is None and cell.ranking is None and not page.clicked


def _placements(
    events: Sequence[RankingEvent], policies: tuple[str, ...] | None
) -> tuple[tuple[str, ...], list[Placement]]:
    """Return the names of the policies, and their placements page by page."""
    pages: list[Any] = [event.policies for event in events]
    if policies is not None:
        return policies, [cell or NO_PLACEMENT for cell in chain.from_iterable(map(astuple, pages))]
    names = tuple(dict.fromkeys(chain.from_iterable(cells or () for cells in pages)))
    return names, [(cells or {}).get(name) or NO_PLACEMENT for cells in pages for name in names]


def _shown_ranks(page: Page, items: Items) -> Iterable[int]:
    """Return the ranks at which production showed some items of a page, from 1."""
    if items is page.shown:
        return range(1, len(items) + 1)
    if len(items) <= FEW_ITEMS:
        return [page.shown.index(item) + 1 for item in items]
    ranks = {item: rank for rank, item in enumerate(page.shown, start=1)}
    return map(ranks.__getitem__, items)


def _ranks(tables: Sequence[Mapping[str, int] | None], items: Sequence[Items], placed: Array) -> Array:
    """Return the rank of each item by each policy, [rows, P].

    Args:
        tables: ranks by item, one table per page and policy
        items: the items of each page
        placed: [n, P] 1 if a page has the policy, else NaN
    """
    policies = placed.shape[1]
    if policies == 0:
        return np.empty((sum(map(len, items)), 0))
    complete = [table or {} for table in tables]
    by_page = zip(*[iter(complete)] * policies, strict=True)
    spelled = [[item if item.__class__ is str else str(item) for item in row] for row in items]
    flat = [
        table.get(item, BELOW_CUT) for row, page in zip(spelled, by_page, strict=True) for item in row for table in page
    ]
    ranks = np.ascontiguousarray(floats(flat).reshape(-1, policies).T)
    unknown = np.isnan(placed.T)
    return np.where(np.repeat(unknown, list(map(len, items)), axis=1), NAN, ranks).T if unknown.any() else ranks.T


def _table(items: Items) -> Mapping[str, int]:
    """Return the rank of each item by its name."""
    return {str(item): rank for rank, item in enumerate(items, start=1)}


def _length(items: Items) -> int:
    """Return the length of a list, as a negative number if an item is listed twice."""
    return len(items) if len(set(items)) == len(items) else -len(items)


def _without_unknown_ranks(rankings: Rankings) -> Rankings:
    """Set the ranks of items that were not clicked to NaN, for policies that give no whole list."""
    has_rank = (rankings.clicked > 0)[:, None] | ~np.isnan(rankings.list_length[rankings.owner])
    return replace(rankings, ranks=np.where(has_rank.T, rankings.ranks.T, np.nan).T)


def _propensities(page: Page) -> Mapping[Identifier, float] | None:
    return None if page.propensities is None else dict(zip(page.clicked, page.propensities, strict=True))


def _next_ratios(page: Page) -> Mapping[Identifier, float] | None:
    if page.marginals is None:
        return None
    return {item: later / own for item, (own, later) in zip(page.shown, page.marginals, strict=True)}


def _per_item(
    pages: Sequence[Page], items: Sequence[Items], read: Callable[[Page], Mapping[Identifier, float] | None]
) -> Array:
    """Return a number for each item, NaN if the page has none."""
    tables = list(map(read, pages))
    if tables.count(None) == len(tables):
        return np.full(sum(map(len, items)), NAN)
    rows = zip(tables, items, strict=True)
    return floats([(table or {}).get(item, NAN) for table, row in rows for item in row])


def _by_policy(values: Sequence[float | None], shape: tuple[int, int]) -> Array:
    """Convert numbers in the order of pages to an array [n, P], contiguous over pages, NaN for None."""
    if values.count(None) == len(values):
        return np.full(shape[::-1], NAN).T
    numbers = floats([NAN if value is None else value for value in values])
    return np.ascontiguousarray(numbers.reshape(shape).T).T


def ranking_rules(rankings: Rankings, policies: Sequence[str]) -> Iterator[BrokenRule]:
    """Yield the rules of rankings with clicks."""
    yield policy_rule(
        "probability_range",
        (rankings.support < 0) | (rankings.support > 1),
        lambda row, policy: (
            f"policies.{policies[policy]}.support: {rankings.support[row, policy]:.10g} is not in [0, 1]"
        ),
    )
    yield policy_rule(
        "malformed",
        rankings.list_length < 0,
        lambda _, policy: f"policies.{policies[policy]}.ranking: an item is listed twice",
    )
    keys = np.sort(rankings.owner * (MAX_RANK + 1.0) + np.where(rankings.ranks.T <= MAX_RANK, rankings.ranks.T, np.nan))
    repeated = np.argwhere(keys[:, 1:] == keys[:, :-1])
    owners = (keys[tuple(repeated.T)] // (MAX_RANK + 1)).astype(int)
    broken = np.zeros(len(rankings.shown), dtype=bool)
    broken[owners] = True
    by_row = dict(zip(owners.tolist(), repeated[:, 0].tolist(), strict=True))
    yield broken, "malformed", lambda row: f"policies.{policies[by_row[row]]}: two items have the same rank"


def rankings_from_arrays(
    clicks: ArrayLike,
    ranks: Mapping[str, ArrayLike],
    propensities: ArrayLike | None,
    swap: ArrayLike | None,
    marginals: ArrayLike | None,
    features: ArrayLike | None,
    list_length: int | None,
    rank_probabilities: ArrayLike | None,
) -> tuple[Array, Rankings]:
    """Build columns from the arrays of `EventBatch.from_rankings`.

    Returns:
        [n, P] 1 if a page has the policy, else NaN, and the items.

    Raises:
        ValueError: An array has the wrong shape.
    """
    shown = column("clicks", clicks, None, None)
    n, length = shown.shape
    by_policy = [column(f"ranks[{name!r}]", values, n, length) for name, values in ranks.items()]
    placed = np.array([np.where(np.isnan(values).all(axis=1), np.nan, 1.0) for values in by_policy])
    placed = placed.reshape(len(by_policy), n).T
    keeps_all = list_length is not None or features is not None or rank_probabilities is not None
    kept = ~np.isnan(shown) & (keeps_all | (shown > 0))
    pair = np.zeros((n, 2)) if swap is None else np.sort(column("swap", swap, n, 2), axis=1)
    looked = np.full((n, length), np.nan) if propensities is None else column("propensities", propensities, n, length)
    marginal = np.full((n, length, 2), np.nan) if marginals is None else column("marginals", marginals, n, length, 2)

    def table(name: str, rows: ArrayLike | None) -> Features | None:
        if rows is None:
            return None
        values = column(name, rows, n, length, None)
        if name == "rank_probabilities" and values.shape[-1] < length:
            raise ValueError(f"{name} has {values.shape[-1]} ranks, expected at least {length}, as `clicks`")
        sizes = np.count_nonzero(kept, axis=1) * values.shape[-1]
        return Features(cumulative_offsets(sizes), values[kept].ravel())

    rankings = Rankings(
        offsets=cumulative_offsets(np.count_nonzero(kept, axis=1)),
        shown=np.count_nonzero(~np.isnan(shown), axis=1),
        swap_from=pair[:, 0].astype(np.int64),
        swap_to=pair[:, 1].astype(np.int64),
        support=np.full((len(by_policy), n), np.nan).T,
        list_length=np.full((len(by_policy), n), np.nan if list_length is None else list_length).T,
        rank=np.broadcast_to(np.arange(1.0, length + 1), (n, length))[kept],
        clicked=(shown[kept] > 0).astype(float),
        propensity=looked[kept],
        next_ratio=marginal[kept][:, 1] / marginal[kept][:, 0],
        ranks=np.array([values[kept] for values in by_policy]).reshape(len(by_policy), np.count_nonzero(kept)).T,
        features=table("features", features),
        rank_probabilities=table("rank_probabilities", rank_probabilities),
    )
    return placed, _without_unknown_ranks(rankings)
