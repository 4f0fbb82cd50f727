"""Test `compare`: the same numbers from every kind of data, its words, and its warnings."""

from __future__ import annotations

import gzip
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streameval as se
from streameval.common.problems import ProblemsError
from streameval.errors import InputError

EVENTS, FEW = 6_000, 600


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    """Draw a log in which the second action is better, and the candidate prefers it."""
    random = np.random.default_rng(11)
    is_first = random.random(EVENTS) < 0.7
    reward = random.random(EVENTS) < np.where(is_first, 0.1, 0.3)
    return {
        "action": np.where(is_first, "first", "second").tolist(),
        "propensity": np.where(is_first, 0.7, 0.3).tolist(),
        "reward": reward.astype(int).tolist(),
        "new": np.where(is_first, 0.3, 0.7).tolist(),
        "country": random.choice(["de", "fr", "jp"], EVENTS, p=[0.6, 0.3, 0.1]).tolist(),
    }


def offered(log: dict[str, Any]) -> dict[str, Any]:
    """Return the first events, with the actions on offer."""
    few = {name: column[:FEW] for name, column in log.items()}
    return few | {"actions": [["first", "second"]] * FEW, "propensities": [[0.7, 0.3]] * FEW}


def csv_file(log: dict[str, Any], folder: Path) -> Path:
    path = folder / "log.csv"
    pd.DataFrame(log).to_csv(path, index=False)
    return path


def parquet_file(log: dict[str, Any], folder: Path) -> Path:
    pq.write_table(pa.table(log), folder / "log.parquet")
    return folder / "log.parquet"


def lines(log: dict[str, Any], folder: Path) -> str:
    path = folder / "log.ndjson.gz"
    with gzip.open(path, "wt") as file:
        for number in range(EVENTS):
            row = {name: values[number] for name, values in log.items()}
            event = {name: row[name] for name in ("action", "propensity", "reward")}
            context, policies = {"country": row["country"]}, {"new": row["new"]}
            json.dump(
                {"event_id": number, "timestamp": 1.6e9 + number, **event, "context": context, "policies": policies},
                file,
            )
            file.write("\n")
    return str(path)


def batches(log: dict[str, Any], folder: Path) -> Any:
    return se.read_events(csv_file(log, folder), policies=["new"])


@pytest.mark.parametrize(
    "data",
    [
        lambda log, folder: log,
        lambda log, folder: pd.DataFrame(log),
        lambda log, folder: pl.DataFrame(log),
        lambda log, folder: pa.table(log),
        csv_file,
        parquet_file,
        lines,
        batches,
        lambda log, folder: list(batches(log, folder)),
        lambda log, folder: [csv_file(log, folder)],
        lambda log, folder: csv_file(log, folder).parent.glob("*.csv"),
    ],
    ids=["mapping", "pandas", "polars", "arrow", "csv", "parquet", "lines", "batches", "list", "paths", "glob"],
)
def test_all_kinds_of_data_give_the_same_numbers(
    log: dict[str, Any], tmp_path: Path, data: Callable[[dict[str, Any], Path], Any]
) -> None:
    evaluator = se.Evaluator(["new"])
    evaluator.update(se.EventBatch.from_frame(log, policies=["new"]))
    expected = evaluator.report().get("new", "stratified_ips", "mixture")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = se.compare(data(log, tmp_path), ["new"])
    found = answer.report.get("new", "stratified_ips", "mixture")
    assert (found.value, found.lift, found.lift_lower) == pytest.approx(
        (expected.value, expected.lift, expected.lift_lower), rel=1e-9
    )
    assert "new" in str(answer)
    assert f"{EVENTS:,} events" in str(answer)
    assert "new" in answer._repr_html_()


