"""Load streameval.yaml, and explain what is wrong in one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from pydantic import SecretStr, TypeAdapter

from streameval.common.problems import one_of
from streameval.config.loading import parse_yaml
from streameval.config.memory import usable_memory
from streameval.config.model import Config, StateSettings
from streameval.config.removed import REMOVED, without_removed
from streameval.errors import ConfigError
from streameval.events import EventBatch
from streameval.ingest.files.source import FileSettings
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.simulated import SimulatedSettings
from streameval.ope.candidates import AnyPolicy
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Window
from streameval.ope.estimators import CAB, IPS, SNIPS, AnyEstimator, ClippedIPS
from streameval.ope.evaluator.drift_detection import DriftDetector
from streameval.ope.evaluator.estimated_propensity import FOR_ESTIMATES
from streameval.ope.intervals import EmpiricalBernstein, Normal
from streameval.ope.promotion import Promotion
from support.paths import ROOT

DEPLOYED = ROOT / "streameval" / "config" / "streameval.yaml"
ANNOTATED = DEPLOYED.read_text()

FROM_THE_DOCUMENTATION = """
source: {kind: kafka, bootstrap_servers: "localhost:9092", topic: interactions, start: earliest}
policies:
  production: logging              # or the name of a policy; `logging` is reserved
  candidates: [challenger-a, challenger-b]
reward: {min: 0, max: 1}
estimators: [ips, snips, {kind: clipped_ips, cap: 10}, {kind: cab, cap: auto}]
averages: [cumulative, {kind: window, tau: 10000}, {kind: decay, alpha: 0.9999}, adaptive_window, adaptive_decay]
intervals: {cumulative: normal}
confidence: 0.95
promotion: {rule: periodic, min_events: 10000, margin: 0.0}
http: {host: 127.0.0.1, port: 9108}
state: {dir: ./streameval-state, interval: 30s}
"""


ONE = "policies: {candidates: [a]}\n"
"""Minimum of every configuration. Text after it starts in line 2."""


KINDS = [cls.__pydantic_fields__["kind"].default for cls in AnyEstimator.__origin__.__args__]  # type: ignore[attr-defined]


class Loader:
    """Write a configuration and load it, with its own environment."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "streameval.yaml"

    def __call__(self, text: str, **environment: str) -> Config:
        self.path.write_text(text)
        return Config.load(self.path, environment)

    def complaint(self, text: str, **environment: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self(text, **environment)
        return caught.value.report().replace(f"{self.path}", "streameval.yaml")


@pytest.fixture
def load(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


def test_the_file_of_the_documentation_loads(load: Loader) -> None:
    config = load(FROM_THE_DOCUMENTATION)
    assert isinstance(config.source, KafkaSettings)
    assert config.source.topic == "interactions"
    assert config.policies.candidates == ["challenger-a", "challenger-b"]
    assert config.estimators == (IPS(), SNIPS(), ClippedIPS(cap=10), CAB(cap="auto"))
    assert config.averages == (Cumulative(), Window(tau=10_000), Decay(alpha=0.9999), AdaptiveWindow(), AdaptiveDecay())
    assert config.intervals == {"cumulative": Normal()}
    assert config.state.interval == 30.0
    assert config.kept_state() == config.state
    assert config.promotion == Promotion()
    (problem,) = config.doubts()
    assert problem.text() == "promotion: the rule periodic cannot promote: no unbiased estimator is on a mixture"


def test_a_named_drift_detector_without_a_fixed_range_is_doubted(load: Loader) -> None:
    auto = ONE + "reward: {max: auto, quantile: 0.99}\n"
    (problem,) = load(auto + "drift: ADWIN").doubts()
    assert problem.text() == "drift: it needs a fixed range of reward, which has max: auto"
    assert not [*load(auto).doubts(), *load(auto + "drift: off").doubts(), *load(ONE + "drift: ADWIN").doubts()]


def test_candidates_are_all_that_a_replay_needs(load: Loader) -> None:
    config = load("policies: {candidates: [challenger]}")
    assert config.source is None
    assert (config.http.host, config.http.port, config.confidence) == ("127.0.0.1", 9108, 0.95)


PUBLISHED = ["cumulative", "window", "decay", "adaptive_window", "adaptive_decay"]


def planned(config: Config) -> list[tuple[list[str], list[str]]]:
    """Return the labels of estimators and averages, for each product of them."""
    return [
        ([estimator.label for estimator in estimators], [average.label for average in averages])
        for estimators, averages in config.evaluator_config().products
    ]


BEST = ["stratified_ips", "stratified_dr"]


def test_defaults_are_published_and_best_estimators(load: Loader) -> None:
    assert planned(load(ONE)) == [(["ips", "snips"], PUBLISHED), (BEST, ["mixture"])]


def test_one_list_leaves_the_other_at_its_defaults(load: Loader) -> None:
    estimators = load(ONE + "estimators: [control_variate]")
    assert planned(estimators) == [(["control_variate"], [*PUBLISHED, "mixture"])]
    averages = load(ONE + "averages: [window]")
    assert planned(averages) == [(["ips", "snips", *BEST], ["window"])]


def test_default_intervals_are_replaced_by_name(load: Loader) -> None:
    def kinds(config: Config) -> list[str]:
        plan = config.evaluator_config()
        return [plan.interval(average).kind for _, averages in plan.products for average in averages]

    assert kinds(load(ONE)) == ["empirical_likelihood"] * 5 + ["drift_aware"]
    assert kinds(load(ONE + "averages: [mixture]\nintervals: {mixture: normal}")) == ["normal"]


@pytest.mark.parametrize(
    ("written", "detector"),
    [
        ("", DriftDetector("ADWIN")),
        ("drift: off", None),
        ("drift: PageHinkley", DriftDetector("PageHinkley")),
        ("drift: {detector: KSWIN, window_size: 50}", DriftDetector("KSWIN", {"window_size": 50})),
        ("drift: {delta: 0.01}", DriftDetector("ADWIN", {"delta": 0.01})),
    ],
)
def test_drift_detectors_have_names_and_parameters_of_river(
    load: Loader, written: str, detector: DriftDetector | None
) -> None:
    assert load(ONE + written).drift == detector
    assert load(ONE + written).evaluator_config().drift == detector


def test_a_source_without_a_kind_is_a_kafka_topic(load: Loader) -> None:
    assert load("source: {topic: clicks}\npolicies: {candidates: [a]}").required_source() == KafkaSettings(
        topic="clicks"
    )
    file = load("source: {kind: file, path: log.ndjson}\npolicies: {candidates: [a]}").required_source()
    assert file == FileSettings(path=["log.ndjson"])
    simulated = load("source: {kind: simulated, rate: 0}\npolicies: {candidates: [a]}").required_source()
    assert simulated == SimulatedSettings(rate=0)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("source: {topic: clicks}", "clicks"),
        ("source: {kind: file, path: logs/home.2026.ndjson.gz}", "home"),
        ("source: {kind: file, path: '-'}", "file"),
        ("source: {kind: simulated}", "simulated"),
        ("source: {topic: clicks}\nname: home", "home"),
    ],
)
def test_a_daemon_is_named_after_its_source_unless_it_has_a_name(load: Loader, text: str, name: str) -> None:
    assert load(f"{text}\n{ONE}").daemon_name == name


