"""Test candidates in code: what they are asked, and what becomes of their answers and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from streameval import Evaluator
from streameval.cli.replay import Replay
from streameval.common.problems import ProblemsError
from streameval.config.model import Config
from streameval.errors import ConfigError, StateError
from streameval.events import EventBatch, JsonDecoder
from streameval.ingest.base import Records
from streameval.ope.core import Cumulative
from streameval.ope.estimators import DM, IPS
from streameval.ope.policies.coded import EpsilonGreedy, First, Logged, PythonPolicy, Softmax, Uniform, fields_read
from streameval.ope.policies.python import Decisions
from streameval.ope.report import PolicyCounts, Report
from streameval.service.daemon import Daemon
from streameval.service.metrics import metrics_text
from support.factories import ListSource
from support.messages import message

FAVOURITE = PythonPolicy("support.coded_policies:favourite", {"share": 0.6})


def choice(**changes: Any) -> bytes:
    """Return a choice among three actions, with scores and a context."""
    sets = {"actions": ["a", "b", "c"], "propensities": [0.25, 0.5, 0.25], "scores": [1.0, 3.0, 2.0]}
    fields = {"action": "b", "propensity": ..., "context": {"likes": "b"}} | sets
    return message(1, **(fields | changes))


def reading(policies: Any) -> JsonDecoder:
    logged = [name for name, policy in policies.items() if isinstance(policy, Logged)]
    return JsonDecoder(logged, scores=fields_read(policies.values()))


def evaluated(policies: Any, *messages: bytes) -> Report:
    evaluator = Evaluator(policies, estimators=[IPS()], averages=[Cumulative()])
    evaluator.update(reading(policies).decode_batch(messages))
    return evaluator.report()


def counts(report: Report, policy: str) -> PolicyCounts:
    return next(row for row in report.policies if row.policy == policy)


def weight(policy: Any, event: bytes) -> float | None:
    """Return the importance weight of the logged action, which has a propensity of one half."""
    return evaluated({"p": policy}, event).get("p", "ips", "cumulative").importance_weight_mean


@pytest.mark.parametrize(
    ("policy", "probability"),
    [
        (Uniform(), 1 / 3),
        (First(), 0.0),
        (EpsilonGreedy(epsilon=0.3), 0.7 + 0.1),
        (EpsilonGreedy(epsilon=0.0), 1.0),
        (Softmax(), np.exp(3) / np.exp([1, 2, 3]).sum()),
        (Softmax(temperature=1e-6), 1.0),
        (Softmax(temperature=1e9), 1 / 3),
        (FAVOURITE, 0.6),
    ],
)
def test_a_policy_in_code_gives_the_probability_of_the_logged_action(policy: Any, probability: float) -> None:
    assert weight(policy, choice()) == pytest.approx(probability / 0.5)


def test_the_greedy_policy_takes_the_first_of_equal_scores() -> None:
    assert weight(EpsilonGreedy(epsilon=0), choice(scores=[1, 5, 5])) == 2
    assert weight(EpsilonGreedy(epsilon=0), choice(scores=[5, 5, 1])) == 0


def test_scores_may_be_read_from_any_field_even_from_the_propensities() -> None:
    assert weight(EpsilonGreedy(epsilon=0, scores="ranks"), choice(ranks=[0, 9, 1])) == 2
    assert weight(EpsilonGreedy(epsilon=0, scores="propensities"), choice()) == 2


@pytest.mark.parametrize("policy", [Uniform(), First(), EpsilonGreedy(epsilon=0.3), Softmax(), FAVOURITE])
def test_events_without_actions_are_missing(policy: Any) -> None:
    plain = choice(actions=..., propensities=..., propensity=0.5)
    actual = counts(evaluated({"p": policy}, plain, plain), "p")
    assert (actual.events, actual.missing) == (0, 2)


def test_scores_far_apart_do_not_overflow() -> None:
    assert weight(Softmax(temperature=1e-3), choice(scores=[-1e200, 1e200, 0])) == 2


@pytest.mark.parametrize(
    ("policy", "changes", "reason", "example"),
    [
        (Uniform(), {"actions": ..., "propensities": ..., "propensity": 0.5}, "missing_field", "actions: missing"),
        (Softmax(), {"scores": ...}, "missing_field", "scores: missing"),
        (Softmax(), {"scores": [1, 2]}, "malformed", "scores: 2 entries for 3 actions"),
        (Softmax(), {"scores": "high"}, "malformed", "scores: not a list of numbers"),
        (Softmax(), {"scores": [1, None, 2]}, "malformed", "scores: not a list of numbers"),
        (Softmax(), {"scores": [1, True, 2]}, "malformed", "scores: not a list of numbers"),
        (Softmax(), {"scores": [1, 1e301, 2]}, "not_finite", "scores: a number is too large"),
        (EpsilonGreedy(epsilon=0.1), {"scores": [1, 10**400, 2]}, "not_finite", "scores: a number is too large"),
        (FAVOURITE, {"context": {}}, "raised", "KeyError: 'likes'"),
        (FAVOURITE, {"context": ...}, "raised", "TypeError: 'NoneType' object is not subscriptable"),
        (FAVOURITE, {"context": {"likes": "z"}}, "distribution_sum", "the probabilities do not sum to 1"),
        (
            PythonPolicy("support.coded_policies:constant", {"answer": [0.5, 0.6, 0.1]}),
            {},
            "distribution_sum",
            "do not sum",
        ),
        (
            PythonPolicy("support.coded_policies:constant", {"answer": [0.5, 0.75, -0.25]}),
            {},
            "probability_range",
            "[0, 1]",
        ),
        (
            PythonPolicy("support.coded_policies:constant", {"answer": [0.5, 0.5]}),
            {},
            "malformed",
            "2 probabilities; expected one probability for each of 3 actions, first at event 1",
        ),
        (
            PythonPolicy("support.coded_policies:constant", {"answer": [[1, 0, 0]]}),
            {},
            "malformed",
            "2 dimensions; expected one probability for each of 3 actions",
        ),
        (
            PythonPolicy("support.coded_policies:constant", {"answer": "abc"}),
            {},
            "malformed",
            "str is not a list of numbers",
        ),
        (
            PythonPolicy("support.coded_policies:constant", {"answer": [1, None, 0]}),
            {},
            "not_finite",
            "not a finite number",
        ),
        (PythonPolicy("support.coded_policies:constant", {"answer": [float("inf"), 0, 0]}), {}, "not_finite", "finite"),
        (PythonPolicy("support.coded_policies:too_few"), {}, "malformed", "no row for 1 event"),
        (PythonPolicy("support.coded_policies:exiting"), {}, "raised", "SystemExit: 3"),
        (PythonPolicy("support.coded_policies:panicking"), {}, "raised", "Silent: "),
        (PythonPolicy("support.coded_policies:endless"), {}, "malformed", "2 or more rows for 1 event"),
        (
            PythonPolicy("support.coded_policies:constant", {"answer": range(10**15)}),
            {},
            "malformed",
            "1,000,000,000,000,000 probabilities; expected one",
        ),
        (
            PythonPolicy("support.coded_policies:linear", {"weights": [1]}),
            {},
            "malformed",
            "no row for 1 event",
        ),
    ],
)
def test_a_policy_without_a_distribution_misses_the_event_with_a_reason(
    policy: Any, changes: dict[str, Any], reason: str, example: str
) -> None:
    report = evaluated({"bad": policy, "good": Uniform()}, choice(), choice(**changes))
    failure = counts(report, "bad").failures[0]
    assert failure.reason == reason
    assert example in failure.example
    assert counts(report, "bad").missing == failure.count >= 1
    assert report.events.accepted == 2
    if changes.get("actions") is not ...:
        assert counts(report, "good").missing == 0


def test_an_event_that_makes_a_policy_raise_costs_no_other() -> None:
    good, bad = choice(), choice(context={})
    report = evaluated({"p": FAVOURITE}, *[bad if index in (3, 77) else good for index in range(150)])
    assert (counts(report, "p").events, counts(report, "p").missing) == (148, 2)
    assert report.get("p", "ips", "cumulative").importance_weight_mean == pytest.approx(1.2)


@given(cuts=st.lists(st.integers(0, 60), max_size=4), bad=st.sets(st.integers(0, 59), max_size=6))
def test_how_the_stream_is_cut_changes_nothing(cuts: list[int], bad: set[int]) -> None:
    policies = {"mine": FAVOURITE, "soft": Softmax(), "shadow": Logged()}
    messages = [
        choice(context={} if index in bad else {"likes": "b"}, policies={"shadow": [0.1, 0.4, 0.5]})
        for index in range(60)
    ]
    whole, parts = (Evaluator(policies, averages=[Cumulative()], block=10) for _ in range(2))
    whole.update(reading(policies).decode_batch(messages))
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 60], strict=True):
        parts.update(reading(policies).decode_batch(messages[start:stop]))
    assert parts.report() == whole.report()


def test_names_alone_are_logged_probabilities_as_before() -> None:
    batch = EventBatch.from_arrays(reward=[1, 0], propensity=[0.5, 0.5], policies={"a": [0.25, 1]})
    reports = []
    for candidates in (["a"], {"a": Logged()}, {"a": "logged"}):
        evaluator = Evaluator(candidates)
        evaluator.update(batch)
        reports.append(evaluator.report())
    assert reports[0] == reports[1] == reports[2]
    assert Evaluator({"a": Logged()}).state()["settings"]["computed_policies"] == {}


def test_code_overrides_events_that_have_the_same_policy() -> None:
    report = evaluated({"even": Uniform()}, choice(policies={"even": [1, 0, 0]}))
    assert report.get("even", "ips", "cumulative").importance_weight_mean == pytest.approx(2 / 3)


def test_arrays_with_action_sets_and_features_serve_policies_in_code() -> None:
    policies = {
        "even": Uniform(),
        "first": First(),
        "mine": PythonPolicy("support.coded_policies:linear", {"weights": [1, -1]}),
    }
    evaluator = Evaluator(policies, estimators=[IPS()], averages=[Cumulative()])
    features = np.array([[[0.0, 1.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]])
    evaluator.update(
        EventBatch.from_arrays(reward=[1, 1], action=[1, 0], propensities=[[0.5, 0.5]] * 2, features=features)
    )
    weights = [evaluator.report().get(name, "ips", "cumulative").importance_weight_mean for name in policies]
    assert weights == [1.0, 1.0, 2.0]


def test_answers_are_full_distributions_for_estimators_that_need_them() -> None:
    policies = {"even": Uniform()}
    evaluator = Evaluator(policies, estimators=[IPS(), DM()], averages=[Cumulative()])
    messages = [choice(features=[[0], [1], [2]], reward=index % 2) for index in range(300)]
    evaluator.update(reading(policies).decode_batch(messages))
    assert evaluator.report().get("even", "dm", "cumulative").effective_sample_size == pytest.approx(300)


def test_policies_answer_for_each_slot_of_a_slate() -> None:
    slot = {"action": "b", "actions": ["a", "b"], "propensities": [0.5, 0.5]}
    slate = choice(action=..., actions=..., propensities=..., slots=[slot, slot])
    policies = {"even": Uniform(), "first": First(), "soft": Softmax()}
    report = evaluated(policies, slate, choice())
    assert [counts(report, name).events for name in policies] == [2, 2, 1]
    assert counts(report, "soft").failures[0].reason == "missing_field"
    assert report.get("first", "ips", "cumulative").importance_weight_mean == 0


@pytest.mark.parametrize("candidates", [[], ["mine"], {"mine": PythonPolicy("support.coded_policies:favourite")}])
def test_code_named_in_a_state_runs_only_if_the_caller_names_it(candidates: Any) -> None:
    state = Evaluator({"mine": FAVOURITE}).state()
    with pytest.raises(StateError, match="the state holds the policy 'mine', which is code"):
        Evaluator.from_state(state, candidates=candidates)


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("no.such.module:factory", {}, "the module no.such.module cannot be imported: ModuleNotFoundError"),
        ("support.coded_policies:absent", {}, "the module support.coded_policies has no function absent"),
        (
            "support.coded_policies:broken",
            {},
            "support.coded_policies:broken fails with the options {}: RuntimeError: no model file",
        ),
        ("support.coded_policies:favourite", {"shore": 1}, "unexpected keyword argument 'shore'"),
        (
            "support.coded_policies:no_policy",
            {},
            "support.coded_policies:no_policy returns int, which cannot be called",
        ),
    ],
)
def test_missing_code_stops_the_start(target: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Evaluator({"mine": PythonPolicy(target, options)})
    assert problem in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("target", ["factory", "package.module", "a:b:c", "a b:c", ":f", "m:"])
def test_a_target_names_a_module_and_a_factory(target: str) -> None:
    with pytest.raises(ProblemsError, match=r"expected package\.module:factory"):
        PythonPolicy(target)


CONFIGURED = """
policies:
  candidates:
    shadow: logged
    even: uniform
    mine: {kind: python, target: "support.coded_policies:favourite", options: {share: 0.6}}
    soft: {kind: softmax, temperature: 2, scores: ranks}