@pytest.mark.parametrize("ids", [False, True], ids=["without ids", "with ids"])
def test_copies_of_a_frame_are_no_evidence(log: dict[str, Any], ids: bool) -> None:
    """Find copies in a log with few kinds of events, of which the original has none."""
    frame = pd.DataFrame(log | ({"event_id": range(EVENTS)} if ids else {}))
    columns = {"event_id": "event_id"} if ids else {}
    assert "copies" not in str(se.compare(frame, ["new"], columns=columns))
    found = (
        "trust check repeated_events: about 6"
        if not ids
        else "12,000 of 18,000 events repeat the id|repeated_events: about"
    )
    with pytest.warns(UserWarning, match=found):
        answer = se.compare(pd.concat([frame] * 3), ["new"], columns=columns)
    assert "Do not decide yet about new: about 6" in str(answer)
    assert "leave out copies of files or frames" in str(answer)
    assert not any(decision.promotable for decision in answer.report.promotion)


def test_copies_are_found_in_any_order_if_events_have_times(log: dict[str, Any]) -> None:
    frame = pd.DataFrame(log).assign(timestamp=1.6e9 + np.arange(EVENTS) // 2)
    assert "copies" not in str(se.compare(frame, ["new"]))
    with pytest.warns(UserWarning, match="fail the trust check repeated_events"):
        answer = se.compare(pd.concat([frame] * 2).sort_values("timestamp"), ["new"])
    assert "% of the events are copies of earlier ones" in str(answer)


def test_copies_are_found_if_rewards_are_rare(log: dict[str, Any]) -> None:
    frame = pd.DataFrame(log).assign(reward=(np.arange(EVENTS) % 50 == 0).astype(int))
    assert "copies" not in str(se.compare(frame, ["new"]))
    with pytest.warns(UserWarning, match="repeated_events: about 49"):
        se.compare(pd.concat([frame] * 2), ["new"])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("share", [0.02, 0.3])
@pytest.mark.parametrize("is_sorted", [False, True], ids=["appended", "sorted"])
def test_copies_of_a_part_are_found_if_events_have_own_times(
    log: dict[str, Any], share: float, is_sorted: bool
) -> None:
    frame = pd.DataFrame(log).assign(timestamp=1.6e9 + np.cumsum(np.random.default_rng(3).exponential(5, EVENTS)))
    copied = pd.concat([frame, frame.tail(int(share * EVENTS))])
    answer = se.compare(copied.sort_values("timestamp") if is_sorted else copied, ["new"])
    checks = {check.check: check.reason for check in answer.report.trust if not check.ok}
    assert f"about {100 * share / (1 + share):.0f} %" in checks["repeated_events"]


@pytest.mark.parametrize("actions", [4, 40, 200, 1000])
def test_actions_that_take_turns_are_no_copies(actions: int) -> None:
    rewards = np.random.default_rng(5).random(EVENTS) < 0.01
    turn = np.arange(EVENTS) % actions
    frame = pd.DataFrame({"action": turn, "propensity": 1 / actions, "reward": rewards.astype(int)})
    answer = se.compare(frame.assign(new=(turn + 1) * 2 / actions / (actions + 1)), ["new"])
    assert "repeated_events" not in [check.check for check in answer.report.trust]


def test_segments_that_are_known_after_the_decision_are_named(log: dict[str, Any]) -> None:
    frame = pd.DataFrame(log | {"revenue": [5 * reward for reward in log["reward"]], "item": log["action"]})
    with pytest.warns(UserWarning, match="the segment 'revenue' decides the reward"):
        se.compare(frame, ["new"], segments=["revenue", "country"])
    with pytest.warns(UserWarning, match="the segment 'item' decides the action"):
        se.compare(frame, ["new"], segments=["item", "country"])
    levels = np.arange(EVENTS) % 3
    with pytest.warns(UserWarning, match="the segment 'level' decides the reward"):
        se.compare(frame.assign(level=levels, reward=levels / 2), ["new"], segments="level")
    with pytest.raises(ProblemsError, match="before the decision, found the action"):
        se.compare(frame, ["new"], columns={"action": "item"}, segments="item")
    with pytest.raises(ProblemsError, match="before the decision, found a reward"):
        se.compare(frame, ["new"], columns={"reward": "revenue"}, reward={"max": 5}, segments="revenue")
    with pytest.raises(InputError, match="and the field 'propensity' has 0"):
        se.compare(frame, ["new"], segments="propensity")


def test_a_confidence_that_is_an_error_level_is_doubted(log: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="confidence: intervals miss the true value in 95 % of all cases"):
        se.compare(log, ["new"], confidence=0.05)
    with pytest.warns(UserWarning, match=r"did you mean 0\.95\?"):
        se.Evaluator(["new"], confidence=0.05)


@pytest.mark.parametrize("answer", [pd.DataFrame, pl.DataFrame, np.array])
def test_a_function_may_return_a_table(log: dict[str, Any], answer: Any) -> None:
    rows = [{"first": 0.3, "second": 0.7}] * FEW
    mine = {"mine": lambda decisions: answer([list(row.values()) for row in rows[: len(decisions)]])}
    if answer is pl.DataFrame:
        mine = {"mine": lambda decisions: pl.DataFrame(rows[: len(decisions)])}
    found = se.compare(offered(log), mine).report.get("mine", "snips", "cumulative")
    assert found.value == se.compare(offered(log), ["new"]).report.get("new", "snips", "cumulative").value


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_users_with_equal_events_are_no_copies(log: dict[str, Any]) -> None:
    """Let 800 users keep their action on five visits, nearly without rewards and without times."""
    random = np.random.default_rng(7)
    first = np.repeat(random.random(800) < 0.5, 5)
    columns = {"action": np.where(first, "a", "b"), "propensity": 0.5, "reward": random.random(4_000) < 0.002}
    frame = pd.DataFrame({**columns, "new": first * 1.0, "user": np.repeat(np.arange(800), 5)})
    answer = se.compare(frame.sample(frac=1, random_state=1), ["new"], columns={"unit": "user"})
    assert "copies" not in str(answer)


def test_a_segment_of_single_events_decides_nothing(log: dict[str, Any]) -> None:
    frame = pd.DataFrame(log).head(300).assign(visit=[f"v{number}" for number in range(300)])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        se.compare(frame, ["new"], segments=["visit"])
    assert not [warning for warning in warned if "decides the" in str(warning.message)]


def test_copies_that_are_dropped_do_no_harm(log: dict[str, Any]) -> None:
    frame = pd.concat([pd.DataFrame(log | {"event_id": range(EVENTS)})] * 2)
    source = {"kind": "file", "path": "-", "duplicates": EVENTS}
    with pytest.warns(UserWarning, match=f"{EVENTS:,} of {2 * EVENTS:,} events were rejected"):
        answer = se.compare(frame, ["new"], columns={"event_id": "event_id"}, source=source)
    assert "repeated_events" not in [check.check for check in answer.report.trust]


@pytest.mark.parametrize("data", [lambda log, folder: log, csv_file, parquet_file, lines])
def test_values_of_segments_are_found_in_the_data(
    log: dict[str, Any], tmp_path: Path, data: Callable[[dict[str, Any], Path], Any]
) -> None:
    field = "context.country" if data is lines else "country"
    answer = se.compare(data(log, tmp_path), ["new"], segments=[field])
    rows = {row.segment_value: row for row in answer.report.segments if row.policy == "new"}
    assert {"de", "fr", "jp", "other"} == set(rows)
    assert rows["de"].share == pytest.approx(log["country"].count("de") / EVENTS)


def test_several_rewards(log: dict[str, Any]) -> None:
    spending = {**log, "spent": [20 * reward for reward in log["reward"]]}
    report = se.compare(spending, ["new"], rewards={"click": {"field": "reward"}, "spent": {"max": 20}}).report
    usual = se.compare(log, ["new"]).report.get("new", "ips", "cumulative").value
    found = [report.of_reward(reward).get("new", "ips", "cumulative").value for reward in ("click", "spent")]
    assert found == pytest.approx([usual, 20 * usual])


@pytest.mark.parametrize("data", [lambda log, folder: log, csv_file, parquet_file, lines])
def test_rewards_beyond_their_range_may_be_clipped(
    log: dict[str, Any], tmp_path: Path, data: Callable[[dict[str, Any], Path], Any]
) -> None:
    spent = {**log, "reward": [20 * reward for reward in log["reward"]]}
    relaxed = {"trust": {"clipped_share": 1.0}}
    answer = se.compare(data(spent, tmp_path), ["new"], reward={"above": "clip"}, promotion=relaxed)
    expected = se.compare(log, ["new"]).report.get("new", "stratified_ips", "mixture")
    found = answer.report.get("new", "stratified_ips", "mixture")
    assert (found.value, found.lift, found.lift_lower) == pytest.approx(
        (expected.value, expected.lift, expected.lift_lower), rel=1e-9
    )
    assert answer.report.clipped[0].above == sum(log["reward"])


@pytest.mark.parametrize("data", [lambda log, folder: log, csv_file, parquet_file])
def test_a_table_need_not_have_the_weighted_sum_of_its_columns(
    log: dict[str, Any], tmp_path: Path, data: Callable[[dict[str, Any], Path], Any]
) -> None:
    spending = {**log, "spent": [20 * reward for reward in log["reward"]]}
    rewards = {"worth": {"of": {"reward": 1, "spent": 0.1}}, "reward": {}, "spent": {"max": 20}}
    report = se.compare(data(spending, tmp_path), ["new"], rewards=rewards).report
    usual = se.compare(log, ["new"]).report.get("new", "ips", "cumulative").value
    assert report.get("new", "ips", "cumulative", "worth").value == pytest.approx(3 * usual)
    with pytest.raises(InputError, match="no column 'spent'"):
        se.compare(data(log, tmp_path), ["new"], rewards=rewards)


@pytest.mark.parametrize(
    ("function", "answer"),
    [
        (lambda decisions: 0.5, "float is not a list of numbers; expected one probability for each of 2 actions"),
        (lambda decisions: None, "NoneType is not a list of numbers; expected one probability for each of 2 actions"),
        (lambda decisions: [0.5] * len(decisions), "float is not a list of numbers"),
        (lambda decisions: [[70, 30]] * len(decisions), "a probability is not in [0, 1]: 70"),
        (lambda decisions: "text", "the function returned text"),
        (
            lambda decisions: decisions["country"],
            "it takes the contexts, actions and features of many events, as lists",
        ),
    ],
)
def test_a_wrong_answer_of_a_function_is_named(log: dict[str, Any], function: Any, answer: str) -> None:
    with pytest.warns(UserWarning, match=r"(?s)the policy 'mine' has no distribution .*hint: "):
        (sentence, *_) = str(se.compare(offered(log), {"mine": function})).splitlines()
    assert sentence.startswith("No event counts for mine: ")
    assert answer in sentence
    assert "first at event 1" in sentence


def test_a_function_is_a_candidate(log: dict[str, Any]) -> None:
    data = offered(log)

    def by_country(decisions: se.Decisions) -> list[list[float]]:
        return [[0.3, 0.7] if context["country"] == "de" else [0.5, 0.5] for context in decisions.contexts]

    def bad(decisions: se.Decisions) -> list[float]:
        return [context["x"] for context in decisions.contexts]

    is_first = np.array(data["action"]) == "first"
    is_german = np.array(data["country"]) == "de"
    same = np.where(is_german, np.where(is_first, 0.3, 0.7), 0.5)
    data["logged"] = same.tolist()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = se.compare(
            data, {"mine": by_country, "bad": bad, "logged": "logged"}, columns={"context": ["country"]}
        )
    (message,) = [str(one.message) for one in caught]
    assert message.startswith(f"the policy 'bad' has no distribution for {FEW:,} events\n  raised  e.g. KeyError: 'x'")
    assert f"No event counts for bad: its function raised KeyError 'x', first at event 1 ({FEW:,} of" in str(answer)
    own, logged = (answer.report.get(name, "ips", "cumulative") for name in ("mine", "logged"))
    assert own.value == pytest.approx(logged.value, rel=1e-12)


def test_names_of_columns_and_the_range_of_the_reward(log: dict[str, Any]) -> None:
    renamed = {"banner": log["action"], "p": log["propensity"], "p_new": log["new"]}
    renamed["money"] = [50 * reward for reward in log["reward"]]
    columns = {"action": "banner", "propensity": "p", "policies": {"new": "p_new"}}
    answer = se.compare(renamed, ["new"], columns=columns, reward={"field": "money", "max": 50}, promotion="paired")
    usual = se.compare(log, ["new"]).report.get("new", "ips", "cumulative")
    assert answer.report.get("new", "ips", "cumulative").value == pytest.approx(50 * usual.value)


@pytest.mark.parametrize(
    ("change", "options", "warning"),
    [
        (lambda log: {"reward": [5, *log["reward"][1:]]}, {}, "1 of 6,000 events have a reward above reward.max"),
        (lambda log: {"propensity": [2.0] * 50 + log["propensity"][50:]}, {}, "50 of 6,000 events were rejected"),
        (
            lambda log: {name: [log[name][row] for row in np.argsort(log["action"])] for name in log},
            {},
            "new fails the trust check mean_weight: mean weight 0.981 over 6,000 events, expected 1: it is far from 1 "
            "in parts of the log",
        ),
        (
            lambda log: {"propensity": [None] * EVENTS},
            {"propensity": "estimated"},
            "new fails the trust check missing_share: 16.7% of the events of window lack its probability, over 10%\n"
            "hint: give more events, or log the propensities: 1,000 events have none",
        ),
        (
            lambda log: {},
            {"http": {"port": 9_000}, "engine": "spark"},
            "settings of a daemon have no effect here: http,",
        ),
    ],
)
def test_what_is_wrong_with_the_data_is_a_warning(
    log: dict[str, Any], change: Callable[[dict[str, Any]], dict[str, Any]], options: dict[str, Any], warning: str
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        se.compare({**log, **change(log)}, ["new"], **options)
    found = [str(one.message) for one in caught]
    assert any(warning in message for message in found), found
    assert {one.filename for one in caught} == {__file__}


def test_rejected_events_are_named_before_the_checks_that_they_fail(log: dict[str, Any]) -> None:
    lacking = {**log, "reward": [1 if reward else None for reward in log["reward"]]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = str(se.compare(lacking, ["new"]))
    assert re.match(r"Do not decide yet about new: 8\d\.\d% of the latest events were rejected, over 5%; mean", answer)
    failed = [str(one.message) for one in caught if "trust check" in str(one.message)]
    assert "the trust check rejected_share" in failed[0]
    assert "write 0 if nothing was earned" in str(caught[0].message)


def test_findings_about_batches_that_are_read_are_named_once(log: dict[str, Any], tmp_path: Path) -> None:
    path = csv_file({**log, "new": [None] * EVENTS}, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        se.compare(se.read_events(path, policies=["new"]), ["new"])
    assert [str(one.message).partition("\n")[0] for one in caught] == ["no event has a probability of the policy 'new'"]
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_answer_to_a_log_of_rejected_events() -> None:
    evaluator = se.Evaluator(["new"])
    evaluator.update(se.EventBatch.from_frame({"action": ["a"], "propensity": [3.0], "reward": [1]}))
    assert str(evaluator.report()).startswith("No event counts for new: all events were rejected (1)\n")


def test_the_figure_is_drawn(log: dict[str, Any]) -> None:
    figure = se.compare(log, ["new"]).plot()
    assert [axes.get_title(loc="left") for axes in figure.axes][:1] == ["reward per event"]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            (5, ["new"]),
            {},
            TypeError,
            "expected a frame of pandas or polars, an Arrow table, paths or batches, found int",
        ),
        (([{"action": "a"}], ["new"]), {}, TypeError, "found list of dict: make a frame of them, e.g. pandas."),
        ((np.zeros((2, 2)), ["new"]), {}, TypeError, "found ndarray of ndarray: name its columns: pandas."),
        ((iter([pd.DataFrame()]), ["new"]), {}, TypeError, "list_iterator of DataFrame: join the frames into one"),
        (([pd.DataFrame()], ["new"]), {}, TypeError, "list of DataFrame: join the frames into one, e.g. pandas.concat"),
        ((pd.Series([1]), ["new"]), {}, TypeError, "found Series: give the whole frame"),
        ((pl.Series([1]), ["new"]), {"segments": "a"}, TypeError, "found Series: give the whole frame"),
        ((["absent.csv", 5], ["new"]), {}, TypeError, "found list of int"),
        ((open, ["new"]), {}, TypeError, "found builtin_function_or_method"),
        (([], ["new"]), {}, InputError, "no event was accepted: there is none"),
        ((pd.DataFrame({"action": [], "propensity": [], "reward": [], "new": []}), ["new"]), {}, InputError, "is none"),
        (({}, ["new"]), {}, InputError, "it has none"),
        (({"a": [1]}, abs), {}, ProblemsError, "expected names, or a mapping, found the function abs"),
        (({"a": [1]}, [abs]), {}, ProblemsError, "expected names, or a mapping, found the function abs"),
        (({"a": [1]}, "new"), {}, ProblemsError, "policies.candidates: expected a list, found 'new'"),
        (({"a": [1]}, None), {}, ProblemsError, "policies.candidates: expected a list, found nothing"),
        (({"a": [1]}, ["new"]), {"columns": "p"}, ProblemsError, "columns: expected a mapping of options, found 'p'"),
        (({"a": [1]}, ["new"]), {"segments": [["a"]]}, ProblemsError, "segments: expected a mapping"),
        (
            ({"a": [1]}, ["new"]),
            {"policies": {"candidates": ["old"]}},
            ProblemsError,
            "policies.candidates: expected nothing next to the argument `candidates`",
        ),
        (
            ({"a": [1]}, ["new"]),
            {"columns": {"reward": "clicked"}, "reward": "revenue"},
            ProblemsError,
            "columns.reward: expected nothing next to the field 'revenue' of the reward, found 'clicked'",
        ),
        (([], ["new"]), {"columns": {"action": "a"}}, ProblemsError, "columns: expected nothing next to batches"),
        (([], ["new"]), {"reward": "spent"}, ProblemsError, "reward.field: expected nothing next to batches"),
        (("absent.csv", ["new"]), {}, InputError, "absent.csv"),
        (({"action": ["a"], "propensity": [3.0], "reward": [1], "new": [0.5]}, ["new"]), {}, InputError, "rejected"),
        (({"a": [1]}, ["new"]), {}, InputError, "action"),
        (({"a": [1]}, {"u": se.Uniform}), {}, ProblemsError, "found the class Uniform; write Uniform()"),
        (
            ({"action": ["a"], "propensity": [1], "reward": [1], "nwe": [1]}, ["new"]),
            {},
            InputError,
            "no column 'new' for new; it has action, propensity, reward, nwe; did you mean 'nwe'?",
        ),
        (({"a": [1]}, ["new"]), {"estimators": [abs]}, ProblemsError, "function takes importance weights [n, P] and"),
        (({"a": [1]}, ["new"]), {"estimaters": ["ips"]}, ProblemsError, "found the unknown key 'estimaters'"),
        (({"a": [1]}, ["new"]), {"segments": ["country"]}, InputError, "no event has the field 'country'"),
        (
            ({"p": [0.5, None]}, ["new"]),
            {"segments": "p"},
            InputError,
            "split by text, whole numbers or truth values, and",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mistakes_have_an_answer(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        se.compare(*arguments, **options)
    notes = getattr(caught.value, "__notes__", ())
    assert message in "; ".join([str(caught.value), *notes]).replace("; hint: ", "; ")
