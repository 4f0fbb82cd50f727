"""Decision logs of Vowpal Wabbit give the values that other software computes from them."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from streameval import Evaluator, read_events
from streameval.cli.replay import Replay
from streameval.config.model import Config
from streameval.errors import ConfigError
from streameval.events import REASONS, DsjsonDecoder, EventBatch
from streameval.events.further_rewards import RewardField
from streameval.ope.core import Cumulative
from streameval.ope.estimators import IPS, SNIPS, PseudoInverse
from streameval.ope.report import Report
from support.factories import slowness
from support.paths import DATA

LOGS = DATA / "dsjson"
REFERENCE: dict[str, Any] = json.loads((LOGS / "reference.json").read_text())
POLICIES = {"uniform": "uniform", "first": "first", "baseline": "logged"}

BANDIT = {
    "_label_cost": -1.0,
    "_label_probability": 0.75,
    "_label_Action": 3,
    "_labelIndex": 2,
    "Timestamp": "2021-05-18T13:28:29.6560000Z",
    "EventId": "e1",
    "a": [3, 1, 2],
    "p": [0.75, 0.125, 0.125],
    "c": {"user": "u1", "_multi": [{"x": 1}, {"x": 2}, {"x": 3}]},
}
SLOTS = {
    "_outcomes": [{"_label_cost": -2.0, "_a": [1, 0], "_p": [0.5, 0.5]}, {"_label_cost": -1, "_a": [0], "_p": [1]}]
}
SLATE = {
    "_label_cost": -3,
    "_outcomes": [{"_a": [1, 0], "_p": [0.75, 0.25]}, {"_a": [2, 0, 1], "_p": [0.5, 0.25, 0.25]}],
}


def line(base: dict[str, Any] = BANDIT, **changes: Any) -> bytes:
    fields = {name: value for name, value in (base | changes).items() if value is not ...}
    return json.dumps(fields).encode()


def decoded(message: bytes, **options: Any) -> EventBatch:
    return DsjsonDecoder(**options).decode_batch([message])


def reason(message: bytes | None) -> tuple[str, str]:
    (rejection,) = DsjsonDecoder().decode_batch([message]).rejected
    assert rejection.reason in REASONS
    return rejection.reason, rejection.detail


def log(name: str) -> list[bytes]:
    return gzip.decompress((LOGS / f"{name}.dsjson.gz").read_bytes()).splitlines()


def evaluated(name: str) -> Report:
    evaluator = Evaluator(
        POLICIES,
        estimators=[IPS(), SNIPS(), PseudoInverse()],
        averages=[Cumulative()],
        reward_range=(0, 100),
        intervals={"cumulative": "normal"},
    )
    evaluator.update(DsjsonDecoder().decode_batch(log(name)))
    return evaluator.report()


@pytest.mark.parametrize("case", sorted(REFERENCE))
def test_values_and_intervals_equal_the_reference(case: str) -> None:
    name, policy = case.split("/")
    expected, report = REFERENCE[case], evaluated(name)
    policy = policy.replace("logged", "logging")
    first = expected.get("ips", expected.get("first_slot_ips", expected.get("product_ips")))
    ips = report.get(policy, "ips", "cumulative")
    assert report.events.accepted == expected["n"]
    assert not report.events.rejected
    assert ips.value == pytest.approx(first, rel=1e-9)
    if "snips" in expected:
        assert report.get(policy, "snips", "cumulative").value == pytest.approx(expected["snips"], rel=1e-12)
    if "pseudo_inverse" in expected:
        value = report.get(policy, "pseudo_inverse", "cumulative").value
        assert value == pytest.approx(expected["pseudo_inverse"], rel=1e-9)


@pytest.mark.parametrize("case", [case for case in sorted(REFERENCE) if "gaussian95" in REFERENCE[case]])
def test_normal_intervals_equal_the_reference_unless_withheld(case: str) -> None:
    name, policy = case.split("/")
    estimator = "pseudo_inverse" if "slates" in name else "ips"
    estimate = evaluated(name).get(policy.replace("logged", "logging"), estimator, "cumulative")
    if name == "cb_deferred_apprentice_7":
        assert estimate.lower is None  # three rewards are too few for an interval
        return
    assert [estimate.lower, estimate.upper] == pytest.approx(REFERENCE[case]["gaussian95"], rel=1e-8)


def test_the_intervals_of_seven_events_follow_from_their_terms() -> None:
    batch = DsjsonDecoder().decode_batch(log("cb_deferred_apprentice_7"))
    for policy, weight in (("logged", np.ones(7)), ("first", (batch.action_sets.index == 0) / batch.propensity)):
        terms = weight * batch.reward
        width = 1.959963984540054 * terms.std(ddof=1) / np.sqrt(7)
        expected = REFERENCE[f"cb_deferred_apprentice_7/{policy}"]["gaussian95"]
        assert [terms.mean() - width, terms.mean() + width] == pytest.approx(expected, rel=1e-12)


def test_a_broken_line_is_counted_and_costs_no_other() -> None:
    batch = DsjsonDecoder().decode_batch(log("cb_invalid"))
    assert len(batch) == 20
    assert [rejected.reason for rejected in batch.rejected] == ["malformed"]
    assert np.isnan(batch.timestamp).all()


def test_actions_are_put_in_the_order_of_their_numbers() -> None:
    batch = decoded(line())
    sets = batch.action_sets
    assert sets is not None
    assert sets.propensities.tolist() == [0.125, 0.125, 0.75]
    assert (sets.index.tolist(), batch.propensity.tolist(), batch.reward.tolist()) == ([2], [0.75], [1.0])


def test_the_reward_of_apprentice_mode_is_in_the_original_cost() -> None:
    agreed = DsjsonDecoder().decode_batch(log("cb_deferred_apprentice_7")).reward
    earned = DsjsonDecoder(reward_field="_original_label_cost").decode_batch(log("cb_deferred_apprentice_7")).reward
    assert agreed.tolist() == [1, 0, 0, 0, 1, 0, 1]
    assert earned.tolist() == [5, 2, 1, 5, 1, 2, 3]


def test_the_reward_can_only_be_one_of_the_costs() -> None:
    with pytest.raises(ValueError, match="one of reward, _label_cost, _original_label_cost; found 'clicks'"):
        DsjsonDecoder(reward_field="clicks")


REVENUE = RewardField("revenue", "revenue", 0.0, 100.0)
EARNED = RewardField("earned", "_original_label_cost", 0.0, 9.0)


@pytest.mark.parametrize(("base", "reward"), [(BANDIT, 1.0), (SLOTS, 2.0), (SLATE, 3.0)])
def test_further_rewards_are_costs_or_fields_of_the_line(base: dict[str, Any], reward: float) -> None:
    batch = decoded(line(base, revenue=5), further=[REVENUE, EARNED])
    assert batch.further is not None
    assert batch.reward.tolist() == [reward]
    np.testing.assert_array_equal(batch.further.values, [[5.0, np.nan]])


def test_a_line_needs_one_of_several_rewards_only() -> None:
    messages = [line(_label_cost=..., revenue=5), line(_label_cost=..., revenue=None), line(revenue=101)]
    batch = DsjsonDecoder(reward_range=(0, 1), further=[REVENUE]).decode_batch(messages)
    assert np.isnan(batch.reward).tolist() == [True]
    assert [rejection.detail for rejection in batch.rejected] == [
        "_label_cost: missing",
        "revenue: 101 is not in [0, 100]",
    ]


def test_slots_without_costs_are_rejected_whatever_the_line_earned() -> None:
    outcomes = [{"_a": [1, 0], "_p": [0.5, 0.5]}]
    batch = decoded(line(SLOTS, _outcomes=outcomes, revenue=5), further=[REVENUE])
    assert [rejection.detail for rejection in batch.rejected] == ["_outcomes[0]._label_cost: missing"]


@pytest.mark.parametrize("base", [BANDIT, SLOTS, SLATE])
def test_rewards_of_a_line_do_not_count_if_they_come_separately(base: dict[str, Any]) -> None:
    batch = DsjsonDecoder(rewarded=False, identified=True, further=[REVENUE]).decode_batch(
        [line(base, EventId="e-1", revenue="unknown"), line(base, EventId=...)]
    )
    assert np.isnan(batch.reward).all()
    assert batch.further is not None
    assert np.isnan(batch.further.values).all()
    assert [rejection.detail for rejection in batch.rejected] == ["EventId: missing, and rewards are joined by it"]


def test_a_line_needs_no_reward_if_rewards_come_separately() -> None:
    slots = line(SLOTS, EventId="e-2", _outcomes=[{"_a": [1, 0], "_p": [0.5, 0.5]}])
    batch = DsjsonDecoder(rewarded=False).decode_batch([line(_label_cost=..., EventId="e-1"), slots])
    assert len(batch) == 1
    assert [rejection.detail for rejection in batch.rejected] == ["_outcomes[0]._label_cost: missing"]


def test_a_field_of_ds_json_cannot_be_a_reward() -> None:
    with pytest.raises(ValueError, match="pdrop of ds-json cannot be a reward"):
        DsjsonDecoder(further=[RewardField("kept", "pdrop", 0.0, 1.0)])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2021-05-18T13:28:29.6560000Z", 1621344509.656),
        ("2021-05-18T13:28:29.656", 1621344509.656),
        ("2021-05-18T13:28:29.6561Z", 1621344509.6561),
        ("2021-05-18T15:28:29.656000+02:00", 1621344509.656),
    ],
)
def test_times_have_any_number_of_digits_and_are_utc_without_an_offset(text: str, seconds: float) -> None:
    assert decoded(line(Timestamp=text)).timestamp.tolist() == [seconds]


def test_ids_times_contexts_and_distributions_may_be_absent() -> None:
    message = line(EventId=..., Timestamp=..., c=..., a=..., p=..., _labelIndex=...)
    batch = decoded(message)
    assert len(batch) == 1
    assert batch.action_sets is None
    assert np.isnan(batch.timestamp).all()


def test_the_chosen_action_is_logged_in_three_ways() -> None:
    for absent in ({}, {"_labelIndex": ...}, {"_label_Action": ...}, {"_label_Action": ..., "_labelIndex": ...}):
        sets = decoded(line(**absent)).action_sets
        assert sets is not None
        assert sets.index.tolist() == [2]


def test_an_event_of_a_subsampled_log_stands_for_those_that_were_dropped() -> None:
    assert decoded(line(pdrop=0.75)).sampling_probability.tolist() == [0.25]
    evaluator = Evaluator(["none"], estimators=[IPS()], averages=[Cumulative()])
    evaluator.update(DsjsonDecoder().decode_batch([line(pdrop=0.75), line(_label_cost=0)]))
    assert evaluator.report().get("logging", "ips", "cumulative").value == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"_skipLearn": True}, False),
        ({"_skipLearn": False}, True),
        ({"_deferred": True}, False),
        ({"_deferred": True, "o": [{"v": 1, "ActionTaken": False}]}, False),
        ({"_deferred": True, "o": [{"v": 1}, {"EventId": "e1", "ActionTaken": True}]}, True),
        ({"o": [{"v": 1, "ActionTaken": False}]}, True),
    ],
)
def test_a_decision_counts_only_when_it_was_activated(changes: dict[str, Any], counts: bool) -> None:
    batch = decoded(line(**changes))
    assert len(batch) == counts
    assert [(rejection.reason, "activated" in rejection.detail) for rejection in batch.rejected] == [
        ("missing_field", True)
    ] * (not counts)


def test_of_several_slots_the_first_counts() -> None:
    batch = decoded(line(SLOTS, _ba=[0, 1]))
    assert (batch.reward.tolist(), batch.propensity.tolist()) == ([2.0], [0.5])
    assert batch.policies == ("baseline",)
    assert batch.probabilities.tolist() == [[0.0]]
    assert batch.slates is None


def test_a_slate_has_one_reward_and_all_its_slots() -> None:
    batch = decoded(line(SLATE))
    assert batch.reward.tolist() == [3.0]
    assert batch.propensity.tolist() == [0.375]
    assert batch.slates is not None
    assert batch.slates.propensity.tolist() == [0.75, 0.5]
    assert batch.slates.actions.index.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (None, ("malformed", "a tombstone: the message has no value")),
        (b"", ("malformed", "not JSON: Expecting value")),
        (b"[1]", ("malformed", "not a JSON object")),
        (line() + b"!", ("malformed", "not JSON: Extra data")),
        (line()[:-1] + b', "x": "\xff"}', ("malformed", "not UTF-8: invalid start byte")),
        (line(_label_cost=...), ("missing_field", "_label_cost: missing")),
        (line(_label_cost="much"), ("malformed", "_label_cost: expected float, got str")),
        (line(_label_cost=float("nan")), ("not_finite", "_label_cost: nan is not a finite number")),
        (line(_label_cost=float("-inf")), ("not_finite", "_label_cost: -inf is not a finite number")),
        (line(_label_probability=0), ("propensity_range", "propensity: 0 is not in (0, 1]")),
        (line(_label_probability=..., a=..., p=...), ("missing_field", "propensity: missing")),
        (line(_label_Action=..., _labelIndex=..., a=..., p=...), ("missing_field", "_label_Action: missing")),
        (line(_labelIndex=0), ("malformed", "_labelIndex: 0, but `_label_Action` is 3")),
        (line(_label_Action=4, _labelIndex=3), ("unknown_action", "action: not one of the 3 `actions`")),
        (line(p=[0.75, 0.25]), ("malformed", "p: 2 entries for 3 actions")),
        (line(p=[0.75, 0.25, 0.25]), ("distribution_sum", "propensities: sums to 1.25")),
        (line(p=[0.75, 0.5, -0.25]), ("propensity_range", "propensities[1]: -0.25 is not in [0, 1]")),
        (line(_label_probability=0.5), ("inconsistent_propensity", "propensity: 0.5, but `propensities` has 0.75")),
        (line(a=[3, 1, 1]), ("malformed", "actions: 1 is listed twice")),
        (line(Timestamp="yesterday"), ("malformed", "Timestamp: invalid RFC3339")),
        (line(pdrop=1), ("propensity_range", "pdrop: 1 is not in [0, 1)")),
        (line(_outcomes=[], _label_cost=...), ("malformed", "_outcomes: empty")),
        (line(SLOTS, _outcomes=[{"_a": [1], "_p": [1]}]), ("missing_field", "_outcomes[0]._label_cost: missing")),
        (line(SLOTS, _outcomes=[{"_label_cost": 0}]), ("malformed", "_outcomes[0]._p: 0 entries for 0 actions")),
        (line(SLATE, _outcomes=[{"_a": [0, 1], "_p": [1]}]), ("malformed", "_outcomes[0]._p: 1 entry for 2 actions")),
        (line(SLATE, _outcomes=[]), ("malformed", "slots")),
    ],
)
def test_a_line_that_is_not_an_event_has_its_reason(message: bytes | None, expected: tuple[str, str]) -> None:
    actual = reason(message)
    assert actual[0] == expected[0]
    assert expected[1] in actual[1]


@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_an_event_or_rejected_with_a_reason(message: bytes) -> None:
    batch = decoded(message)
    assert len(batch) + len(batch.rejected) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["_a", "_p", "_label_cost"]), inner),
    max_leaves=6,
)


@given(changes=st.dictionaries(st.sampled_from([*BANDIT, *SLATE, "pdrop", "_ba", "o", "_skipLearn"]), JSON, max_size=3))
def test_any_value_in_any_field_is_an_event_or_rejected_with_a_reason(changes: dict[str, Any]) -> None:
    messages = [line(), line(**changes), line(SLATE, **changes), line(SLOTS, **changes)]
    batch = DsjsonDecoder(policies=["baseline"], reward_range=(-10, 10)).decode_batch(messages)
    assert len(batch) + len(batch.rejected) == 4
    assert len(batch) >= 1


def test_one_by_one_and_in_a_batch_the_verdicts_are_equal() -> None:
    messages = [line(), line(p=[1]), line(SLATE), b"{}", line(SLOTS, _ba=[0, 1])]
    batch = DsjsonDecoder().decode_batch(messages)
    singles = [DsjsonDecoder().decode_batch([message]) for message in messages]
    rejected = [
        replace(rejection, place=index) for index, single in enumerate(singles) for rejection in single.rejected
    ]
    assert rejected == list(batch.rejected)
    assert len(batch) == 3


def many_actions(probability: float) -> bytes:
    actions = list(range(10_000, 0, -1))
    return line(_label_Action=10_000, _labelIndex=9_999, _label_probability=1e-4, a=actions, p=[probability] * 10_000)


def test_ten_thousand_actions_are_an_event_like_any_other() -> None:
    evaluator = Evaluator({"even": "uniform"}, estimators=[IPS()], averages=[Cumulative()])
    before = time.process_time()
    batch = DsjsonDecoder().decode_batch([many_actions(1e-4), many_actions(1.1e-4)])
    evaluator.update(batch)
    assert time.process_time() - before < 2 * slowness()
    assert evaluator.report().get("even", "ips", "cumulative").value == pytest.approx(1)
    assert [rejection.reason for rejection in batch.rejected] == ["distribution_sum"]


def test_ten_thousand_equal_actions_are_refused_at_once() -> None:
    before = time.process_time()
    assert reason(line(a=[3] * 10_000, p=[1e-4] * 10_000))[0] == "malformed"
    assert time.process_time() - before < 1 * slowness()


def test_files_of_decision_logs_are_read_in_batches() -> None:
    batches = list(read_events(LOGS / "cb_loop_100.dsjson.gz", format="dsjson", scores=[], batch_size=30))
    assert [len(batch) for batch in batches] == [30, 30, 30, 10]
    assert batches[0].raw_fields is not None
    assert batches[0].raw_fields.values[0]["context"]["GUser"]["major"] == "eng"


@pytest.mark.parametrize(
    ("message", "scores"),
    [(line(mine=[0.1, 0.9, 0.5]), [0.9, 0.5, 0.1]), (line(SLOTS, mine=[3, 4]), [4, 3]), (line(mine="high"), "high")],
)
def test_scores_are_sorted_as_the_actions_are(message: bytes, scores: Any) -> None:
    batch = decoded(message, policies=[], scores=["mine"])
    assert batch.raw_fields is not None
    assert [(logged["context"], logged["mine"]) for logged in batch.raw_fields.values] == [
        (json.loads(message).get("c"), scores)
    ]


def test_a_candidate_reads_the_scores_of_the_line_and_lacks_events_without_them() -> None:
    bold = {"kind": "epsilon_greedy", "epsilon": 0.3, "scores": "mine"}
    evaluator = Evaluator({"bold": bold}, estimators=[IPS()], averages=[Cumulative()])
    batch = DsjsonDecoder(policies=[], scores=["mine"]).decode_batch([line(mine=[0.9, 0.1, 0.5]), line(), line(SLATE)])
    evaluator.update(batch)
    report = evaluator.report()
    assert report.get("bold", "ips", "cumulative").value == pytest.approx(0.8 / 0.75)
    assert [counts.missing for counts in report.policies if counts.policy == "bold"] == [1]


def test_replay_and_daemon_read_decision_logs_as_configured(tmp_path: Path) -> None:
    log_file = LOGS / "cb_loop_100.dsjson.gz"
    (tmp_path / "x.yaml").write_text(
        f"source: {{kind: file, path: {log_file}, format: dsjson}}\nreward: {{max: 5}}\n"
        "policies: {candidates: {first: first, even: uniform}}\nestimators: [ips]\naverages: [cumulative]\n"
    )
    config = Config.load(tmp_path / "x.yaml", {})
    report = Replay(config).read([str(log_file)])
    value = report.get("first", "ips", "cumulative").value
    assert value == pytest.approx(REFERENCE["cb_loop_100/first"]["ips"])
    assert isinstance(config.event_format(), DsjsonDecoder)
    assert not isinstance(config.event_format("json"), DsjsonDecoder)


def test_a_reward_that_dsjson_does_not_have_is_a_problem_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "policies: {candidates: [a]}\nsource: {topic: t, format: dsjson}\nreward: {field: clicks}\n"
    )
    with pytest.raises(ConfigError, match=r"reward\.field \(line 3\): expected one of reward, _label_cost or"):
        Config.load(tmp_path / "x.yaml", {})