def test_a_missing_source_is_reported(load: Loader) -> None:
    with pytest.raises(ConfigError, match="source: expected a mapping of options, found nothing"):
        load("policies: {candidates: [a]}").required_source()


def test_the_evaluator_has_the_configured_policies_and_averages(load: Loader) -> None:
    config = load("policies: {candidates: [a, b], production: p}\naverages: [cumulative]\nreward: {min: -1, max: 2}")
    assert config.evaluator().policies == ("p", "a", "b")
    assert config.evaluator().config.reward_range == (-1.0, 2.0)


def test_decoder_knows_policies_and_reward(load: Loader) -> None:
    config = load("policies: {candidates: [a], production: p}\nreward: {field: revenue, min: 0, max: 50}")
    event = (
        b'{"event_id": "1", "timestamp": 1, "action": "x", "propensity": 0.5, "revenue": 20, '
        b'"policies": {"a": 0.25, "p": 1, "z": 0}}'
    )
    batch = config.event_format().decode_batch([event])
    assert batch.policies == ("p", "a")
    assert batch.reward.tolist() == [20.0]
    assert batch.probabilities.tolist() == [[1.0, 0.25]]


def test_one_kind_may_be_configured_twice_under_two_names(load: Loader) -> None:
    config = load(
        """
policies: {candidates: [a]}
averages: [{kind: window, name: short, tau: 500}, {kind: window, name: long, tau: 50000}]
intervals: {long: {kind: empirical_bernstein, max_weight: 20}}
"""
    )
    assert [average.label for average in config.averages] == ["short", "long"]
    assert config.intervals == {"long": EmpiricalBernstein(max_weight=20)}


