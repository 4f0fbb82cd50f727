"""Messages of many events in Arrow give the events that the same events give as JSON."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.config.model import Config
from streameval.events import EventBatch, JsonDecoder, RankingDecoder, RewardDecoder
from streameval.events.arrow_messages import COUNT_KEY, NAMES_KEY, ArrowDecoder, arrow_message
from streameval.events.fields import reward_decoder
from streameval.events.further_rewards import RewardField
from streameval.events.origin import Origin
from streameval.events.segments import SegmentField
from streameval.events.tables import ColumnNames, json_context, without_nan
from streameval.ingest.base import Records
from streameval.service.dead_letters import dead_letters_of
from support.fuzz_messages import POLICIES, corpus, shares
from support.messages import message
from support.strategies import examples

NEW, TWO = b'["new"]', b'["old", "new"]'
EVENT = {"event_id": "e", "timestamp": 1.0, "action": "a", "propensity": 0.5, "reward": 1.0}


def arrow(table: Any, metadata: Mapping[bytes, bytes] | None = None, *, of_file: bool = False, **options: Any) -> bytes:
    """Write a table, or columns by name, as one message."""
    table = table if isinstance(table, pa.Table) else pa.table(table)
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(metadata)
    new = pa.ipc.new_file if of_file else pa.ipc.new_stream
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def events(count: int, **fields: Any) -> dict[str, Any]:
    """Return the columns of valid events, or others."""
    columns = {name: [value] * count for name, value in EVENT.items()}
    return columns | {"event_id": [f"e-{number}" for number in range(count)]} | fields


def decoded(decoder: Any, messages: Sequence[bytes | None], columns: ColumnNames | None = None) -> Any:
    origin = Origin.from_parts("topic", [(3, range(10, 10 + len(messages)))])
    return ArrowDecoder(decoder, columns or ColumnNames()).decode_batch(messages, origin)


def assert_same_events(one: EventBatch, other: EventBatch) -> None:
    """Compare all columns but the places in the log."""
    states = [batch.to_state() | {"origin": None, "slates": None} for batch in (one, other)]
    names = [name for name, value in states[1].items() if value is not None]
    for name in names:
        np.testing.assert_equal(states[0][name], states[1][name], name)
    if other.slates is not None:  # sums over orders depend on the cuts in the last bits
        assert one.slates is not None
        np.testing.assert_allclose(one.slates.propensity, other.slates.propensity, rtol=1e-14)
        np.testing.assert_array_equal(one.slates.sizes, other.slates.sizes)
    identities = [batch.origin and batch.origin.identity for batch in (one, other)]
    np.testing.assert_equal(*identities)


@pytest.mark.parametrize("size", [1, 7, 200])
@pytest.mark.parametrize("kind", ["compact", "full", "slate", "scored", "outcome"])
def test_events_of_every_form_are_those_of_json(kind: str, size: int) -> None:
    texts = corpus(kind, random.Random(5), 200)
    trees = [json.loads(text) for text in texts]
    for tree in trees:  # a column has values of one type
        tree["event_id"] = str(tree["event_id"])
        if kind in ("full", "scored"):
            tree["policies"]["b"] = tree["policies"]["a"]
    texts = [json.dumps(tree).encode() for tree in trees]
    messages = [arrow_message(trees[start : start + size]) for start in range(0, len(trees), size)]
    options: dict[str, Any] = {"policies": POLICIES, "identified": True, "named": kind == "full"}
    if kind == "scored":
        options["scores"] = ["context", "actions"]
    found = decoded(JsonDecoder(**options), messages)
    expected = JsonDecoder(**options).decode_batch(texts, Origin.from_parts("topic", [(0, range(len(texts)))]))
    assert (len(found), found.rejected) == (len(texts), ())
    assert_same_events(found, expected)
    np.testing.assert_array_equal(found.origin.offset, 10 + np.arange(200) // size)
    np.testing.assert_array_equal(found.origin.row, np.arange(200) % size)


def columns_of(form: str, name: Any, number: Any) -> dict[str, Any]:
    """Return the types of the columns of a form, like `streameval schema arrow` prints them."""
    names, numbers = pa.list_(name), pa.list_(number)
    tables, cells = pa.list_(numbers), {"slots": numbers, "ranking": pa.struct({"ranking": names})}
    policies = pa.struct(dict.fromkeys(POLICIES, cells.get(form, number)))
    slot = {"action": name, "propensity": number, "actions": names, "propensities": numbers, "features": tables}
    slot |= {"policies": policies, "reward": number, "revenue": number}
    page = {"shown": names, "clicked": names, "propensities": numbers, "swap": pa.list_(pa.int64())}
    page |= {"marginals": tables, "rank_probabilities": tables}
    kinds: dict[str, dict[str, Any]] = {
        "slots": {"slots": pa.list_(pa.struct(slot)), "reward": number, "revenue": number},
        "scored": {"scored": pa.struct({"propensity": number, "values": policies, "revealed": pa.bool_()})},
        "ranking": {"ranking": pa.struct(page), "features": tables, "policies": policies},
        "action": {"action": name, "propensity": number, "reward": number, "policies": policies},
    }
    shared = {"event_id": pa.string(), "timestamp": pa.float64(), "sampling_probability": number}
    return shared | {"context": pa.string(), "unit": pa.dictionary(pa.int32(), pa.string())} | kinds[form]


def any_event(form: str, chance: random.Random, kind: type[str] | type[int]) -> dict[str, Any]:
    """Make a valid event. The names of its actions and items have one type."""
    names = list(map(kind, range(chance.randrange(1, 5))))
    event = {"event_id": f"e-{chance.random()}", "timestamp": chance.uniform(0, 1e9), "reward": chance.random()}
    event |= {"unit": chance.choice(["u", "v", None]), "sampling_probability": chance.choice([None, 0.5])}
    event |= {"context": chance.choice([None, '{"country": "de"}', '{"country": 7}', "de"])}

    def numbers() -> list[float]:
        return shares(chance, len(names))

    def slot() -> dict[str, Any]:
        lists = {"propensities": numbers(), "features": [[chance.random(), 1.0] for _ in names]}
        return {"action": chance.choice(names), "actions": names, "policies": {"a": numbers(), "b": numbers()}} | lists

    if form == "slots":
        slots, event["revenue"] = [slot() for _ in range(chance.randrange(1, 4))], chance.random()
        if chance.random() < 0.5:
            slots = [part | {name: event[name] / len(slots) for name in ("reward", "revenue")} for part in slots]
        return event | {"slots": slots}
    if form == "ranking":
        clicked = chance.sample(names, chance.randrange(len(names)))
        page = {"shown": names, "clicked": clicked, "propensities": chance.choice([None, [0.5] * len(clicked)])}
        page["swap"] = chance.choice([None, chance.sample(range(1, len(names) + 1), 2)]) if len(names) > 1 else None
        page["marginals"] = chance.choice([None, [[0.5, chance.choice([0.0, 0.25])] for _ in names]])
        page["rank_probabilities"] = chance.choice([None, [[0.25] * 4 for _ in names]])
        places = [{"ranking": chance.sample(list(map(kind, range(5))), chance.randrange(5))} for _ in POLICIES]
        features = chance.choice([None, [[chance.random()] * 2 for _ in names]])
        policies = {"a": places[0], "b": chance.choice([places[1], None])}
        return event | {"ranking": page, "policies": policies, "features": features}
    if form == "action":
        return event | {"action": names[0], "propensity": 0.5, "policies": {"a": chance.random(), "b": None}}
    values = {"a": chance.random(), "b": chance.choice([0.5, None])}
    scored = {"propensity": 0.5, "values": values, "revealed": chance.choice([None, True])}
    return event | {"scored": chance.choice([scored, scored, {"revealed": False}])}


def spoils(value: Any) -> Iterator[Any]:
    """Yield a value with one part replaced by null or by an odd one of its type, or by a list without an entry."""
    for key in [*value] if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0):
        for part in spoils(value[key]):
            copy = value.copy()
            copy[key] = part
            yield copy
    yield None
    if isinstance(value, float):
        yield from (2.0, -1.0, 0.0, math.nan, 1.0 + 2**-52)
    elif type(value) in (str, int):
        yield from (0, 1, 9) if type(value) is int else ("0", "?")
    elif isinstance(value, list):
        yield from ([], value[1:], value + value[:1])


def sparse(value: Any) -> Any:
    """Leave out what is null or NaN, and write it as null inside of lists."""
    if isinstance(value, dict):
        return {name: sparse(part) for name, part in value.items() if part is not None and part == part}
    return list(map(sparse, value)) if isinstance(value, list) else without_nan(value)


OPTIONS: Sequence[dict[str, Any]] = [
    {},
    {"reward_range": (0.0, 1.0)},
    {"rewarded": False},
    {"estimated": True, "named": True},
    {"segments": [SegmentField("country", "context.country"), SegmentField("u", "unit")]},
    {"further": [RewardField("revenue", "revenue", 0.0, 9.0)], "reward_range": (0.0, 1.0)},
]


@pytest.mark.parametrize("forms", [["scored"], ["slots"], ["ranking"], ["scored", "slots", "action"]], ids="+".join)
@examples(40)
@given(seed=st.integers(0, 2**32), are_spoiled=st.booleans())
def test_any_events_are_those_of_json_and_valid_ones_are_read_by_columns(
    forms: Sequence[str], seed: int, are_spoiled: bool
) -> None:
    chance, seen, rows, messages = random.Random(seed), list[bytes](), list[bytes](), list[bytes]()
    starts, kind = [], chance.choice([str, int])
    for _ in range(chance.randrange(1, 4)):
        form, count = chance.choice(forms), chance.randrange(1, 15)
        trees = [any_event(form, chance, kind) for _ in range(count)]
        if are_spoiled:
            spoiled = [part or {} for tree in trees[:3] for part in spoils(tree)]
            trees += chance.sample(spoiled, min(150, len(spoiled)))
            chance.shuffle(trees)
        names = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
        names = (
            names[:2] if are_spoiled and form == "slots" else names
        )  # pyarrow writes null slots with dictionaries wrongly
        name = chance.choice(names) if kind is str else pa.int64()
        kinds = columns_of(form, name, chance.choice([pa.float64(), pa.float32()]))
        if form == "scored" and chance.random() < 0.5:
            kinds["reward"] = pa.float64()
        table = pa.table({name: pa.array([tree.get(name) for tree in trees], kind) for name, kind in kinds.items()})
        starts.append(len(rows))
        messages.append(arrow(table))
        rows += [
            json.dumps(sparse(row | {"context": json_context(row["context"])})).encode() for row in table.to_pylist()
        ]
    options, with_propensities = chance.choice(OPTIONS), chance.random() < 0.5
    decoders = [
        RankingDecoder(POLICIES, with_propensities, identified=True)
        if forms == ["ranking"]
        else JsonDecoder(POLICIES, identified=True, **options)
        for _ in range(2)
    ]
    expected = decoders[1].decode_batch(rows, Origin.from_parts("topic", [(0, range(len(rows)))]))
    decode = decoders[0].decode_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoders[0], "decode_batch", lambda values, origin: decode(seen.extend(values) or values, origin))
        found = decoded(decoders[0], messages)
    assert_same_events(found.trimmed(), expected.trimmed())
    np.testing.assert_equal(*(batch.trimmed().to_state()["slates"] for batch in (found, expected)))
    details = [
        (starts[one.place], *one.detail.removeprefix("event ").split(" of its message: ", 1)) for one in found.rejected
    ]
    assert [(start + int(row) - 1, detail) for start, row, detail in details] == [
        (one.place, one.detail) for one in expected.rejected
    ]
    assert [one.reason for one in found.rejected] == [one.reason for one in expected.rejected]
    assert decoders[0].clipped_events == decoders[1].clipped_events
    assert are_spoiled or expected.rejected or "action" in forms or not seen


def test_lists_of_a_fixed_size_are_those_of_json() -> None:
    lists = {"actions": ["a", "b"], "propensities": [0.25, 0.75], "features": [[1.0, 0.5], [2.0, 0.25]]}
    rows = [EVENT | {"event_id": f"e-{number}", "propensity": None, **lists} for number in range(4)]
    rows[2] |= {"propensities": [0.5, 0.75]}
    pairs = pa.list_(pa.float64(), 2)
    kinds = {"actions": pa.list_(pa.string(), 2), "propensities": pairs, "features": pa.list_(pairs, 2)}
    columns = {name: pa.array([row[name] for row in rows], kinds.get(name)) for name in rows[0]}
    found = decoded(JsonDecoder(["new"], identified=True), [arrow(columns)])
    origin = Origin.from_parts("", [(0, range(4))])
    expected = JsonDecoder(["new"], identified=True).decode_batch([json.dumps(row).encode() for row in rows], origin)
    assert_same_events(found, expected)
    assert [one.reason for one in found.rejected] == [one.reason for one in expected.rejected] == ["distribution_sum"]


FURTHER = [RewardField("revenue", "revenue", 0.0, 9.0), RewardField("stay", "reward_id", 0.0, 9.0)]


@pytest.mark.parametrize(
    "decoder",
    [
        RewardDecoder(),
        RewardDecoder(further=FURTHER[:1]),
        RewardDecoder("revenue"),
        RewardDecoder(further=FURTHER),
        RewardDecoder(policies=["new", "old"]),
        reward_decoder(columns={"reward": "revenue"}),
    ],
    ids=["one", "two", "other name", "named like ids", "scores", "renamed"],
)
@pytest.mark.parametrize("bad", [{}, {"reward": None}, {"event_id": None}, {"timestamp": 1e14}, {"timestamp": None}])
def test_rewards_of_other_topics_are_those_of_json(decoder: RewardDecoder, bad: dict[str, Any]) -> None:
    reward = {"timestamp": 5, "reward": 0.5, "revenue": 2.0, "reward_id": 3, "policies": {"new": 0.5, "none": 2.0}}
    rows = [reward | {"event_id": f"e-{number}", "reward_id": number} for number in range(4)]
    rows[1] |= bad
    expected = decoder.decode_batch([json.dumps(row).encode() for row in rows], Origin.from_parts("", [(0, range(4))]))
    found = decoded(decoder, [arrow_message(rows)])
    for name in ("reward", "timestamp", "reward_id"):
        np.testing.assert_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_equal(found.further and found.further.values, expected.further and expected.further.values)
    np.testing.assert_equal(found.origin.identity, expected.origin.identity)
    assert [one.reason for one in found.rejected] == [one.reason for one in expected.rejected]
    assert len(found) >= 3


@pytest.mark.parametrize("absent", [{}, {"policies": None}])
def test_the_numbers_of_many_policies_are_those_of_json(absent: dict[str, Any]) -> None:
    names = [f"policy {number}" for number in range(150)]
    trees = [EVENT | {"policies": dict.fromkeys(names[row:], 0.5) | {names[row]: None}} for row in range(4)]
    trees += [EVENT | {"policies": trees[0]["policies"], "propensity": 2.0}, EVENT | {"policies": {}} | absent]
    found = decoded(JsonDecoder(names), [arrow_message(trees)])
    expected = JsonDecoder(names).decode_batch([json.dumps(tree).encode() for tree in trees])
    assert_same_events(found, expected)
    assert [one.reason for one in found.rejected] == [one.reason for one in expected.rejected]
    assert len(expected.rejected) == 1


@pytest.mark.parametrize("cells", [[True, 0.5, None], [0.5, False, 0.25], [True, True, True]])
def test_booleans_are_no_probabilities_and_rewards_by_themselves_or_among_numbers(cells: Sequence[Any]) -> None:
    rows = [EVENT | {"reward": cell, "policies": {"new": cell}} for cell in cells]
    for decoder in (JsonDecoder(["new"]), RewardDecoder(), RewardDecoder(policies=["new"])):
        found = decoded(decoder, [arrow_message(rows)])
        expected = decoded(decoder, [json.dumps(row).encode() for row in rows])
        assert [one.reason for one in found.rejected] == [one.reason for one in expected.rejected]
        np.testing.assert_equal(found.reward, expected.reward)
        if isinstance(found, EventBatch):
            np.testing.assert_equal(found.probabilities, expected.probabilities)
        else:
            np.testing.assert_equal(*(batch.further and batch.further.values for batch in (found, expected)))


def test_a_number_that_is_clipped_counts_once() -> None:
    rows = [EVENT | {"propensity": propensity, "reward": 1.0 + 2**-52} for propensity in (0.5, 2.0, 0.5)]
    decoder = JsonDecoder(["new"], reward_range=(0.0, 1.0))
    assert len(decoded(decoder, [arrow_message(rows)])) == 2
    assert decoder.clipped_events == 3


def test_small_messages_of_many_events_are_refused_if_their_policies_fill_memory() -> None:
    """Events have a number for each policy, also for policies that their message lacks."""
    names = [f"p{number}" for number in range(10_000)]
    rows = events(500)
    found = decoded(JsonDecoder(names), [arrow(rows)])
    assert found.probabilities.shape == (500, 10_000)
    (detail,) = {one.detail for one in decoded(JsonDecoder(names), [arrow(events(4_000))]).rejected}
    assert detail.endswith("its 4,000 events are too many for 10,000 policies: send fewer")


def test_rankings_and_rewards_are_those_of_json() -> None:
    pages = [
        {"event_id": f"e-{n}", "timestamp": n, "ranking": {"shown": ["a", "b"], "clicked": ["b"][: n % 2]},
         "policies": {"new": {"ranks": {"b": 1}} if n % 2 else {"ranks": {}}}} for n in range(6)
    ]  # fmt: skip
    lists = [page | {"policies": {"new": ["b", "a"]}} for page in pages]
    for some in (pages[1::2], lists):
        found = decoded(RankingDecoder(["new"]), [arrow_message(some)])
        assert_same_events(found, RankingDecoder(["new"]).decode_batch([json.dumps(page).encode() for page in some]))
        assert len(found) == len(some)
    rewards = [{"event_id": f"e-{n}", "timestamp": n, "reward": n / 8, "reward_id": f"r-{n}"} for n in range(5)]
    late = decoded(RewardDecoder(), [arrow_message(rewards[:2]), b"{}", arrow_message(rewards[2:])])
    assert late.reward.tolist() == [0.0, 0.125, 0.25, 0.375, 0.5]
    assert late.origin.offset.tolist() == [10, 10, 12, 12, 12]
    assert [(one.reason, one.origin) for one in late.rejected] == [("missing_field", ("topic", 3, 11))]


@pytest.mark.parametrize(
    ("column", "metadata"),
    [
        (lambda cells: pa.array([{"new": cell} for cell in cells]), {}),
        (lambda cells: pa.array([[0.5, cell] for cell in cells], pa.list_(pa.float64(), 2)), {NAMES_KEY: TWO}),
        (lambda cells: pa.array([[cell] for cell in cells], pa.list_(pa.float32(), 1)), {NAMES_KEY: NEW}),
        (lambda cells: pa.array([*([cell] for cell in cells[:3]), None], pa.list_(pa.float32(), 1)), {NAMES_KEY: NEW}),
        (lambda cells: pa.array([[("new", cell)] for cell in cells], pa.map_(pa.string(), pa.float64())), {}),
    ],
    ids=["struct", "lists", "float32", "null", "map"],
)  # fmt: skip
def test_policies_are_a_struct_or_lists_with_names(
    column: Callable[[Sequence[float | None]], Any], metadata: dict[bytes, bytes]
) -> None:
    cells = [0.25, None, 0.75, None]
    found = decoded(JsonDecoder(["new"]), [arrow(events(4, policies=column(cells)), metadata)])
    np.testing.assert_array_equal(found.probabilities[:, 0], np.array(cells, dtype=float))
    assert not found.rejected


@pytest.mark.parametrize("of_file", [False, True])
def test_types_of_other_writers_are_read(of_file: bool) -> None:
    columns = events(3) | {
        "event_id": pa.array([1, 2, 3], pa.uint32()),
        "timestamp": pa.array([1_000, 2_000, 3_000], pa.timestamp("ms", "UTC")),
        "action": pa.array(["a", "b", "a"]).dictionary_encode(),
        "propensity": pa.array([0.5, 0.25, 1.0], pa.float32()),
        "reward": [True, False, True],
        "unit": pa.array(["u", None, "v"], pa.string_view()),
    }
    found = decoded(JsonDecoder(["new"], identified=True), [arrow(columns, of_file=of_file)])
    rows = [
        message(row + 1, action="aba"[row], propensity=[0.5, 0.25, 1][row], reward=[1, 0, 1][row], **unit)
        for row, unit in enumerate([{"unit": "u"}, {}, {"unit": "v"}])
    ]
    expected = JsonDecoder(["new"], identified=True).decode_batch(rows, Origin.from_parts("", [(0, range(3))]))
    assert_same_events(found, expected)


@pytest.mark.parametrize("nanoseconds", [1_769_860_800_123_456_500, 1_769_860_800_123_456_499, -876_543_211, -1])
def test_nanoseconds_are_rounded_as_in_json(nanoseconds: int) -> None:
    seconds, rest = divmod(nanoseconds, 10**9)
    text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
    columns = ([text], pa.array([nanoseconds], pa.timestamp("ns", "Europe/Berlin")))
    batches = [decoded(JsonDecoder(["new"]), [arrow(events(1, timestamp=times))]) for times in columns]
    expected = JsonDecoder(["new"]).decode_batch([message(1, timestamp=text)])
    assert [batch.timestamp.tolist() for batch in batches] == [expected.timestamp.tolist()] * 2


def test_fields_have_the_names_that_the_configuration_gives() -> None:
    columns = ColumnNames.model_validate(
        {"propensity": "choice.p", "event_id": "id", "policies": {"new": "choice.new"}}
    )
    table = {"id": ["x", "y"], "timestamp": [1.0, 2.0], "action": ["a", "b"], "reward": [0.0, 1.0]}
    choices = [{"p": 0.5, "new": 0.1}, {"p": 0.25, "new": 0.2}]
    decoder = Config.model_validate(
        {
            "source": {"kind": "kafka", "topic": "t", "format": {"kind": "arrow"}},
            "policies": {"candidates": ["new"]},
            "columns": columns.model_dump(exclude_unset=True),
        }
    ).event_format()
    found = decoder.decode_batch([arrow(table | {"choice": choices})])
    assert (found.propensity.tolist(), found.probabilities.ravel().tolist()) == ([0.5, 0.25], [0.1, 0.2])


def test_json_and_arrow_may_be_mixed_in_any_order() -> None:
    messages = [message(1), arrow(events(2)), None, arrow(events(3, extra=[1, 2, 3])), b"null", message(2)]
    found = decoded(JsonDecoder(["new"]), messages)
    assert found.origin.offset.tolist() == [10, 11, 11, 13, 13, 13, 15]
    assert [(rejected.place, rejected.reason, rejected.origin[2]) for rejected in found.rejected] == [
        (2, "malformed", 12),
        (4, "malformed", 14),
    ]


@pytest.mark.parametrize("scores", [None, []], ids=["by columns", "by rows"])
def test_fields_of_slots_that_no_slot_has_are_absent(scores: Sequence[str] | None) -> None:
    slot = {"action": "a", "propensity": 0.5, "features": None, "policies": {"new": 0.25}}
    rows = [{"event_id": f"e-{n}", "timestamp": n, "reward": 1.0, "slots": [slot] * n} for n in range(1, 4)]
    found = decoded(JsonDecoder(["new"], scores=scores), [arrow_message(rows)])
    assert (found.slates.sizes.tolist(), found.rejected) == ([1, 2, 3], ())


def test_a_bad_row_is_rejected_alone() -> None:
    columns = events(4, propensity=[0.5, 0.5, 3.0, 0.5], reward=[1.0, None, 1.0, 1.0])
    columns |= {"page": pa.array(["home"] * 4, pa.string_view()), "stay": pa.array([2**62] * 4).view(pa.duration("s"))}
    messages = [message(0), arrow(columns)]
    found = decoded(JsonDecoder(["new"]), messages)
    assert found.origin.offset.tolist() == [10, 11, 11]
    details = [(one.place, one.reason, one.detail.partition(": ")[0]) for one in found.rejected]
    assert details == [
        (1, "missing_field", "event 2 of its message"),
        (1, "propensity_range", "event 3 of its message"),
    ]
    letters = list(dead_letters_of([Records("topic", 3, range(10, 12), messages)], found.rejected))
    kept = [(letter.offset, json.loads(letter.value)) for letter in letters]
    assert [(offset, event["event_id"], event["page"]) for offset, event in kept] == [
        (11, "e-1", "home"),
        (11, "e-2", "home"),
    ]


@pytest.mark.parametrize("field", ["timestamp", "event_id"])
def test_rows_without_a_required_column_name_it(field: str) -> None:
    table = events(2)
    del table[field]
    found = decoded(JsonDecoder(["new"]), [arrow(table)])
    assert [one.detail for one in found.rejected] == [f"event {row} of its message: {field}: missing" for row in (1, 2)]


@pytest.mark.parametrize("field", ["event_id", "unit", "logging_policy", "sampling_probability", "features"])
def test_structs_in_place_of_values_are_malformed(field: str) -> None:
    found = decoded(JsonDecoder(["new"]), [arrow(events(2, **{field: [{"id": 1}] * 2}))])
    assert [(one.reason, f"{field}: expected" in one.detail) for one in found.rejected] == [("malformed", True)] * 2


def test_structs_that_models_read_are_whole() -> None:
    fields = {"context": {"country": "de"}, "user": {"age": 3}}
    columns = events(2, **{name: [value] * 2 for name, value in fields.items()})
    found = decoded(JsonDecoder(["new"], scores=["context", "user"]), [arrow(columns)])
    assert [{name: row[name] for name in fields} for row in found.raw_fields.values] == [fields] * 2


@pytest.mark.parametrize("count", [1, 500])
def test_a_damaged_batch_counts_with_all_its_events_and_is_kept_once(count: int) -> None:
    whole = arrow_message([EVENT] * count)
    torn = whole[: len(whole) // 2]
    assert len(decoded(JsonDecoder(), [whole])) == count
    found = decoded(JsonDecoder(["new"]), [message(0), torn, message(1)])
    assert (len(found), len(found.rejected)) == (2, count)
    assert {(one.place, one.reason, one.origin) for one in found.rejected} == {(1, "malformed", ("topic", 3, 11))}
    (letter,) = dead_letters_of([Records("topic", 3, range(10, 13), [message(0), torn, message(1)])], found.rejected)
    assert (letter.offset, letter.value) == (11, torn)


def test_a_batch_that_lost_its_end_is_damaged() -> None:
    """A stream without its last batches and its end is valid Arrow."""
    table = pa.table(events(4)).replace_schema_metadata({COUNT_KEY: b"4"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.slice(0, 2))
    found = decoded(JsonDecoder(["new"]), [bytes(sink.getvalue())])
    assert [one.detail for one in found.rejected] == ["expected a batch of Arrow: it has 2 of 4 events"] * 4


def repeated(values: Any, count: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int8)), pa.array(values))


@pytest.mark.parametrize(
    "columns",
    [
        {"event_id": pa.nulls(10**9)},
        {"x": pa.FixedSizeListArray.from_arrays(pa.nulls(10**9), 10**9)},
        {"action": repeated(["x" * 10**6], 90_000)},
        {"context": pa.RunEndEncodedArray.from_arrays([10**6], ["x"])},
        {"features": pa.ListArray.from_arrays([0, 8 * 10**6], pa.array(np.zeros(8 * 10**6, dtype=bool)))},
    ],
    ids=["rows", "lists", "texts", "runs", "booleans"],
)  # fmt: skip
def test_few_bytes_that_stand_for_much_memory_are_refused(columns: dict[str, Any]) -> None:
    text = arrow(columns)
    assert len(text) < 3_000_000
    (rejected,) = decoded(JsonDecoder(["new"]), [text]).rejected
    assert (rejected.reason, rejected.detail.partition(": ")[0]) == ("malformed", "expected a batch of Arrow")


def test_dictionaries_of_honest_writers_are_read() -> None:
    """One long text that one event has, and a dictionary that many batches share, take little memory."""
    long = json.dumps({"page": "x" * 20_000})
    table = pa.table(events(2_000, context=pa.array([long, *["{}"] * 1_999]).dictionary_encode()))
    assert len(decoded(JsonDecoder(["new"]), [arrow(table)])) == 2_000
    units = pa.array([f"user-{number % 25_000:012d}" for number in range(30_000)]).dictionary_encode()
    table = pa.table(events(30_000, unit=units)).replace_schema_metadata(None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    assert len(decoded(JsonDecoder(["new"]), [bytes(sink.getvalue())])) == 30_000


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("of_file", [False, True])
@pytest.mark.parametrize("column", [lambda texts: pa.array(texts * 90), lambda texts: repeated(texts, 90)])
def test_compressed_buffers_are_refused_before_they_are_unpacked(column: Any, of_file: bool, codec: str) -> None:
    pool = pa.default_memory_pool()
    text = arrow(events(90, context=column(["x" * 10**6])), of_file=of_file, compression=codec)
    before = pool.total_bytes_allocated()
    details = {one.detail for one in decoded(JsonDecoder(["new"]), [text]).rejected}
    hint = "its buffers are compressed: write them plain, and let Kafka compress the message"
    assert details == {f"expected a batch of Arrow: {hint}"}
    assert pool.total_bytes_allocated() - before < 10**6


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda: arrow(events(2)) * 2,
        lambda: arrow(events(2)) + b"x" * 500,
        lambda: arrow(events(2))[:-8],
        lambda: arrow(events(2), of_file=True)[:-1],
    ],
    ids=["two streams", "bytes after the end", "no end", "a file without its end"],
)
def test_no_event_after_the_last_batch_is_lost_in_silence(spoilt: Callable[[], bytes]) -> None:
    (rejected,) = decoded(JsonDecoder(["new"]), [spoilt()]).rejected
    assert rejected.detail == "expected a batch of Arrow: it does not end after its last batch"


@pytest.mark.parametrize(("promised", "lost"), [(b"-5", 1), (b"0", 1), (b"3", 3), (b"x", 1), (b"100000", 109)])
def test_a_promise_that_is_not_kept_counts_as_far_as_the_message_can_hold_it(promised: bytes, lost: int) -> None:
    """An event takes eight bytes at least."""
    text = arrow(events(2), {COUNT_KEY: promised})
    found = decoded(JsonDecoder(["new"]), [message(0), text])
    assert (len(found), [one.place for one in found.rejected]) == (1, [1] * lost)


ODD: Mapping[str, Callable[[], Any]] = {
    "days beyond the calendar": lambda: pa.array([2**31 - 1] * 2, pa.int32()).cast(pa.date32()),
    "seconds beyond the calendar": lambda: pa.array([2**62] * 2).view(pa.timestamp("s")),
    "unknown time zone": lambda: pa.array([1, 2]).view(pa.timestamp("us", "Nowhere/Here")),
    "time of day": lambda: pa.array([2**62] * 2).view(pa.time64("us")),
    "duration": lambda: pa.array([2**62] * 2).view(pa.duration("s")),
    "text view": lambda: pa.array(["a", "b"], pa.string_view()),
    "list view": lambda: pa.ListViewArray.from_arrays([0, 0], [2, 2], pa.array([0.5, 0.5])),
    "map": lambda: pa.array([[("new", 0.5), ("new", 0.1)]] * 2, pa.map_(pa.string(), pa.float64())),
    "map by structs": lambda: pa.array(
        [[({"a": 1}, 0.5)]] * 2, pa.map_(pa.struct([("a", pa.int64())]), pa.float64())
    ),
    "struct with a name twice": lambda: pa.StructArray.from_arrays([pa.array([0.5, 0.5])] * 2, ["new", "new"]),
    "struct without fields": lambda: pa.array([{}, {}], pa.struct([])),
    "half floats": lambda: pa.array(np.array([0.5, np.nan], dtype=np.float16)),
    "large integers": lambda: pa.array([2**64 - 1, 2**63], pa.uint64()),
    "months": lambda: pa.array([(1, 2, 3)] * 2, pa.month_day_nano_interval()),
    "UUID": lambda: pa.array([b"x" * 16] * 2, pa.uuid()),
    "runs": lambda: pa.RunEndEncodedArray.from_arrays([2], ["x"]),
    "dictionary of lists": lambda: pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([[0.5]])),
    "bytes that are no text": lambda: pa.array([b"ab", b"\xff\xff"], pa.binary()),
}  # fmt: skip
FIELDS = ("event_id", "timestamp", "action", "propensity", "reward", "policies", "context", "unit", "slots", "features")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", [*FIELDS, "note"])
def test_columns_of_odd_types_harm_no_other_message(field: str, odd: str) -> None:
    """Each event is decoded or refused, alone, in a struct, and twice in the message. Nothing reads `note`."""
    column, good = ODD[odd](), arrow(events(2))
    alone = pa.table(events(2) | {field: column})
    nested = pa.table(events(2) | {field: pa.StructArray.from_arrays([column], ["x"])})
    for table in (alone, nested, alone.append_column(field, column)):
        found = decoded(JsonDecoder(["new"]), [good, arrow(table), message(0)])
        assert {0, 2} & {one.place for one in found.rejected} == set()
        assert found.origin.offset.tolist().count(10) == 2
        assert found.origin.offset.tolist().count(12) == 1
        assert found.origin.offset.tolist().count(11) + len(found.rejected) in (1, 2)
        assert field != "note" or odd == "time of day" or not found.rejected  # which is damaged


@pytest.mark.parametrize("names", [b'["new", "new", "old"]', b'["new", "new"]', b'["new"]', b'{"new": 1}', b"new"])
def test_names_of_policies_must_be_one_for_each_number(names: bytes) -> None:
    lists = pa.array([[0.5, 0.25]] * 2, pa.list_(pa.float64(), 2))
    found = decoded(JsonDecoder(["new"]), [message(0), arrow(events(2, policies=lists), {NAMES_KEY: names})])
    assert (len(found), {one.reason for one in found.rejected}) == (1, {"malformed"})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("action", ["a", 3]),
        ("action", ["a", True]),
        ("unit", [7, "a"]),
        ("event_id", ["a", 2.5]),
        ("reward_id", [1, 2.5]),
        ("propensity", [0.5, True]),
        ("timestamp", [1, True]),
        ("timestamp", ["2026-01-31T10:00:00"]),  # UTC in a table, and not in JSON
        ("sampling_probability", [0.5, True]),
        ("member", [0.5, True]),
        ("features", [[[0.5, True]], [[1.0]]]),
        ("slots", [[{"propensity": 0.5}, {"propensity": True}], None]),
        ("policies", [{"new": 0.5}, "new"]),
    ],
)
def test_values_of_several_types_are_not_written_as_one(field: str, values: Sequence[Any]) -> None:
    """JSON keeps them apart, so that an action 3 never becomes "3"."""
    with pytest.raises(ValueError, match=f"the events are no table: {field} has (a )?(values of the types|boo|value)"):
        arrow_message([EVENT | {field: value} for value in values])


def test_damaged_bytes_never_end_the_process() -> None:
    """Flip, cut and splice bytes of messages: each is read, or refused with all its events."""
    drawn, whole = (
        random.Random(11),
        arrow_message([json.loads(text) for text in corpus("outcome", random.Random(2), 9)]),
    )
    sizes = []
    for _ in range(1_000):
        torn = bytearray(whole)
        for _ in range(drawn.choice((1, 1, 3))):
            torn[drawn.randrange(4, len(torn))] ^= 1 << drawn.randrange(8)
        start = drawn.randrange(4, len(torn))
        cut = bytes(torn) if drawn.random() < 0.7 else bytes(torn[:start])
        found = decoded(JsonDecoder(POLICIES), [cut])
        sizes.append(len(found) + len(found.rejected))
        assert not len(found) or math.isfinite(found.timestamp.sum())
    assert min(sizes) >= 1
    assert sizes.count(9) > 300
    assert sizes.count(1) > 150


@pytest.mark.parametrize("source", [{}, {"rewards": {"topic": "r"}}], ids=["rewarded", "joined"])
@pytest.mark.parametrize("of_structs", [False, True])
def test_further_rewards_and_segments_are_those_of_json(of_structs: bool, source: dict[str, Any]) -> None:
    contexts = [{"country": "de"}, {"country": 7}, {"country": None}, None, {"user": {"age": 3.0}}, {"country": "de"}]
    if of_structs:  # have one type
        contexts[1] = {"country": "7"}
    else:
        contexts += ["de", 7, [1], {"country": {}}, {"user": 1}, {"country": True}]
    rows = [
        EVENT | {"event_id": f"e-{n}", "revenue": n / 2, "reward": n % 2, "context": context}
        for n, context in enumerate(contexts)
    ]
    rows[2] |= {"reward": None}
    rows[0] |= {"reward": None, "revenue": None}
    rows[5] |= {"revenue": 11.0, "propensity": 2.0}
    for n, row in enumerate(rows):
        row |= {"member": n % 2 == 0, "user": {"is_new": n % 3 == 0, "age": n}}
    config = Config.model_validate(
        {
            "source": {"kind": "kafka", "topic": "t", "format": {"kind": "arrow"}, **source},
            "policies": {"candidates": ["new"]},
            "rewards": {"click": {"field": "reward"}, "revenue": {"field": "revenue", "max": 10}},
            "segments": {
                "country": {"field": "context.country", "values": ["de"]},
                "age": {"field": "context.user.age", "most": 3},
                "all": {"field": "context", "values": ["de"]},
                "member": {"values": [True, False]},
                "user.is_new": {"values": [True]},
            },
        }
    )
    decoder = config.event_format()
    found = decoder.decode_batch([arrow(pa.Table.from_pylist(rows)) if of_structs else arrow_message(rows)])
    expected = decoder.decode_batch([json.dumps(row).encode() for row in rows])
    assert_same_events(found, expected)
    places = [int(one.detail.removeprefix("event ").partition(" ")[0]) - 1 for one in found.rejected]
    assert places == [one.place for one in expected.rejected] == ([5] if source else [0, 5])


@pytest.mark.parametrize("options", [{"estimated": True}, {"estimated": True, "segments": [SegmentField("u", "unit")]}])
def test_events_without_propensities_are_those_of_json(options: dict[str, Any]) -> None:
    rows = [EVENT | {"event_id": f"e-{n}", "unit": f"u-{n}", "policies": {"new": n / 4}} for n in range(4)]
    bare = [{name: value for name, value in row.items() if name != "propensity"} for row in rows]
    decoder = JsonDecoder(["new"], **options)
    for some in (rows, bare):
        expected = decoder.decode_batch([json.dumps(row).encode() for row in some])
        assert_same_events(decoded(decoder, [arrow_message(some)]), expected)
        assert len(expected) == 4
