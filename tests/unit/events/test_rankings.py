"""Rankings with clicks: messages and arrays become the same columns, and what breaks a rule is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streameval import read_events
from streameval.errors import DamagedError
from streameval.events import EventBatch, Origin, RankingDecoder, ranking_schema

PAGE: dict[str, Any] = {"shown": ["a", "b", "c", "d", "e"], "clicked": ["b", "d"]}


def page(number: int = 0, policies: Any = None, ranking: Any = None, **fields: Any) -> bytes:
    """Make one message with these changes of `ranking`."""
    candidate = {"challenger": {"ranks": {"b": 1, "d": 9}}}
    event = {"event_id": f"q-{number}", "timestamp": 1574553634.7 + number, "ranking": PAGE | (ranking or {})}
    return json.dumps(event | {"policies": candidate if policies is None else policies} | fields).encode()


def decoded(*messages: bytes, **options: Any) -> EventBatch:
    return RankingDecoder(**options).decode_batch(messages)


def test_a_page_has_the_ranks_of_its_clicks_under_each_policy() -> None:
    batch = decoded(page(unit="user-3"), page(1, {"challenger": {"ranks": {"b": 2}}, "other": {"ranks": {"d": 1}}}))
    rankings = batch.rankings
    assert rankings is not None
    assert batch.policies == ("challenger", "other")
    assert batch.reward.tolist() == [2, 2]
    assert rankings.shown.tolist() == [5, 5]
    assert rankings.rank.tolist() == [2, 4, 2, 4]
    assert rankings.clicked.tolist() == [1, 1, 1, 1]
    assert rankings.ranks[:, 0].tolist() == [1, 9, 2, np.inf]
    np.testing.assert_array_equal(rankings.ranks[:, 1], [np.nan, np.nan, np.inf, 1])
    np.testing.assert_array_equal(batch.probabilities, [[1, np.nan], [1, 1]])
    assert batch.unit is not None
    assert batch.unit[0] != 0
    assert batch.unit[1] == 0


def test_a_whole_list_gives_the_ranks_of_all_items_shown() -> None:
    batch = decoded(page(policies={"challenger": {"ranking": ["d", "x", "b"]}, "other": {"ranks": {"b": 3, "d": 1}}}))
    rankings = batch.rankings
    assert rankings is not None
    assert rankings.rank.tolist() == [1, 2, 3, 4, 5]
    assert rankings.clicked.tolist() == [0, 1, 0, 1, 0]
    assert rankings.ranks[:, 0].tolist() == [np.inf, 3, np.inf, 1, np.inf]
    np.testing.assert_array_equal(rankings.ranks[:, 1], [np.nan, 3, np.nan, 1, np.nan])
    np.testing.assert_array_equal(rankings.list_length, [[3, np.nan]])


def test_optional_fields_are_read_and_null_means_absent() -> None:
    full = page(
        ranking={
            "propensities": [0.5, 0.25],
            "swap": [4, 1],
            "marginals": [[0.5, 0.25]] * 5,
            "rank_probabilities": [[0.2] * 5] * 5,
        },
        policies={"challenger": {"ranks": {"b": 1}, "support": 0.8}},
        features=[[1.0]] * 5,
        sampling_probability=0.5,
    )
    nulls = page(
        1,
        ranking=dict.fromkeys(("propensities", "swap", "marginals", "rank_probabilities")),
        features=None,
        policies={"challenger": None},
    )
    batch = decoded(full, nulls)
    rankings = batch.rankings
    assert rankings is not None
    assert not batch.rejected
    assert rankings.features is not None
    np.testing.assert_array_equal(rankings.propensity[:5], [np.nan, 0.5, np.nan, 0.25, np.nan])
    np.testing.assert_array_equal(rankings.next_ratio, [0.5] * 5 + [np.nan] * 2)
    np.testing.assert_array_equal(rankings.support, [[0.8], [np.nan]])
    assert (rankings.swap_from.tolist(), rankings.swap_to.tolist()) == ([1, 0], [4, 0])
    assert rankings.features.sizes.tolist() == [5, 0]
    assert batch.sampling_probability.tolist() == [0.5, 1.0]


def test_items_may_be_integers_and_keys_are_their_digits() -> None:
    rankings = decoded(page(ranking={"shown": [7, 8], "clicked": [8]}, policies={"a": {"ranks": {"8": 1}}})).rankings
    assert rankings is not None
    assert rankings.ranks.tolist() == [[1]]


AT_RANKS = "ranking.rank_probabilities"


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"ranking": {"shown": ["a", "b", "a"]}}, "malformed", "ranking.shown: 'a' is listed twice"),
        ({"ranking": {"clicked": ["b", "b"]}}, "malformed", "ranking.clicked: 'b' is listed twice"),
        ({"ranking": {"clicked": ["z"]}}, "unknown_action", "ranking.clicked: 'z' is not one of `shown`"),
        ({"ranking": {"clicked": None}}, "malformed", "ranking.clicked"),
        ({"ranking": {"propensities": [0.5]}}, "malformed", "ranking.propensities: 1 entry for 2 items clicked"),
        ({"ranking": {"propensities": [0.5, 0]}}, "propensity_range", "ranking.propensities[1]: 0 is not in (0, 1]"),
        ({"ranking": {"swap": [1, 9]}}, "malformed", "ranking.swap: not two ranks of the 5 items shown"),
        ({"ranking": {"swap": [2, 2]}}, "malformed", "ranking.swap"),
        ({"ranking": {"marginals": [[1, 0]]}}, "malformed", "ranking.marginals: 1 entry for 5 items shown"),
        ({"ranking": {"marginals": [[0, 1]] * 5}}, "propensity_range", "ranking.marginals[0]"),
        ({"ranking": {"marginals": [[1]] * 5}}, "malformed", "ranking.marginals[0]: 1 entry, expected 2"),
        ({"ranking": {"rank_probabilities": [[1]]}}, "malformed", f"{AT_RANKS}: 1 entry for 5 items shown"),
        ({"ranking": {"rank_probabilities": [[1] * 3] * 5}}, "malformed", f"{AT_RANKS}[3]: 3 entries, expected more"),
        (
            {"ranking": {"rank_probabilities": [[1] * 5] * 4 + [[1]]}},
            "malformed",
            f"{AT_RANKS}: rows of 1 to 5 numbers",
        ),
        ({"ranking": {"rank_probabilities": [[0, 1, 0, 0, 0]] * 5}}, "propensity_range", f"{AT_RANKS}[0]: 0 is its"),
        ({"ranking": {"rank_probabilities": [[1, 2, 0, 0, 0]] * 5}}, "propensity_range", f"{AT_RANKS}[0]: 2 is not"),
        ({"features": [[1], [2], [3], [4], [5, 6]]}, "malformed", "features: rows of 1 to 2 numbers"),
        ({"policies": {"a": {"ranks": {"b": 0}}}}, "malformed", "policies"),
        ({"policies": {"a": {"ranks": {"b": 1.5}}}}, "malformed", "policies"),
        ({"policies": {"a": {"ranks": {"b": 3, "d": 3}}}}, "malformed", "policies.a: two items have the same rank"),
        ({"policies": {"a": {"ranking": ["b", "b"]}}}, "malformed", "policies.a.ranking: an item is listed twice"),
        (
            {"policies": {"a": {"ranks": {}, "support": 2}}},
            "probability_range",
            "policies.a.support: 2 is not in [0, 1]",
        ),
        ({"event_id": None}, "missing_field", "event_id: missing"),
        ({"timestamp": 1e15}, "malformed", "timestamp"),
        ({"sampling_probability": 0}, "propensity_range", "sampling_probability"),
    ],
)
def test_broken_rules_reject_a_page_with_a_reason(changes: Any, reason: str, detail: str) -> None:
    batch = decoded(page(1, **changes), page(2))
    (rejected,) = batch.rejected
    assert (rejected.reason, rejected.place, len(batch)) == (reason, 0, 1)
    assert rejected.detail.startswith(detail)
    assert batch.rankings is not None
    assert batch.rankings.rank.tolist() == [2, 4]


def test_a_message_without_a_ranking_is_rejected_and_a_policy_without_a_placement_is_missing() -> None:
    decision = b'{"event_id": 1, "timestamp": 0, "action": "a", "propensity": 0.5, "reward": 1}'
    batch = decoded(
        decision, page(policies={"challenger": 0.5, "other": {"ranks": {}}}), policies=["challenger", "other"]
    )
    assert [rejected.detail for rejected in batch.rejected] == [
        "ranking: missing: this is a choice of one action, which is read without the option ranking"
    ]
    np.testing.assert_array_equal(batch.probabilities, [[np.nan, 1.0]])


def test_an_empty_placement_is_missing_only_if_there_are_clicks_to_rank() -> None:
    cells: dict[str, Any] = {"empty": {}, "null": None, "ranks": {"ranks": {}}, "list": {"ranking": []}}
    batch = decoded(page(0, cells, ranking={"clicked": []}), page(1, cells), policies=[*cells, "absent"])
    np.testing.assert_array_equal(batch.probabilities, [[1, np.nan, 1, 1, np.nan], [np.nan, np.nan, 1, 1, np.nan]])


def test_pages_with_clicks_must_have_propensities_if_these_are_the_examination() -> None:
    click = page(ranking={"propensities": [1, 0.5]})
    batch = decoded(page(1), click, page(2, ranking={"clicked": []}), with_propensities=True)
    assert [(rejection.reason, rejection.detail) for rejection in batch.rejected] == [
        ("missing_field", "ranking.propensities: missing")
    ]
    assert len(batch) == 2


def test_known_policies_are_the_columns_in_their_order() -> None:
    messages = [page(0), page(1, {}), page(2, {"other": {"ranks": {"b": 1, "d": 2}}, "third": {"ranks": {}}})]
    ordered, every = decoded(*messages, policies=["other", "challenger"]), decoded(*messages)
    assert ordered.policies == ("other", "challenger")
    assert every.policies == ("challenger", "other", "third")
    same = every.with_policies(ordered.policies)
    assert ordered.rankings is not None
    assert same.rankings is not None
    np.testing.assert_array_equal(ordered.rankings.ranks, same.rankings.ranks)
    np.testing.assert_array_equal(ordered.probabilities, same.probabilities)


def test_batches_are_cut_joined_and_restored_without_a_change() -> None:
    messages = [
        page(0),
        page(1, {"other": {"ranking": ["e", "d"]}}, features=[[1.0, 2.0]] * 5),
        page(2, ranking={"clicked": []}),
        page(3, ranking={"swap": [1, 2], "rank_probabilities": [[0.2] * 5] * 5}),
    ]
    whole = decoded(*messages)
    for cut in range(5):
        parts = EventBatch.concat([whole[:cut], whole[cut:]])
        assert equal(parts, whole)
        names = list(whole.policies)
        halves = [decoded(*half, policies=names) for half in (messages[:cut], messages[cut:])]
        assert equal(EventBatch.concat(halves), whole)
    assert equal(EventBatch.from_state(whole.to_state()), whole)
    assert equal(whole.take(np.array([3, 1])), EventBatch.concat([whole[3:], whole[1:2]]))
    with pytest.raises(DamagedError):
        EventBatch.from_state({**whole.to_state(), "reward": None})


def equal(one: EventBatch, other: EventBatch) -> bool:
    """Return whether two batches have the same columns, with their policies in any order."""
    assert sorted(one.policies) == sorted(other.policies)
    first, second = (_arrays(batch.with_policies(sorted(one.policies)).to_state()) for batch in (one, other))
    return bool(first == second)


def _arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _arrays(value) for key, value in state.items()}
    return bytes(state) if isinstance(state, memoryview) else state


def test_arrays_and_messages_give_the_same_columns() -> None:
    messages = [page(0, {"a": {"ranks": {"b": 3, "d": 1}}}), page(1, {"a": None}, ranking={"clicked": ["a"]})]
    nan = np.nan
    batch = EventBatch.from_rankings(
        clicks=[[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]],
        ranks={"a": [[9, 3, 9, 1, 9], [nan] * 5]},
        timestamp=[1574553634.7, 1574553635.7],
    )
    assert equal(batch, decoded(*messages))


def test_arrays_must_fit_together() -> None:
    with pytest.raises(ValueError, match=r"ranks\['a'\]: expected the shape \[1, 2\], found \[1, 1\]"):
        EventBatch.from_rankings(clicks=[[1, 0]], ranks={"a": [[1]]})
    with pytest.raises(ValueError, match=r"row 1: malformed: policies\.a: two items have the same rank"):
        EventBatch.from_rankings(clicks=[[1, 0], [1, 1]], ranks={"a": [[1, 1], [1, 1]]})


def test_events_keep_their_places_and_identities() -> None:
    decoder = RankingDecoder(["challenger"], identified=True)
    batch = decoder.decode_batch([page(0), b"{}", page(1)], Origin.from_parts("pages", [(0, [5, 6, 7])]))
    assert batch.origin is not None
    assert batch.origin.offset.tolist() == [5, 7]
    assert batch.origin.identity is not None
    assert len(set(batch.origin.identity.tolist())) == 2
    assert batch.rejected[0].origin == ("pages", 0, 6)


def test_models_may_read_the_names_of_items() -> None:
    fields = decoded(page(context={"query": "x"}), named=True).raw_fields
    assert fields is not None
    assert list(fields.values) == [{"context": {"query": "x"}, "actions": PAGE["shown"]}]


def test_files_of_rankings_are_read_by_their_format(tmp_path: Path) -> None:
    path = tmp_path / "pages.ndjson"
    path.write_bytes(b"\n".join([page(0), page(1), b"{}"]))
    (batch,) = read_events(path, policies=["challenger"], format="rankings")
    assert equal(batch, decoded(page(0), page(1), named=True))
    assert len(batch.rejected) == 1


def test_the_schema_describes_every_field() -> None:
    schema = ranking_schema()
    assert {"event_id", "timestamp", "ranking"} == set(schema["required"])
    for fields in (schema, *schema["$defs"].values()):
        for name, field in fields["properties"].items():
            assert "description" in field or "$ref" in field, name


def test_many_pages_decoded_at_once_are_those_decoded_one_by_one() -> None:
    shown = {"shown": ["a", 2, "c"], "clicked": [2]}
    cells = [{"ranks": {"2": 1}}, {"ranking": ["c", "a", 2]}, None, {"ranks": {}}]
    values = []
    for number in range(70):
        policies = {"new": cells[number % 4], "old": cells[number % 3]}
        event = {"event_id": number, "timestamp": number, "ranking": shown, "policies": policies}
        values.append(json.dumps(event).encode())
    values[30], values[69] = b"{}", page(ranking={"clicked": ["x"]})
    decoder, origin = RankingDecoder(["new", "old"]), Origin.from_parts("pages", [(0, range(1000, 1070))])
    whole = decoder.decode_batch(values, origin)
    parts = EventBatch.concat([decoder.decode_batch([value]) for value in values])
    assert [(rejection.place, rejection.origin, rejection.reason) for rejection in whole.rejected] == [
        (30, ("pages", 0, 1030), "missing_field"),
        (69, ("pages", 0, 1069), "unknown_action"),
    ]
    assert whole.timestamp.tolist() == parts.timestamp.tolist()
    for name in ("offsets", "rank", "clicked", "ranks", "shown", "list_length"):
        np.testing.assert_array_equal(getattr(whole.rankings, name), getattr(parts.rankings, name))