LOGIN = "security_protocol: SASL_SSL, sasl_username: me, sasl_password: x"
ONE_TOPIC = (
    "one daemon evaluates one topic, found {}\n"
    "hint: start a second one for the other topic, with a `name` of its own: deploy/README.md, Several"
)
PROBLEMS = {
    # --- no YAML ---
    "- a": "streameval.yaml: expected a mapping of options, found a list\nhint: start with `policies: ",
    "policies:\n\tcandidates: [a]": "streameval.yaml:2:1: invalid YAML: found character '\\t' that cannot start any",
    "policies: {candidates: [a}": "streameval.yaml:1:26: invalid YAML: expected ',' or ']', but got '}'\n"
    "hint: check indentation, ",
    "http:\n  port: 1\n  port: 2": "streameval.yaml:4:3: the key 'port' is also in line 3\nhint: keep one of the two",
    "a: 1\n---\nb: 2": "streameval.yaml:3:1: a second document starts here",
    "a: &x [*x]": "streameval.yaml:2:8: aliases (*name) are not supported",
    "a: !!python/name:os.system": "streameval.yaml:2:4: tags (!name) are not supported",
    "{a: 1}: 2": "streameval.yaml:2:1: a key must be plain text",
    "a: \x00": "streameval.yaml is not YAML: unacceptable character #x0000",
    "a: " + "[" * 1000: "streameval.yaml is not YAML: maximum recursion",
    # --- policies ---
    "": "streameval.yaml: 1 problem\n\npolicies: missing\nhint: write policies: {candidates: [NAME]}",
    "policies: [a]": "policies (line 1): expected a mapping of options, found ['a']\n"
    "hint: write policies: {candidates: [NAME]}",
    "policies: {candidates: a}": "policies.candidates (line 1): expected a list, found 'a'\nhint: the candidates by th",
    "policies: {candidates: []}": "policies.candidates (line 1): expected a list that is not empty, found []\nhint: ",
    "policies: {candidates: [a, 7]}": "policies.candidates.1 (line 1): expected text, found 7\n"
    'hint: put it in quotes: "7"',
    "policies: {candidates: [a, b, a]}": "policies.candidates.2 (line 1): expected each policy once, found 'a' again\n"
    "hint: remove one of the two",
    "policies: {candidates: [a, logging]}": "policies.candidates.1 (line 1): expected the name of a policy, found "
    "'logging'\nhint: 'logging' is reserved for the policy that made the log; it is estimated as production",
    "policies: {candidates: [a, p], production: p}": "policies.candidates.1 (line 1): expected another policy than "
    "production, found 'p'\nhint: production is estimated anyway: remove it here",
    "policies: {candidates: ['say \"a\"']}": "policies.candidates.0 (line 1): expected a name without quotes, "
    "backslashes and control characters, found 'say \"a\"'\n"
    "hint: a policy has the same name in events, configuration and metrics: give it a plain one",
    "policies: {candidates: [a], production: 'b\\c'}": "policies.production (line 1): expected a name without quotes, "
    "backslashes and control characters, found 'b\\\\c'\n",
    "policies: {candidates: {a: unifrom}}": "found 'unifrom'\nhint: did you mean 'uniform'?",
    "policies: {candidates: {a: {kind: python, target: 'absent:f'}}}": "target (line 1): the module absent cannot be i",
    "policies: {candidates: {a: {kind: python, target: json}}}": "expected package.module:factory, found 'json'\nhint:",
    "policies: {candidates: {a: {kind: python, target: 'json:f'}}}": "the module json has no function f\nhint: write",
    # --- what is estimated ---
    "confidnce: 0.9": f"confidnce (line 2): expected {one_of(Config.model_fields)}, found the unknown key 'confidnce'\n"
    "hint: did you mean 'confidence'?",
    "confidence: 95": "confidence (line 2): expected a number less than 0.999999999999, found 95\nhint: conf",
    "estimators: [ips, snips, {kind: clipped_ips, cap: -1}]": "streameval.yaml: 1 problem\n\n"
    "estimators.2.cap (line 2): expected a number greater than 0 or auto, found -1\n"
    "hint: clipped_ips: Average `min(w, cap) r`, cap > 0: IPS with capped weights.",
    "estimators: [{kind: clipped_ips, cap: 0}]": "estimators.0.cap (line 2): expected a number greater than 0 or auto",
    "estimators: [{kind: clipped_ips}]": "estimators.0.cap (line 2): missing",
    "estimators: [{kind: clipped_ips, cup: 3}]": "found the unknown key 'cup'\nhint: did you mean 'cap'?",
    "estimators: [ips, snpis]": f"estimators.1 (line 2): expected {one_of(KINDS)}, found 'snpis'\n"
    "hint: did you mean 'snips'?",
    "estimators: [{kind: inverse_gambling, threshold: 5}]": f"estimators.0 (line 2): expected {one_of(KINDS)}, found "
    "'inverse_gambling'",
    "estimators: [{cap: 10}]": f"estimators.0.kind (line 2): expected {one_of(KINDS)}, found nothing",
    "estimators: ips": "estimators (line 2): expected a list, found 'ips'\n"
    "hint: a list of names and mappings, e.g. [ips, ",
    "estimators: [ips, {kind: clipped_ips, cap: 2}, {kind: clipped_ips, cap: 3}]": "estimators.2 (line 2): expected "
    "its own label, found 'clipped_ips', the label of estimators.1\nhint: give each a name: {kind: ",
    "averages: []": "averages (line 2): expected a list that is not empty, found []",
    "averages: [window, {kind: window, tau: 3}]": "averages.1 (line 2): expected its own label, found 'window', the "
    "label of averages.0",
    "averages: [cumulativ]": "found 'cumulativ'\nhint: did you mean 'cumulative'?",
    "averages: [{kind: window, tau: 0}]": "averages.0.tau (line 2): expected a number greater than 0, found 0\nhint: ",
    "averages: [{kind: window, span: 5 parsecs}]": "expected a duration such as 30s, 5m or 1h30m, found '5 parsecs'\n",
    "averages: [{kind: window, tau: 900, resolution: 33}]": "averages.0 (line 2): resolution 33 neither divides the "
    "block of 100 events nor is a multiple of it\n",
    "averages: [{kind: decay, half_life: -5}]": "expected a number of events greater than 0, or a duration such as 30m",
    "averages: [{kind: decay, alpha: 0.9, half_life: 5}]": "averages.0 (line 2): give either alpha or half_life, "
    "not both\nhint: ",
    "intervals: {windw: normal}": "intervals.windw (line 2): expected one of cumulative, window, decay, "
    "adaptive_window, adaptive_decay or mixture, found 'windw'\nhint: did you mean 'window'?",
    "intervals: {window: norml}": "found 'norml'\nhint: did you mean 'normal'?",
    "intervals: {mixture: {kind: normal, drift: include}}": "intervals.mixture (line 2): the average 'mixture' does "
    "not measure drift: its interval cannot",
    "intervals: {window: drift_aware}": "intervals.window (line 2): drift_aware is the interval of a mixture; "
    "'window' is of another kind",
    "intervals: {mixture: empirical_bernstein}": "intervals.mixture (line 2): 'mixture' is a mixture, which has no "
    "largest term: empirical_bernstein",
    "drift: AWDIN": "drift (line 2): there is no drift detector 'AWDIN'; there are ADWIN, KSWIN, PageHinkley\nhint: ",
    "drift: {detector: ADWIN, dleta: 0.1}": "drift (line 2): ADWIN has no parameter dleta; it has delta, ",
    "drift: {detector: ADWIN, delta: much}": "drift (line 2): ADWIN cannot be made with {'delta': 'much'}: ",
    "drift: 7": "drift (line 2): the drift detector must be a name or a mapping of options, found 7",
    "promotion: payred": "promotion.rule (line 2): expected one of periodic, paired, anytime, sea or bsea, found "
    "'payred'\nhint:",
    "promotion: {min_events: -1}": "promotion.min_events (line 2): expected a number greater than or equal to 0, found",
    "promotion: {trust: {rejected_share: 2}}": "promotion.trust.rejected_share (line 2): expected a number less than",
    "promotion: {trust: {stale_after: 3 parsecs}}": "promotion.trust.stale_after (line 2): expected a duration such as",
    "promotion: {treshold: 1}": "promotion.treshold (line 2): expected one of rule, min_events",
    "promotion: {rule: [{kind: anytime, tau: 50}]}": "promotion.rule (line 2): tau must be a block of 100 events",
    "promotion: {rule: [{kind: anytime, tau: 500}, anytime]}": "promotion.rule (line 2): anytime is configured twice",
    "promotion: {rule: [paired, {kind: sea, tau: 5000}]}": "promotion.rule.1.tau (line 2): expected one of name, kind",
    "promotion: {rule: [paired, {kind: sea, max_weight: 0}]}": "promotion.rule.1.max_weight (line 2): expected a",
    "reward_model: rigde": "found 'rigde'\nhint: did you mean 'ridge'?",
    "reward: {min: 1, max: 1}": "reward.max (line 2): expected a number greater than min (1), found 1\nhint: gi",
    "reward: {max: many}": "reward.max (line 2): expected a number or auto, found 'many'\nhint: the largest",
    "reward: {per: unit}": "reward.per (line 2): a log does not tell how often users come back under a candidate",
    "columns: {propensty: p}": "found the unknown key 'propensty'\nhint: did you mean 'propensity'?",
    "logging: {arms: [a]}": "logging.arms (line 2): expected a list of at least 2, found ['a']\nhint: ",
    # --- several rewards ---
    "rewards: {a: {guardrail: {max_loss: 1}}}": "rewards.a.guardrail",
    "rewards: {a: {}, b: {min: 2}}": "rewards.b.max",
    "rewards: {a: {}}\nreward: {max: 2}": "expected nothing next to `rewards`",
    "rewards: {a: {}}\nranking: {metric: dcg, examination: power}": "expected nothing next to `ranking`, found",
    "rewards: {a: {}, b: {}}\nranking: {metric: dcg, examination: power}": "for several rewards, log pages as `slots`",
    "rewards: {a: {}, b: {}}\nestimators: [scored_ips]": "hint: take a daemon for each metric",
    "rewards: {a: {}}\nsource: {topic: t, rewards: {topic: r}}\nestimators: [iips]": "which needs rewards of slots",
    "rewards: {a: {}}\nsource: {kind: file, path: log, format: dsjson}": "expected one of reward, _label_cost or",
    "rewards: {a: {}, b: {field: p}}\nsource: {kind: file, path: log, format: dsjson}": "p of ds-json cannot be",
    "rewards: {a: {}, b: {field: a}}": "each reward needs its own field",
    "rewards: {a: {}, b: {min: 1, max: 2}}\nsource: {topic: t, rewards: {topic: r}}": "a number from rewards.b.min (1)",
    # --- rankings ---
    "ranking: {metric: mrr}": "ranking.metric (line 2): mrr is not a sum over items",
    "ranking: {examination: {kind: power, eta: -1}}": "ranking.examination.eta",
    "ranking: {metric: dcg}\nestimators: [ips]": "which needs the probabilities of actions",
    "ranking: {metric: dcg}\nreward: {max: 2}": "reward (line 3): expected nothing next to `ranking`",
    "estimators: [click_ips]": "expected an estimator of decisions, found 'click_ips'",
    "source: {kind: simulated, world: rankings}": "ranking: expected a metric of the simulated rankings",
    "ranking: {metric: dcg}\nsource: {kind: file, path: log, format: dsjson}": "expected events in JSON that have",
    # --- estimated propensities ---
    "propensity: estimated\nestimators: [snips, ips]": "an estimator of estimated propensities, found 'ips', which "
    f"needs logged propensities\nhint: take one of {FOR_ESTIMATES}",
    "propensity: estimated\nlogging: {arms: {logging: 0.5, a: 0.5}}": "expected nothing next to `logging`",
    "propensity: estimated\nranking: {metric: dcg, examination: power}": "expected nothing next to `ranking`",
    "propensity: {kind: estimated, model: {kind: tabular, by: [reward]}}": "reward is part of the decision: name a "
    "field that is known before it\nhint: name fields that the logging policy chose by",
    "propensity: {kind: estimated, model: {kind: tabular, by: [action]}}": "action is part of the decision",
    "propensity: {kind: guessed}": "propensity.kind",
    "propensity: estimated\nestimators: [snips]\nsegments: {hour: {values: [0, 1]}}": "segments (line 4)",
    # --- the daemon ---
    "http: {port: 99999}": "http.port (line 2): expected a number less than or equal to 65535, found 99999\n"
    "hint: 0 takes any free port",
    "http: {host: 0.0.0.0}": "because no token is configured, found '0.0.0.0'\n"
    "hint: set http.token_file, or http.insecure",
    "http: {tls_certfile: streameval.yaml}": "http.tls_keyfile (line 2): expected a PEM file, found nothing\nhint: ",
    "state: {interval: soon}": "state.interval (line 2): expected a duration such as 30s, 5m or 1h30m, found 'soon'",
    "state: {interval: '30'}": "state.interval (line 2): expected a duration with its unit, such as",
    "source: {bootstrap_servers: here}": "source.topic (line 2): missing\nhint: the topic whose messages are events",
    "source: {kind: kafca, topic: t}": "found 'kafca'\nhint: did you mean 'kafka'?",
    "source: {topic: [home, search]}": f"source.topic (line 2): {ONE_TOPIC.format(['home', 'search'])}",
    'source: {topic: "home,search"}': f"source.topic (line 2): {ONE_TOPIC.format(repr('home,search'))}",
    "source: {topic: x, start: erliest}": "source.start (line 2): expected one of earliest or latest or a time with "
    "its zone, such as 2026-01-31T00:00:00Z, found 'erliest'\nhint: did you mean 'earliest'?",
    "source: {topic: t, max_lateness: 5}": "source.max_lateness (line 2): expected a duration with its unit, such as",
    "source: {topic: t, bootstrap_servers: 'u:p@h:1'}": "broker addresses contain no user and password; use sasl_user",
    "source: {topic: x, security_protocol: SASL_SSL}": "source (line 2): security_protocol SASL_SSL needs "
    "sasl_mechanism, sasl_username and sasl_password\nhint: ",
    "source: {topic: ''}": "source.topic (line 2): expected text that is not empty, found ''",
    "source: {topic: t, start: 2026-01-01T00:00:00}": "or a time with its zone, such as 2026-01-31T00:00:00Z, found ",
    "source: {topic: t, bootstrap_servers: ' , '}": "bootstrap_servers (line 2): expected a list that is not empty",
    "source: {topic: t, group_id: ''}": "source.group_id (line 2): expected text that is not empty, found ''",
    "source: {topic: t, client: librdkafka}": "expected one of kafka-python or confluent, found 'librdkafka'",
    "source: {topic: t, client: confluent, max_poll_records: 2000000}": "needs a max_poll_records from 1 to 1000000",
    "source: {topic: t, sasl_username: me}": "sasl_* settings have no effect unless security_protocol is",
    f"source: {{topic: t, {LOGIN}, sasl_mechanism: OAUTHBEARER}}": "OAUTHBEARER and sasl_oauth_url need each other",
    f"source: {{topic: t, {LOGIN}, sasl_mechanism: PLAIN, sasl_oauth_url: 'https://i/t'}}": "need each other",
    "source: {topic: t, sasl_oauth_url: identity/token}": "sasl_oauth_url (line 2): expected text, found 'identity/tok",
    "source: {topic: t, sasl_oauth_url: 'https://me:s@i/t'}": "sasl_oauth_url (line 2): expected text, found 'https://***@",
    "source: {topic: t, sasl_oauth_scope: kafka}": "sasl_oauth_scope has no effect without sasl_oauth_url",
    "source: {topic: t, security_protocol: SSL, ssl_cafile: none.pem}": "expected a file that exists, found 'none.pem'",
    "source: {topic: t, security_protocol: SSL, ssl_keyfile: streameval.yaml}": "ssl_password require ssl_certfile",
    "source: {topic: t, security_protocol: SSL, ssl_password: x}": "ssl_keyfile and ssl_password require ssl_certfile",
    "source: {topic: t, ssl_cafile: streameval.yaml}": "ssl_* settings have no effect unless security_protocol is",
    "source:\n  topic: x\n  client_options: {fetch_min_bytes: 10, isolation_level: none}": "source.client_options "
    "(line 4): 'isolation_level' cannot be changed: the guarantees of streameval depend",
    "source: {topic: t, rewards: {topic: r}, candidates: {topic: r}}": "rewards and candidates must be in another "
    "topic than the decisions, each in its own\nhint: ",
    "source: {topic: t, candidates: {topic: s}, order: arrival}": "candidates are joined in event time: order",
    "source: {topic: t, rewards: {topic: t}}": "rewards must be in another topic than the decisions\nhint: ",
    "source: {topic: t, rewards: {topic: r, default: -1}}": "expected a number from reward.min (0) to reward.max (1)",
    "source: {topic: t, format: avro}": "expected one of json or dsjson, found 'avro'\nhint: how events are encoded",
    "source: {topic: t, format: {kind: avro}}": "source.format.registry (line 2): missing\nhint: ",
    "source: {topic: t, format: {kind: avor, registry: 'http://h'}}": "found 'avor'\nhint: did you mean 'avro'?",
    "source: {topic: t, format: {kind: avro, schemas: /none}}": "expected a folder that exists, found '/none'",
    "source: {topic: t, format: {kind: avro, registry: 'h:1'}}": "expected text, found 'h:1'\nhint: the URL of the sc",
    "source: {topic: t, format: {kind: avro, registry: 'http://h', user: u}}": "found the unknown key 'user'\nhint: ",
    "source: {topic: t, format: {kind: avro, registry: 'http://h', username: u}}": "username and password belong toget",
    "source: {kind: file, path: log.parquet}": "expected NDJSON or CSV, and log.parquet is Parquet; `streameval produ",
    "source: {kind: file, path: [log.csv, log.ndjson]}": "expected files of one format, and log.csv is ",
    "source: {kind: file, path: log.feather}": "log.feather is Arrow; `streameval produce` sends its rows",
    "source: {kind: file, path: log.csv, format: json}": "expected files of one format, and log.csv is CSV",
    "source: {kind: file, path: 's3://b/log', follow: true}": "expected a local file to follow, and s3://b/log is an a",
    "source: {kind: file, path: log.csv, policies_of: {v7: [a]}}": "policies_of names lists in events of JSON",
    "source: {kind: file, path: log, policies_of: {v7: [a, b, a]}}": "policies_of.v7 contains a name twice",
    "source: {kind: file, path: log, policies_of: {v7: []}}": "policies_of.v7 (line 2): expected a list that is not em",
    "source: {kind: python, target: module.function}": "source.target (line 2): expected text, found 'module.function'",
    "source: {kind: simulated, candidates: [a, a]}": "candidates must have different names",
    "source: {kind: simulated, candidates: [logging]}": "none may be called logging",
    "source: {kind: simulated, candidates: 0}": "source.candidates (line 2): expected a list that is not empty",
    "source: {kind: simulated, rate: -1}": "source.rate (line 2): expected a number greater than or equal to 0",
    "source: {kind: simulated, events: 0}": "source.events (line 2): expected a number greater than 0, found 0",
    "source: {kind: simulated, drift: sideways}": "expected one of smooth, abrupt or stationary, found 'sideways'",
    "source: {kind: simulated, cycle: {amplitude: 1.0}}": "amplitude (line 2): expected a number less than 1, found",
    "source: {kind: simulated, cycle: {amplitude: -0.1}}": "expected a number greater than or equal to 0, found -0.1",
    "source: {kind: simulated, cycle: {period: 0h}}": "expected a duration longer than 0, such as 30m, found '0h'",
    "source: {topic: t}\ndead_letters: {kind: kafka, topic: t}": "expected a topic that is not read, found 't'\nhint: ",
    "source: {kind: simulated}\ndead_letters: {kind: kafka, topic: t}": "expected 'file', because the source is not a",
    "dead_letters: rejected.ndjson": "dead_letters (line 2): expected a mapping of options, found 'rejected.ndjson'\nh",
    "dead_letters: {kind: kafak, topic: x}": "dead_letters (line 2): expected one of file or kafka, found 'kafak'\n"
    "hint: did you mean 'kafka'?",
}
"""Part of the report on each file. Those that do not start with policies follow after `ONE`."""


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_problem_has_its_place_what_was_expected_and_a_hint(
    load: Loader, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(load.path.parent)
    is_whole = not text or text.startswith(("policies", "-"))
    report = load.complaint(text if is_whole else ONE + text)
    assert report.startswith("streameval.yaml")
    assert PROBLEMS[text] in report
    assert "\nhint: " in report


def test_all_problems_are_reported_at_once(load: Loader) -> None:
    report = load.complaint(ONE + "http: {port: x}\nconfidence: 2\nestimatrs: [ips]")
    assert report.startswith("streameval.yaml: 3 problems\n\n")
    paths = ["confidence (line 3)", "http.port (line 2)", "estimatrs (line 4)"]
    assert [line.split(": ")[0] for line in report.splitlines() if " expected " in line] == paths
    assert report.count("\nhint: ") == 3
    assert report.splitlines()[-1] == "hint: did you mean 'estimators'?"


def test_a_password_is_never_shown(load: Loader) -> None:
    text = ONE + "source: {topic: x, sasl_password: 12345, ssl_password: [hunter2]}"
    report = load.complaint(text)
    assert "source.sasl_password (line 2): expected text, found a hidden value\nhint: put it in quotes\n" in report
    assert "source.ssl_password (line 2): expected text, found a hidden value" in report
    assert "12345" not in report
    assert "hunter2" not in report
    assert "12345" not in load.complaint(ONE + "source: {topic: x, sasl_password: '12345'}")


def test_environment_variables_override_the_file(load: Loader) -> None:
    config = load(
        ONE + "source: {topic: x, sasl_username: me}\nhttp: {port: 1}",
        STREAMEVAL_SOURCE__TOPIC="y",
        STREAMEVAL_SOURCE__SECURITY_PROTOCOL="SASL_SSL",
        STREAMEVAL_SOURCE__SASL_MECHANISM="PLAIN",
        STREAMEVAL_SOURCE__SASL_PASSWORD="[1]",
        STREAMEVAL_SOURCE__MAX_LATENESS="45s",
        STREAMEVAL_HTTP__PORT="9200",
        STREAMEVAL_CONFIDENCE="0.9",
        STREAMEVAL_ESTIMATORS="[snips, {kind: clipped_ips, cap: 5}]",
        STREAMEVAL_STATE__INTERVAL="1m",
    )
    source = config.required_source()
    assert isinstance(source, KafkaSettings)
    assert (source.topic, source.sasl_username, source.sasl_password) == ("y", "me", SecretStr("[1]"))
    assert source.max_lateness == 45.0
    assert (config.http.port, config.confidence) == (9200, 0.9)
    assert config.estimators == (SNIPS(), ClippedIPS(cap=5))
    assert config.state == StateSettings(interval=60.0)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("source: {topic: x}", True),
        ("source: {topic: x}\nstate: off", False),
        ("source: {topic: x}\nstate: {dir: null}", False),
        ("source: {kind: simulated}", False),
        ("source: {kind: simulated}\nstate: {dir: here}", True),
        (f"source: {{kind: file, path: {__file__}}}", False),
        (f"source: {{kind: file, path: {__file__}, follow: true}}\nstate: {{}}", True),
    ],
)
def test_state_is_kept_by_default_for_topics_only(load: Loader, text: str, kept: bool) -> None:
    assert (load(ONE + text).kept_state() is not None) == kept


