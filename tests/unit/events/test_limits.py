"""Tolerances of probabilities, and limits of size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator
from streameval.events import DsjsonDecoder, EventBatch, JsonDecoder, RankingDecoder
from streameval.events.rankings import Page, Placement, RankingEvent, page_fault, ranking_columns
from streameval.events.records import RowDecoder
from streameval.ope.evidence.clicks import Ranking
from support.messages import batch_of
from support.strategies import encode

BARE = {"event_id": 1, "timestamp": 0, "reward": 1}


def rounded(actions: int, digits: int, seed: int = 1) -> dict[str, Any]:
    shares = np.random.default_rng(seed).dirichlet(np.ones(actions))
    logged = [round(share, digits) for share in shares.tolist()]
    return BARE | {"actions": list(range(actions)), "action": int(np.argmax(logged)), "propensities": logged}


@pytest.mark.parametrize("actions", [2, 20, 100, 1000])
def test_distributions_logged_with_six_digits_are_distributions(actions: int) -> None:
    batch = batch_of(*[rounded(actions, digits=6, seed=seed) for seed in range(50)])
    assert len(batch) == 50


def test_distributions_logged_with_three_digits_are_none() -> None:
    (rejected,) = batch_of(rounded(20, digits=3)).rejected
    assert rejected.reason == "distribution_sum"


@pytest.mark.parametrize(
    "certain",
    [
        {"action": "a", "propensity": 1.0000000000000002},
        {"action": "a", "propensity": 1.0000000005, "sampling_probability": 1.0000000000000002},
        {"action": "a", "actions": ["a"], "propensities": [1.0000000000000002]},
        {"slots": [{"action": "a", "propensity": 1.0000000000000002}]},
        {
            "slots": [{"action": "a", "actions": ["a"]}],
            "slates": [["a"]],
            "slate_propensities": [1.0000000000000002],
        },
    ],
)
def test_a_probability_above_1_by_rounding_is_1(certain: dict[str, Any]) -> None:
    batch = batch_of(BARE | certain)
    assert batch.rejected == ()
    assert batch.propensity.tolist() == [1.0]
    assert batch.sampling_probability.tolist() == [1.0]
    if batch.action_sets is not None:
        assert batch.action_sets.propensities.tolist() == [1.0]


def test_a_propensity_too_far_from_the_listed_one_for_a_number_is_out_of_range() -> None:
    """Warnings are errors here."""
    event = BARE | {"actions": ["a", "b"], "action": "a", "propensity": -1.7e308, "propensities": [1.7e308, 1.7e308]}
    (rejected,) = batch_of(event).rejected
    assert rejected.reason == "propensity_range"


def test_a_probability_above_1_by_more_than_rounding_is_rejected() -> None:
    (rejected,) = batch_of(BARE | {"action": "a", "propensity": 1.00000001}).rejected
    assert rejected.reason == "propensity_range"
    with pytest.raises(ValueError, match="propensity_range"):
        EventBatch.from_arrays(reward=[1], propensity=[1.00000001])
    assert EventBatch.from_arrays(reward=[1], propensity=[1.0000000000000002]).propensity.tolist() == [1.0]


def test_details_of_rejected_messages_are_short_and_may_be_printed() -> None:
    for message in (
        b'{"\\ud800\\u001b[2J": NaN, "reward": {}}',
        b'{"event_id": 1, "unit": NaN, "%s": 1}' % (b"x" * 10**6),
    ):
        (rejection,) = JsonDecoder(reward_field="x").decode_batch([message]).rejected
        assert rejection.detail.isprintable()
        assert len(rejection.detail) < 600


@pytest.mark.parametrize("format", [JsonDecoder(), DsjsonDecoder()])
def test_a_message_that_is_longer_than_any_event_is_not_read(format: JsonDecoder) -> None:
    good = encode(BARE | {"action": "a", "propensity": 0.5})
    long = good[:-1] + b', "context": "' + b"x" * 17 * 2**20 + b'"}'
    batch = format.decode_batch([long])
    assert [(rejection.reason, rejection.detail[:14]) for rejection in batch.rejected] == [
        ("malformed", f"{len(long)} bytes")
    ]


@pytest.mark.parametrize(("extra", "detail"), [(0, "propensity"), (1, "16777216")])
def test_the_longest_message_that_is_read_has_16_mebibytes(extra: int, detail: str) -> None:
    bare = encode(BARE | {"action": "a", "propensity": "high"})
    message = bare[:-1] + b" " * (16 * 2**20 - len(bare) + extra) + b"}"
    (rejected,) = JsonDecoder().decode_batch([message]).rejected
    assert detail in rejected.detail


def test_an_event_with_too_many_policies_is_rejected() -> None:
    crowd = {f"p{number}": 0.5 for number in range(10_001)}
    good = BARE | {"action": "a", "propensity": 0.5}
    batch = batch_of(good | {"policies": crowd}, good | {"policies": {"a": 0.5}})
    assert batch.policies == ("a",)
    assert batch.rejected[0].detail == "policies: 10001 names, more than the limit of 10000"
    assert len(batch_of(good | {"policies": crowd}, policies=["p7"])) == 1


def test_an_action_with_too_many_features_is_rejected_next_to_one_with_many_actions() -> None:
    wide = BARE | {"action": 0, "actions": [0], "propensities": [1], "features": [[0.5] * 20_000]}
    many = BARE | {"action": 0, "actions": list(range(5_000)), "propensity": 1, "features": [[1]] * 5_000}
    batch = batch_of(wide, many)
    assert [(rejection.reason, rejection.detail) for rejection in batch.rejected] == [
        ("malformed", "features[0]: 20000 numbers, more than the limit of 4096")
    ]
    assert batch.action_sets is not None
    assert batch.action_sets.widths.tolist() == [1]


def test_many_actions_of_one_feature_next_to_one_of_many_take_no_more_memory_than_apart() -> None:
    wide = BARE | {"action": 0, "actions": [0], "propensities": [1], "features": [[0.5] * 4096]}
    many = BARE | {"action": 0, "actions": list(range(5_000)), "propensity": 1, "features": [[1]] * 5_000}
    together, apart = batch_of(wide, many), [batch_of(wide), batch_of(many)]
    assert together.nbytes <= sum(batch.nbytes for batch in apart)
    assert EventBatch.concat(apart).nbytes <= sum(batch.nbytes for batch in apart)


def test_as_many_features_as_the_limit_are_accepted() -> None:
    event = BARE | {"action": 0, "actions": [0], "propensities": [1]}
    batch = batch_of(event | {"features": [[0.5] * 4096]}, event | {"features": [[0.5]]}, event)
    assert batch.rejected == ()
    assert batch.action_sets is not None
    assert batch.action_sets.widths.tolist() == [4096, 1, 0]


class CountedName(str):
    """Count the comparisons with other names."""

    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("whole", [True, False])
def test_the_work_for_a_page_grows_with_the_number_of_its_items(whole: bool) -> None:
    """A search for each item among all others would take 500,000 comparisons."""
    names = [CountedName(number) for number in range(1000)]
    placement = Placement(ranking=names[::-1]) if whole else Placement(ranks=dict.fromkeys(names, 1))
    page = RankingEvent(
        event_id=1, timestamp=0.0, ranking=Page(shown=names, clicked=names[::2]), policies={"new": placement}
    )
    CountedName.comparisons = 0
    assert page_fault(page) is None
    _, _, rankings = ranking_columns([page], None)
    assert CountedName.comparisons < 10_000
    assert rankings.rank.tolist() == (list(range(1, 1001)) if whole else list(range(1, 1001, 2)))
    assert rankings.clicks.tolist() == [500]


def page(items: int) -> bytes:
    shown = {"shown": list(range(items)), "clicked": []}
    return encode({"event_id": 1, "timestamp": 0, "ranking": shown})


def test_a_page_with_more_items_than_the_limit_is_rejected() -> None:
    batch = RankingDecoder(["new"], max_items=100).decode_batch([page(100), page(101)])
    assert [(rejected.place, rejected.reason, rejected.detail) for rejected in batch.rejected] == [
        (1, "malformed", "ranking.shown: 101 items, more than the limit of 100")
    ]
    assert [len(RankingDecoder().decode_batch([page(10_000 + more)])) for more in (0, 1)] == [1, 0]


def test_the_limit_of_items_is_the_one_of_the_configuration() -> None:
    evaluator = Evaluator(["new"], ["click_ips"], ranking={"max_items": 100})
    assert len(evaluator.config.decoder().decode_batch([page(100), page(101)])) == 1
    assert repr(Ranking(max_items=100)) == repr(Ranking())  # snapshots with another limit are still read


def slate(slots: int, actions: int, **fields: Any) -> dict[str, Any]:
    names = list(range(actions))
    shown = [{"action": slot, "actions": names} for slot in range(slots)]
    return BARE | {"slots": shown, **fields}


@pytest.mark.parametrize(
    ("event", "detail"),
    [
        (
            slate(1, 5000, slate_logging="plackett_luce", scores=[0] * 5000),
            "slots: 5000 actions with `scores`, more than the limit of 1000",
        ),
        (
            slate(2, 501, slate_logging="plackett_luce", scores=[0] * 501),
            "slots: 1002 actions with `scores`, more than the limit of 1000",
        ),
        (
            BARE
            | {"slots": [{"action": 0, "actions": [0, 1]}] * 250}
            | {"slates": [[number % 2] * 250 for number in range(65)], "slate_propensities": [1 / 65] * 65},
            "slates: 4062500 pairs of slots in all of them, more than the limit of 4000000",
        ),
    ],
)
def test_a_slate_whose_estimate_needs_more_than_its_message_is_rejected(event: dict[str, Any], detail: str) -> None:
    (rejected,) = batch_of(event).rejected
    assert (rejected.reason, rejected.detail) == ("malformed", detail)


def test_products_over_the_slots_of_many_slates_are_those_of_each_alone() -> None:
    weights = np.random.default_rng(1).uniform(0.5, 2.0, (9, 2))
    slots = [{"action": 0, "propensity": 0.5}]
    batch = batch_of(*[BARE | {"slots": slots * size} for size in (3, 1, 5)])
    assert batch.slates is not None
    alone = [np.cumprod(weights[first:last], axis=0) for first, last in ((0, 3), (3, 4), (4, 9))]
    np.testing.assert_array_equal(batch.slates.running_product(weights), np.concatenate(alone))


def test_the_path_to_a_number_that_is_not_finite_is_written_with_names_and_numbers() -> None:
    event = BARE | {"action": "a", "propensity": 0.5, "unit": None, "policies": {}}
    message = encode(event)[:-1] + b', "features": [[1, 2], [3, NaN]]}'
    (rejected,) = JsonDecoder().decode_batch([message]).rejected
    assert (rejected.reason, rejected.detail) == ("not_finite", "features[1][1]: nan is not a finite number")


def with_context(depth: int, field: bytes = b"context") -> bytes:
    good = encode(BARE | {"action": "a", "propensity": 0.5})
    return good[:-1] + b', "%s": {"]": %s"[[{"%s}}' % (field, b"[" * (depth - 2), b"]" * (depth - 2))


@pytest.mark.parametrize("field", [b"context", b"scores", b"ignored"])
def test_values_of_any_type_are_nested_to_a_depth_that_a_snapshot_can_hold(field: bytes) -> None:
    messages = [with_context(100, field), with_context(101, field), with_context(990, field)]
    batch = JsonDecoder(scores=["scores"]).decode_batch([*messages, b'{"unit": null,' + messages[2][1:]])
    assert [(rejected.place, rejected.detail) for rejected in batch.rejected] == [
        (place, "nested too deeply") for place in (1, 2, 3)
    ]
    assert len(EventBatch.from_state(batch.to_state())) == 1
    assert len(JsonDecoder().decode_batch([with_context(500)])) == 1


@pytest.mark.parametrize("format", [DsjsonDecoder([], scores=["s"]), RankingDecoder([], named=True)])
def test_a_text_with_many_brackets_is_not_deep_and_many_lists_are_not_slow(format: JsonDecoder) -> None:
    line = {"_label_cost": -2, "_label_probability": 0.8, "_label_Action": 2, "a": [2, 1], "p": [0.8, 0.2]}
    wide = {"shallow": [[]] * 1000, "text": '\\"[{' * 1000}
    known = BARE | line | {"ranking": {"shown": [1], "clicked": []}, "context": wide, "c": wide}
    assert len(format.decode_batch([encode(known)])) == 1
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    (rejected,) = format.decode_batch([encode(known | {"context": deep, "c": deep})]).rejected
    assert rejected.detail == "nested too deeply"


def test_the_cell_of_a_table_is_nested_as_deeply_as_a_message() -> None:
    cells = {"event_id": "1", "timestamp": "0", "action": "a", "propensity": ".5", "reward": "1"}
    rows = [encode(cells | {"context": "[" * depth + "]" * depth}) for depth in (100, 101)]
    batch = RowDecoder(scores=()).decode_batch(rows)
    assert [(rejected.place, rejected.detail) for rejected in batch.rejected] == [(1, "context: nested too deeply")]