estimators: [ips]
averages: [cumulative]
"""


def configured(tmp_path: Path, text: str = CONFIGURED) -> Config:
    (tmp_path / "streameval.yaml").write_text(text)
    return Config.load(tmp_path / "streameval.yaml", {})


def test_the_configuration_defines_the_policies(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert config.policies.candidates == {
        "shadow": Logged(),
        "even": Uniform(),
        "mine": FAVOURITE,
        "soft": Softmax(temperature=2, scores="ranks"),
    }
    assert config.event_format().policies == ("shadow",)
    assert config.event_format().scores == ("ranks",)
    assert config.evaluator().policies == ("logging", "shadow", "even", "mine", "soft")


def test_contexts_are_decoded_only_for_policies_that_look_at_them(tmp_path: Path) -> None:
    plain = configured(tmp_path, "policies: {candidates: {even: uniform, shadow: logged}}")
    assert plain.event_format().scores is None
    assert plain.event_format().decode_batch([choice()]).raw_fields is None
    assert configured(tmp_path).event_format().decode_batch([choice()]).raw_fields is not None


@pytest.mark.parametrize(
    ("candidates", "complaint"),
    [
        ("{a: unifrm}", "policies.candidates.a (line 1): expected one of logged, uniform, first, epsilon_greedy"),
        ("{a: {kind: epsilon_greedy}}", "policies.candidates.a.epsilon (line 1): missing"),
        ("{a: {kind: softmax, temperature: 0}}", "a.temperature (line 1): expected a number greater than 0, found 0"),
        ("{a: {kind: python, target: thing}}", "a.target (line 1): expected package.module:factory, found 'thing'"),
        ("{a: {kind: python, target: 'no.such:f'}}", "a.target (line 1): the module no.such cannot be imported"),
        ("{logging: uniform}", "policies.candidates.logging (line 1): expected the name of a policy"),
        ("{}", "policies.candidates (line 1): expected a mapping that is not empty, found an empty mapping"),
    ],
)
def test_a_problem_with_a_policy_has_its_path(tmp_path: Path, candidates: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(tmp_path, f"policies: {{candidates: {candidates}}}")
    assert complaint in caught.value.message


def test_replay_names_the_failed_policy_and_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "log.ndjson"
    log.write_bytes(b"\n".join([choice(ranks=[1, 2, 3]), choice(context={}, ranks=[1, 2, 3])]))
    replay = Replay(configured(tmp_path))
    complaints = "\n".join(replay.warnings(replay.read([str(log)]))).splitlines()
    assert "warning: the policy 'mine' has no distribution for 1 event" in complaints
    assert any(complaint.startswith("  raised  e.g. KeyError: 'likes'") for complaint in complaints)
    assert any(complaint.endswith(", first at event 2") for complaint in complaints)
    assert "warning: no event has a probability of the policy 'shadow'" in complaints


def test_the_daemon_counts_and_logs_the_failures_of_policies() -> None:
    policies = {"mine": FAVOURITE}
    source = ListSource([[Records("t", 0, range(2), [choice(), choice(context={})])]])
    daemon = Daemon(source, reading(policies), Evaluator(policies), stop_when_exhausted=True)
    with structlog.testing.capture_logs() as logs:
        daemon.run()
    failed = [log for log in logs if log["event"] == "policy_failed"]
    assert [(entry["policy"], entry["reason"], entry["count"]) for entry in failed] == [("mine", "raised", 1)]
    page = metrics_text(daemon.published).decode()
    assert 'streameval_policy_failures_total{policy="mine",reason="raised"} 1' in page
    assert 'streameval_policy_events_missing_total{policy="mine"} 1' in page


def test_a_function_is_a_candidate() -> None:
    def favourite(decisions: Decisions) -> list[list[float]]:
        liked = [context["likes"] for context in decisions.contexts]
        return [
            [0.6 if action == best else 0.4 / (len(actions) - 1) for action in actions]
            for best, actions in zip(liked, decisions.actions, strict=True)
        ]

    events = [choice(), choice(context={}), choice()]
    evaluator, twin = (Evaluator({"p": policy}, ["ips"], ["cumulative"]) for policy in (favourite, FAVOURITE))
    for one in (evaluator, twin):
        one.update(JsonDecoder([], scores=()).decode_batch(events))
    own, others = (one.report().get("p", "ips", "cumulative") for one in (evaluator, twin))
    assert (own.value, own.lower) == (others.value, others.lower)
    (failure,) = counts(evaluator.report(), "p").failures
    assert failure.example.startswith("KeyError: 'likes'")
    assert failure.example.endswith(", first at event 2")
    continued = Evaluator.from_state(evaluator.state(), candidates={"p": favourite})
    assert continued.report().get("p", "ips", "cumulative") == own
    with pytest.raises(StateError, match="the state holds the policy 'p', which is code"):
        Evaluator.from_state(evaluator.state(), candidates={"p": lambda decisions: decisions.contexts})