def test_a_problem_in_a_variable_names_the_variable(load: Loader) -> None:
    report = load.complaint(ONE + "http: {port: 1}", STREAMEVAL_HTTP__PORT="x", STREAMEVAL_SORCE__TOPIC="y")
    assert "http.port (STREAMEVAL_HTTP__PORT): expected a whole number, found 'x'" in report
    assert "sorce (STREAMEVAL_SORCE__TOPIC): expected one of " in report
    assert report.endswith("hint: did you mean 'source'?")


def test_variables_that_only_share_the_prefix_are_left_alone(load: Loader) -> None:
    config = load(
        "policies: {candidates: [a]}",
        STREAMEVAL_PORT="tcp://10.0.0.7:9108",
        STREAMEVAL_SERVICE_HOST="10.0.0.7",
        STREAMEVAL_TEST_KAFKA="localhost:9092",
        STREAMEVAL_TEST="1",
    )
    assert config.http.port == 9108


def test_the_process_environment_is_read_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("policies: {candidates: [a]}")
    monkeypatch.setenv("STREAMEVAL_HTTP__PORT", "4321")
    assert Config.load(path).http.port == 4321


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the configuration .*absent\.yaml does not exist") as caught:
        Config.load(tmp_path / "absent.yaml", {})
    assert caught.value.exit_code == 2
    assert "`streameval init`" in caught.value.hint


