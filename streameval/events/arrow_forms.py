"""Decode Arrow tables of slates, pages with clicks and scored outcomes by columns.

Tables are read in this way if their columns are like the ones that `streameval schema arrow` prints and all events
have one form. All other tables are decoded like JSON, and so are rows with odd values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streameval.common.arrays import Array, Mask
from streameval.events.action_sets import ActionSets, Features, Index, ScoredOutcomes, cumulative_offsets
from streameval.events.arrow import (
    KINDS,
    NO_LIST,
    NUMBERS,
    REWARD_KINDS,
    Column,
    Fields,
    decode_fields,
    event_columns,
    floats_of,
    incomplete_rows,
    is_list,
    json_array,
    kind_of,
    segment_columns,
    sizes_of,
    whole_rows,
)
from streameval.events.batch import EventBatch
from streameval.events.columns import with_outcomes, with_slates
from streameval.events.decoder import JsonDecoder, RankingDecoder
from streameval.events.origin import Origin
from streameval.events.rankings import BELOW_CUT, MAX_RANK, Rankings
from streameval.events.slates import FACTORED, ListedSlates, SlateColumns
from streameval.events.tables import OTHER_FORMS

COMMON = ("event_id", "timestamp", "sampling_probability", "unit", "logging_policy")
"""Fields that events of all forms have."""
BY_FORM: Mapping[str, Sequence[str]] = {"ranking": ("policies", "features"), "slots": (), "scored": ()}
"""Fields that only events of a form have, next to the one with its name."""
IN_SLOTS = ("action", "propensity", "actions", "propensities", "features")
OF_PAGES: Mapping[str, Sequence[str]] = {
    "shown": KINDS["actions"],
    "clicked": KINDS["actions"],
    "propensities": KINDS["propensities"],
    "swap": ("list of integer",),
    "marginals": KINDS["features"],
    "rank_probabilities": KINDS["features"],
}
"""Kinds of the fields of a page."""

Members: TypeAlias = Mapping[str, Column]
"""The arrays of a struct by field."""


class _OddColumnError(Exception):
    """Tell that a column has values that are not read by columns."""


def decode_form(
    table: Any, decoder: Any, decode_others: Callable[[Index], EventBatch], origin: Origin
) -> EventBatch | None:
    """Decode the rows of a table with events of one form.

    Args:
        table: the columns, named like the fields of events
        decoder: the decoder of the events
        decode_others: decode some rows like JSON
        origin: topic, partition and offset of each row

    Returns:
        None if a column needs every row to be decoded like JSON.
    """
    try:
        form, fields = _form_of(table, decoder)
        are_whole, build = FORMS[form]

        def build_events(fields: Fields, kept: Index) -> tuple[EventBatch, Mask]:
            batch, is_valid = build(fields, decoder, len(kept))
            if decoder.segments:
                batch = replace(batch, segments=segment_columns(fields, decoder, len(kept), has_json=True))
            return batch, is_valid

        whole = are_whole(fields, decoder) & _are_valid(fields["event_id", None]) & _are_valid(fields[form, None])
        return decode_fields(fields, whole, build_events, decode_others, decoder, origin)
    except _OddColumnError:
        return None


def _form_of(table: Any, decoder: Any) -> tuple[str, Fields]:
    """Return the form of all events of a table, and their fields.

    Raises:
        _OddColumnError: Some events have another form, or a column has values of another kind.
    """
    names = table.column_names
    is_plain = type(decoder) in (JsonDecoder, RankingDecoder) and decoder.policies is not None
    _require(is_plain and decoder.scores is None and decoder.deferred is None and len({*names}) == len(names))
    rewards, roots = _reward_fields(decoder), {segment.root for segment in decoder.segments}
    unread = {"context"} if decoder.rewarded else {"context", *rewards}
    read = ({*decoder.form.__struct_encode_fields__} - unread) | roots
    columns = {name: json_array(table.column(name)) for name in names if name in read}
    fields: Fields = {(name, None): column for name, column in columns.items() if column.null_count < len(column)}
    forms = [form for form in OTHER_FORMS if (form, None) in fields]
    _require(len(forms) == 1 and roots.isdisjoint([*OTHER_FORMS, "policies"]))
    others = {*decoder.form.__struct_encode_fields__} - {*COMMON, *rewards, "context", forms[0], *BY_FORM[forms[0]]}
    _require(others.isdisjoint(name for name, _ in fields) and {("event_id", None), ("timestamp", None)} <= {*fields})
    kinds = {**{name: KINDS[name] for name in COMMON}, "timestamp": NUMBERS}
    kinds |= dict.fromkeys(rewards if decoder.rewarded else (), REWARD_KINDS)
    for name, expected in kinds.items():
        _require((name, None) not in fields or kind_of(fields[name, None].type) in expected)
    return forms[0], fields


def _reward_fields(decoder: JsonDecoder) -> list[str]:
    return [decoder.reward_field, *(reward.field for reward in decoder.further)]


def _are_valid(column: Column) -> Mask:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _require(condition: bool) -> None:
    if not condition:
        raise _OddColumnError


def _members(column: Column | None) -> Members:
    """Return the arrays of a struct that are not null everywhere, null in rows without the struct."""
    if column is None:
        return {}
    names = [field.name for field in column.type] if pa.types.is_struct(column.type) else None
    if names is None or len({*names}) < len(names):
        raise _OddColumnError
    parts = zip(names, column.flatten(), strict=True)
    return {name: part for name, part in parts if part.null_count < len(part)}


def _numbers(members: Members, name: str, count: int, kinds: Sequence[str] = NUMBERS) -> Array:
    """Return the numbers of a field, NaN if they are missing."""
    if name not in members:
        return np.full(count, np.nan)
    _require(kind_of(members[name].type) in kinds)
    return floats_of(members[name])


# --- Scored outcomes ---


def _whole_outcomes(fields: Fields, decoder: JsonDecoder) -> Mask:
    return np.ones(len(fields["scored", None]), dtype=bool)


def _outcomes(fields: Fields, decoder: JsonDecoder, count: int) -> tuple[EventBatch, Mask]:
    """Return scored events, and which of them have a time."""
    batch, is_valid = event_columns(fields, decoder, count, None)
    scored = _members(fields["scored", None])
    values = _members(scored.get("values"))
    outcomes = [_numbers(values, policy, count, REWARD_KINDS) for policy in batch.policies]
    revealed = _numbers(scored, "revealed", count, ("boolean",))
    columns = ScoredOutcomes(
        offsets=np.arange(count + 1),
        propensity=_numbers(scored, "propensity", count),
        outcomes=np.array(outcomes).reshape(len(batch.policies), count).T,
        revealed=revealed != 0.0,  # NaN: by default it was
    )
    return with_outcomes(batch, columns), is_valid


# --- Slates ---


def _whole_slates(fields: Fields, decoder: JsonDecoder) -> Mask:
    """Return which slates have slots with an action, and either no lists or complete lists of one size."""
    lists = fields["slots", None]
    _require(is_list(lists.type))
    whole = sizes_of(lists) > 0
    slots = pc.list_flatten(lists)
    members = _slot_fields(slots, decoder)
    broken = ~(whole_rows(members, len(slots)) & _are_valid(slots))
    whole[pc.list_parent_indices(lists).to_numpy()[broken]] = False
    return whole


def _slot_fields(slots: Column, decoder: JsonDecoder) -> Fields:
    """Return the fields of slots, like the fields of events with one action."""
    members = _members(slots)
    policies = _members(members.get("policies"))
    rewards = _reward_fields(decoder) if decoder.rewarded else []
    fields: Fields = {
        **{(name, None): members[name] for name in (*IN_SLOTS, *rewards) if name in members},
        **{("policies", name): policies[name] for name in decoder.policies or () if name in policies},
    }
    _require(("action", None) in fields)
    kinds = {**KINDS, **dict.fromkeys(rewards, REWARD_KINDS)}
    _require(all(kind_of(column.type) in kinds[field] for (field, _), column in fields.items()))
    listed = fields.get(("actions", None))
    if listed is None:
        _require(not any(is_list(column.type) for column in fields.values()))
    else:
        names = listed.type.value_type, fields["action", None].type
        _require(names[0] == names[1] or {*map(kind_of, names)} == {"text"})
    return fields


def _slates(fields: Fields, decoder: JsonDecoder, count: int) -> tuple[EventBatch, Mask]:
    """Return slates, and which of them have a time and lists without repeats."""
    batch, is_valid = event_columns(fields, decoder, count, None)
    lists = fields["slots", None]
    values = pc.list_flatten(lists)
    slots, are_valid = event_columns(_slot_fields(values, decoder), decoder, len(values), None)
    sets = slots.action_sets or ActionSets.none(len(slots), len(slots.policies))
    owner = np.repeat(sets.offsets[:-1], sets.sizes)
    slates = SlateColumns(
        offsets=cumulative_offsets(sizes_of(lists)),
        propensity=slots.propensity,
        reward=slots.reward,
        probabilities=slots.probabilities,
        actions=replace(sets, items=np.arange(len(owner)) - owner, scores=np.full(len(owner), np.nan)),
        logging=np.full(count, FACTORED, dtype=np.int8),
        listed=ListedSlates.none(count),
        further=None if slots.further is None else slots.further.values,
    )
    is_valid[slates.owner[~are_valid]] = False
    return with_slates(batch, slates), is_valid


# --- Pages with clicks ---


def _whole_pages(fields: Fields, decoder: Any) -> Mask:
    """Return which pages have complete lists that fit together, of their items and of a policy or of features."""
    page, lists, tables = _page_fields(fields, decoder)
    items, clicks = sizes_of(page["shown"]), sizes_of(page["clicked"])
    whole = (items >= 0) & (items <= decoder.max_items) & (clicks >= 0)
    for name, column in {**page, **tables}.items():
        sizes, expected = sizes_of(column), {"clicked": clicks, "propensities": clicks, "swap": 2}.get(name, items)
        whole &= (sizes == expected) | (sizes == NO_LIST)
    for column in (*page.values(), *lists.values(), *tables.values()):
        whole[incomplete_rows(column)] = False
    if decoder.with_propensities:
        whole &= (clicks == 0) | ("propensities" in page and sizes_of(page["propensities"]) >= 0)
    has_all_items = np.any([sizes_of(column) >= 0 for column in (*lists.values(), *tables.values())], axis=0)
    return np.asarray(whole & has_all_items)


def _page_fields(fields: Fields, decoder: JsonDecoder) -> tuple[Members, Members, Members]:
    """Return the fields of pages, the lists by policy, and the tables with a row for each item that a page shows.

    Raises:
        _OddColumnError: A policy has no list, or more than its list, or items have several types.
    """
    members, placements = _members(fields["ranking", None]), _members(fields.get(("policies", None)))
    page, lists = {name: column for name, column in members.items() if name in OF_PAGES}, dict[str, Column]()
    for policy in decoder.policies or ():
        if policy in placements:
            placement = _members(placements[policy])
            lists[policy] = placement.get("ranking")
            _require(lists[policy] is not None and placement.keys().isdisjoint(("ranks", "support")))
            _require(lists[policy].null_count == placements[policy].null_count)
    tables = {name: page[name] for name in ("rank_probabilities",) if name in page}
    tables |= {"features": fields["features", None]} if ("features", None) in fields else {}
    kinds = {name: kind_of(column.type) for name, column in {**page, **tables}.items()}
    _require(
        kinds.keys() >= {"shown", "clicked"}
        and all(kind in {**OF_PAGES, "features": KINDS["features"]}[name] for name, kind in kinds.items())
    )
    names = [page["shown"], page["clicked"], *lists.values()]
    _require(len({"text" if kind_of(column.type) == "list of text" else column.type for column in names}) == 1)
    return page, lists, tables


def _pages(fields: Fields, decoder: JsonDecoder, count: int) -> tuple[EventBatch, Mask]:
    """Return pages, and which of them have a time, items without repeats, and numbers within their range."""
    page, lists, tables = _page_fields(fields, decoder)
    shown, clicked, *listed = _entries([page["shown"], page["clicked"], *lists.values()])
    policies, rows = decoder.policies or (), len(shown.page)
    lengths, ranks = np.full((len(policies), count), np.nan), np.full((len(policies), rows), BELOW_CUT)
    for policy, entries in zip(lists, listed, strict=True):
        number, is_shown = policies.index(policy), entries.row >= 0
        lengths[number] = np.where(entries.sizes < 0, np.nan, entries.sizes)
        ranks[number, entries.row[is_shown]] = entries.rank[is_shown]
    ranks[np.isnan(lengths)[:, shown.page]] = np.nan
    batch, is_valid = event_columns(fields, decoder, count, np.where(np.isnan(lengths), np.nan, 1.0).T)
    for entries in (shown, clicked, *listed):
        is_valid[entries.repeated] = False
    is_valid[clicked.page[clicked.row < 0]] = False
    clicks, propensity, is_shown = np.zeros(rows), np.full(rows, np.nan), clicked.row >= 0
    looks = _looks(page.get("propensities"), clicked, is_valid)
    clicks[clicked.row[is_shown]], propensity[clicked.row[is_shown]] = 1.0, looks[is_shown]
    swap_from, swap_to = _swaps(page.get("swap"), shown.sizes, is_valid)
    numbers = {name: _table(column) for name, column in tables.items()}
    for table in numbers.values():
        is_valid[table.owner[~np.isfinite(table.values)]] = False
    if "rank_probabilities" in tables:
        _check_rank_probabilities(numbers["rank_probabilities"], tables["rank_probabilities"], shown, is_valid)
    rankings = Rankings(
        offsets=cumulative_offsets(shown.sizes),
        shown=shown.sizes,
        swap_from=swap_from,
        swap_to=swap_to,
        support=np.full(lengths.shape, np.nan).T,
        list_length=lengths.T,
        rank=shown.rank.astype(float),
        clicked=clicks,
        propensity=propensity,
        next_ratio=_next_ratios(page.get("marginals"), shown, is_valid),
        ranks=ranks.T,
        **numbers,
    )
    return replace(batch, propensity=np.ones(count), reward=rankings.clicks, rankings=rankings), is_valid


def _looks(column: Column | None, clicked: _Entries, is_valid: Mask) -> Array:
    """Return the propensity of each clicked item, NaN without one. Marks pages with propensities out of range."""
    looks = np.full(len(clicked.page), np.nan)
    if column is not None:
        has_looks = (sizes_of(column) >= 0)[clicked.page]
        looks[has_looks] = floats_of(pc.list_flatten(column))
        is_valid[clicked.page[has_looks & ~((looks > 0.0) & (looks <= 1.0))]] = False
    return looks


def _swaps(column: Column | None, items: Index, is_valid: Mask) -> Index:
    """Return the lower and the higher rank of each exchange, 0 without one. Marks pages without these ranks."""
    swaps = np.zeros((2, len(items)), dtype=np.int64)
    if column is not None:
        ranks = pc.list_flatten(column).cast(pa.int64(), safe=False).to_numpy().reshape(-1, 2)
        has_swap = sizes_of(column) >= 0
        swaps[:, has_swap] = np.sort(ranks, axis=1).T
        low, high = swaps
        is_valid[has_swap & ~((low >= 1) & (low < high) & (high <= np.minimum(items, MAX_RANK)))] = False
    return swaps


def _next_ratios(column: Column | None, shown: _Entries, is_valid: Mask) -> Array:
    """Return the ratio of each pair of marginals, NaN without one. Marks pages with others than such pairs."""
    ratios = np.full(len(shown.page), np.nan)
    if column is not None:
        table, has_pairs = _table(column), sizes_of(column) >= 0
        are_pairs = has_pairs & (table.sizes == 2 * shown.sizes)
        own, later = table.values[np.repeat(are_pairs, table.sizes)].reshape(-1, 2).T
        is_valid[has_pairs & ~are_pairs] = False
        rows = are_pairs[shown.page]
        is_valid[shown.page[rows][~((own > 0.0) & (own <= 1.0) & (later >= 0.0) & (later <= 1.0))]] = False
        with np.errstate(divide="ignore", invalid="ignore"):  # of pages that are marked
            ratios[rows] = later / own
    return ratios


def _check_rank_probabilities(table: Features, column: Column, shown: _Entries, is_valid: Mask) -> None:
    """Mark pages with numbers that are no probabilities, or without a probability of the ranks of their items."""
    has_rows, widths = sizes_of(column) >= 0, table.sizes // np.maximum(shown.sizes, 1)
    are_wide = has_rows & (widths >= shown.sizes)
    is_valid[has_rows & ~are_wide] = False
    is_valid[table.owner[~((table.values >= 0.0) & (table.values <= 1.0))]] = False
    rows = are_wide[shown.page]
    page, place = shown.page[rows], shown.rank[rows] - 1
    is_valid[page[table.values[table.offsets[page] + place * (widths[page] + 1)] == 0.0]] = False


class _Entries(NamedTuple):
    """Hold the entries of lists of items.

    Attributes:
        sizes: [n] the number of entries on each page, `NO_LIST` without a list
        page: [entries] the page of each entry
        rank: [entries] its rank in its list, from 1
        row: [entries] the row of its item among all items that the pages show, -1 = the page does not show it
        repeated: the pages with a list that has an item twice
    """

    sizes: Index
    page: Index
    rank: Index
    row: Index
    repeated: Index


def _entries(columns: Sequence[Column]) -> list[_Entries]:
    """Return the entries of lists of items by page. The first column has the items that pages show."""
    values = [pc.list_flatten(column) for column in columns]
    pages = [pc.list_parent_indices(column).to_numpy().astype(np.int64) for column in columns]
    if kind_of(values[0].type) == "text":
        values = [value.cast(pa.large_string()) for value in values]
    codes, ends = pa.concat_arrays(values).dictionary_encode().indices.to_numpy(), np.cumsum(list(map(len, values)))
    radix = int(codes.max(initial=0)) + 1
    keys = [page * radix + own for page, own in zip(pages, np.split(codes, ends[:-1]), strict=True)]
    rows = pc.index_in(pa.array(np.concatenate(keys)), value_set=pa.array(keys[0])).fill_null(-1).to_numpy()
    entries = []
    for column, page, own, row in zip(columns, pages, keys, np.split(rows, ends[:-1]), strict=True):
        sizes, ordered = sizes_of(column), np.sort(own)
        rank = np.arange(len(page)) - cumulative_offsets(np.maximum(sizes, 0))[page] + 1
        entries.append(_Entries(sizes, page, rank, row, ordered[1:][ordered[1:] == ordered[:-1]] // radix))
    return entries


def _table(column: Column) -> Features:
    """Return the numbers of lists of lists."""
    rows = pc.list_flatten(column)
    sizes = np.bincount(pc.list_parent_indices(column).to_numpy(), sizes_of(rows), len(column)).astype(np.int64)
    return Features(cumulative_offsets(sizes), floats_of(pc.list_flatten(rows)))


Whole: TypeAlias = Callable[[Fields, Any], Mask]
Build: TypeAlias = Callable[[Fields, Any, int], tuple[EventBatch, Mask]]
FORMS: Mapping[str, tuple[Whole, Build]] = {
    "ranking": (_whole_pages, _pages),
    "slots": (_whole_slates, _slates),
    "scored": (_whole_outcomes, _outcomes),
}
"""By the field of a form, what tells whether rows can be rows of columns, and what builds the columns."""