def test_a_directory_and_bytes_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Config.load(tmp_path, {})
    (tmp_path / "latin.yaml").write_bytes("reward: {field: größe}".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.yaml is not UTF-8 text \(byte 18\)"):
        Config.load(tmp_path / "latin.yaml", {})


def test_plain_yaml_values_have_the_types_that_they_look_like() -> None:
    values = parse_yaml(
        "[no, on, 1:30, 2026-01-31, 1e-5, 5, .5, .inf, true, ~, '7', 0o7, True, 1_000, 0x1F]".join(["a: ", ""]), "x"
    ).values
    assert values["a"] == [
        "no",
        "on",
        "1:30",
        "2026-01-31",
        1e-5,
        5,
        0.5,
        float("inf"),
        True,
        None,
        "7",
        "0o7",
        *("True", "1_000", "0x1F"),
    ]


# --- The annotated file ---


def section_of(name: str) -> str:
    """Return the paragraphs of the annotated file about a section."""
    return "\n".join(part for part in ANNOTATED.split("\n\n") if re.search(rf"^#?{name}:", part, re.MULTILINE))


def uncommented(name: str) -> list[Any]:
    """Return the values that commented lines would set a section to, one for each alternative."""
    blocks = re.findall(rf"^#{name}:.*\n(?:#  .*\n)*", f"{section_of(name)}\n", re.MULTILINE)
    return [parse_yaml(re.sub("^#", "", block, flags=re.MULTILINE), "x").values[name] for block in blocks]


def keys_below(schema: Any, definitions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of all options that a JSON Schema allows, at any depth."""
    if isinstance(schema, dict):
        name = schema.get("$ref", "").rpartition("/")[2]
        inner = [definitions[name]] if name else []
        inner += [*schema.get("oneOf", ()), *schema.get("anyOf", ()), schema.get("items")]
        yield from schema.get("properties", ())
        for value in (*inner, schema.get("additionalProperties"), *schema.get("properties", {}).values()):
            yield from keys_below(value, definitions)


def test_the_annotated_file_loads_and_changes_nothing() -> None:
    bare = Config.model_validate({"policies": {"candidates": ["challenger"]}, "source": {"topic": "interactions"}})
    assert Config.load(DEPLOYED, {}) == bare


@cache
def schema_of_config() -> dict[str, Any]:
    return without_removed(Config.model_json_schema())


@pytest.mark.parametrize("section", Config.model_fields)
def test_the_annotated_file_shows_every_key_of_a_section(section: str) -> None:
    shown, schema = section_of(section), schema_of_config()
    general = {"kind", "name", "parameters", "detector"}  # every kind has the first two; drift has the detector's own
    keys = {*keys_below(schema["properties"][section], schema["$defs"])} - general
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}:\s", shown)] == []


@pytest.mark.parametrize("section", ["estimators", "averages"])
def test_the_annotated_file_shows_every_kind_with_its_defaults(section: str) -> None:
    (choices,) = uncommented(section)
    kinds: TypeAdapter[Any] = TypeAdapter(get_args(Config.model_fields[section].annotation)[0])
    shown = [{"kind": choice} if isinstance(choice, str) else choice for choice in choices]
    assert_defaults([choice for choice in shown if "name" not in choice], kinds)
    named = {member["properties"]["kind"]["const"] for member in kinds.json_schema()["$defs"].values()}
    assert {choice["kind"] for choice in shown} == named


def test_the_annotated_file_shows_sources_and_reward_models_with_their_defaults() -> None:
    kafka = parse_yaml(ANNOTATED, "x").values["source"]
    assert_defaults([kafka, *uncommented("source")], TypeAdapter(Config.model_fields["source"].rebuild_annotation()))
    models = uncommented("reward_model")
    assert_defaults(models, TypeAdapter(Config.model_fields["reward_model"].rebuild_annotation()))
    assert {model["kind"] for model in models} == {"tabular", "river", "python"}


def test_the_annotated_file_shows_policies_with_their_defaults() -> None:
    comment = re.search(r"^  # (\{challenger: (?:.*\n)+?.*\}\})", section_of("policies"), re.MULTILINE)
    assert comment is not None
    policies = parse_yaml(re.sub(r"^  #", "", f"x: {comment[1]}", flags=re.MULTILINE), "x").values["x"]
    mappings = [policy for policy in policies.values() if isinstance(policy, dict)]
    for policy in mappings:
        assert policy.pop("file", None) is None
    assert_defaults(mappings, TypeAdapter(AnyPolicy))


def assert_defaults(shown: list[dict[str, Any]], kinds: TypeAdapter[Any]) -> None:
    """Require that every option shown has its default, unless it has none."""
    for choice in shown:
        made = kinds.validate_python(choice)
        fields = type(made).__pydantic_fields__
        required = {key: value for key, value in choice.items() if key == "kind" or fields[key].is_required()}
        assert made == kinds.validate_python(required)


# --- Removed options ---


@pytest.mark.parametrize("path", REMOVED)
def test_removed_option_is_refused_with_reason_and_replacement(load: Loader, path: str) -> None:
    document: Any = 1
    for step in reversed(path.split(".")):
        document = {step: document} if step != "*" else {"x": document} if "candidates" in path else [document]
    report = load.complaint(json.dumps(document))
    option = REMOVED[path]
    assert f": this option was removed: {option['reason']}\nhint: remove it: {option['instead']}" in report
    assert report.count("this option was removed") == 1


def test_removed_option_in_environment_is_refused(load: Loader) -> None:
    report = load.complaint(ONE + "source: {topic: x}", STREAMEVAL_SOURCE__STALL_TIMEOUT="45")
    assert "source.stall_timeout (STREAMEVAL_SOURCE__STALL_TIMEOUT): this option was removed: " in report


def test_removed_option_does_not_hide_other_problems(load: Loader) -> None:
    report = load.complaint(ONE + "promotion: {tau: 3, margin: much}")
    assert "2 problems" in report
    assert "promotion.margin (line 2): expected a number, found 'much'" in report


@pytest.mark.parametrize(
    ("text", "rules"),
    [("sea", ("sea",)), ("[paired, anytime]", ("paired", "anytime")), ("{rule: [bsea, bsea]}", ("bsea",))],
)
def test_promotion_is_a_rule_or_several_or_a_mapping(load: Loader, text: str, rules: tuple[str, ...]) -> None:
    config = load(f"policies: {{candidates: [challenger]}}\npromotion: {text}")
    assert config.promotion is not None
    assert tuple(rule.label for rule in config.promotion.rules) == rules
    assert config.evaluator_config().promotion == config.promotion
    assert list(config.doubts()) == []


def test_promotion_may_be_off(load: Loader) -> None:
    config = load("policies: {candidates: [challenger]}\npromotion: off")
    assert config.evaluator_config().promotion is None
    assert config.evaluator().report().promotion == ()


@pytest.mark.parametrize(
    "joined",
    [
        "rewards: {topic: clicks, window: 24h}",
        "candidates: {topic: scores, window: 24h}",
        "rewards: {topic: clicks, window: 1h}, candidates: {topic: scores, window: 24h}",
    ],
)
def test_events_that_wait_for_their_rewards_or_scores_are_not_stale(load: Loader, joined: str) -> None:
    """Allow for the window: however fresh the log is, the newest event that can count is as old."""
    policies = "policies: {candidates: [challenger]}"
    source = f"source: {{kind: kafka, topic: shown, {joined}}}"
    for trust, allowed in (("", 25 * 3600.0), ("promotion: {trust: {stale_after: 30m}}", 24.5 * 3600.0)):
        promotion = load("\n".join([source, policies, trust])).evaluator_config().promotion
        assert promotion is not None
        assert promotion.trust.stale_after == allowed
    never = load("\n".join([source, policies, "promotion: {trust: {stale_after: null}}"])).evaluator_config().promotion
    assert never is not None
    assert never.trust.stale_after is None
    assert load("\n".join([source, policies, "promotion: off"])).evaluator_config().promotion is None


def candidates_config(count: int, **sections: Any) -> Config:
    candidates = [f"candidate-{number}" for number in range(count)]
    return Config.model_validate({"source": {"topic": "t"}, "policies": {"candidates": candidates}} | sections)


@pytest.mark.parametrize("candidates", [2, 10_000])
def test_a_state_larger_than_the_memory_is_refused_with_its_size(candidates: int) -> None:
    config = candidates_config(candidates, averages=[{"kind": "window", "tau": 10**11, "resolution": 100}])
    with pytest.raises(ConfigError, match=r"^policies.candidates: the estimates take [\d,.]+ GiB once all"):
        list(config.memory_warnings())


def test_a_state_of_half_the_memory_is_warned_about_with_its_size() -> None:
    def window_config(tau: int) -> Config:
        return candidates_config(2, averages=[{"kind": "window", "tau": tau, "resolution": 100}])

    memory = usable_memory()
    per_event = (window_config(2_000_000).full_bytes() - window_config(1_000_000).full_bytes()) / 1_000_000
    (problem,) = window_config(round(memory / 2 / per_event / 100) * 100).memory_warnings()
    assert f"the estimates take {memory / 2**31:,.1f} GiB once all windows are full" in problem.message


def test_a_state_of_a_usual_size_has_no_warning() -> None:
    assert not list(candidates_config(20).memory_warnings())


def test_the_size_of_a_state_is_known_before_its_windows_are_full() -> None:
    averages = ["cumulative", {"kind": "window", "tau": 20_000, "resolution": 10}]
    config = candidates_config(5, averages=averages, estimators=["ips", "snips"])
    evaluator = config.evaluator()
    expected = config.full_bytes()
    assert evaluator.full_bytes == pytest.approx(expected, rel=1e-3)
    evaluator.update(varied_events(5, 2_000))
    evaluator.fold_pending()
    size = evaluator.full_bytes
    assert size == pytest.approx(expected, rel=1e-3)
    evaluator.update(varied_events(5, 28_000))
    evaluator.fold_pending()
    assert evaluator.full_bytes == pytest.approx(size, rel=0.05)  # the last blocks add to all windows
    assert 0.9 * size < len(msgspec.msgpack.encode(evaluator.state())) < 1.1 * size


@pytest.mark.parametrize("lacking", [0.0, 0.1])
def test_100_candidates_of_a_default_configuration_take_at_most_18_mb(lacking: float) -> None:
    evaluator = candidates_config(100).evaluator()
    evaluator.update(varied_events(100, 2_000, lacking))
    evaluator.fold_pending()
    assert evaluator.full_bytes < 18e6


def varied_events(candidates: int, events: int, lacking: float = 0.0) -> EventBatch:
    """Return events with different rewards.

    Args:
        lacking: Share of the events without a probability of a candidate, drawn for each candidate.
    """
    rng = np.random.default_rng(4)
    target = np.where(rng.random((candidates, events)) < lacking, np.nan, rng.uniform(0.1, 0.5, (candidates, events)))
    policies = {f"candidate-{number}": column for number, column in enumerate(target)}
    return EventBatch.from_arrays(reward=rng.random(events), propensity=np.full(events, 0.5), policies=policies)


SEVERAL = """
policies: {candidates: [challenger]}
rewards: {click: {}, revenue: {field: amount, max: 200}, hide: {min: -1, max: 0, guardrail: {max_loss: 0.001}}}
"""


def test_several_rewards_replace_the_reward(load: Loader) -> None:
    config = load(SEVERAL)
    assert [tuple(field) for field in config.reward_fields] == [
        ("click", "click", 0.0, 1.0),
        ("revenue", "amount", 0.0, 200.0),
        ("hide", "hide", -1.0, 0.0),
    ]
    assert [reward.max_loss for reward in config.evaluator_config().rewards] == [None, None, 0.001]
    event = {"event_id": 1, "timestamp": 0, "action": "a", "propensity": 0.5, "policies": {"challenger": 0.5}}
    messages = [
        event | {"click": 1, "amount": 12.5},
        event | {"hide": -1, "click": None},
        event,
        event | {"amount": 201},
    ]
    batch = config.event_format().decode_batch([json.dumps(message).encode() for message in messages])
    np.testing.assert_array_equal(batch.reward, [1.0, np.nan])
    assert batch.further is not None
    np.testing.assert_array_equal(batch.further.column("revenue"), [12.5, np.nan])
    np.testing.assert_array_equal(batch.further.column("hide"), [np.nan, -1.0])
    assert [rejection.reason for rejection in batch.rejected] == ["missing_field", "reward_range"]


def test_events_with_rewards_that_are_clipped_are_read(load: Loader) -> None:
    config = load(
        "policies: {candidates: [challenger]}\n"
        "rewards: {click: {}, revenue: {max: 200, above: clip}, hide: {below: clip}}"
    )
    event = {"event_id": 1, "timestamp": 0, "action": "a", "propensity": 0.5, "policies": {"challenger": 0.5}}
    rewards = ({"revenue": 900}, {"revenue": -1}, {"hide": -5}, {"hide": 2}, {"click": 2})
    batch = config.event_format().decode_batch([json.dumps(event | reward).encode() for reward in rewards])
    assert [rejection.detail for rejection in batch.rejected] == [
        "revenue: -1 is not in [0, inf]",
        "hide: 2 is not in [-inf, 1]",
        "reward: 2 is not in [0, 1]",
    ]
    evaluator = config.evaluator()
    evaluator.update(batch)
    assert [(row.reward, row.below, row.above) for row in evaluator.report().clipped] == [
        ("revenue", 0, 1),
        ("hide", 1, 0),
    ]


def test_ds_json_carries_several_rewards(load: Loader) -> None:
    config = load(
        "policies: {candidates: [a]}\nsource: {kind: file, path: log, format: dsjson}\n"
        "rewards: {earned: {field: _original_label_cost, max: 9}, agreed: {field: reward}, revenue: {max: 99}}"
    )
    line = {"_label_probability": 0.5, "_label_Action": 1, "a": [1, 2], "p": [0.5, 0.5]}
    both = {"_label_cost": -1, "_original_label_cost": -3}
    lines = [{**line, **both}, {**line, "revenue": 12.5}, line]
    batch = config.event_format().decode_batch([json.dumps(line).encode() for line in lines])
    np.testing.assert_array_equal(batch.reward, [3.0, np.nan])
    assert batch.further is not None
    np.testing.assert_array_equal(batch.further.column("agreed"), [1.0, np.nan])
    np.testing.assert_array_equal(batch.further.column("revenue"), [np.nan, 12.5])
    assert [rejection.detail for rejection in batch.rejected] == ["_original_label_cost: missing"]


def test_one_named_reward_labels_the_estimates(load: Loader) -> None:
    (reward,) = (
        load("policies: {candidates: [a]}\nrewards: {click: {field: clicked, max: 2}}").evaluator_config().rewards
    )
    assert (reward.name, reward.range) == ("click", (0.0, 2.0))
