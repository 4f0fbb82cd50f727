"""Streaming off-policy evaluation: which candidate policy would do better than the one in production now.

    >>> import streameval as se
    >>> evaluator = se.Evaluator(candidates=["challenger"])
    >>> event = {"action": "a", "propensity": 0.25, "reward": 1, "policies": {"challenger": 0.5}}
    >>> evaluator.update_one(event)
    >>> evaluator.report().get("challenger", "ips", "cumulative").value
    2.0

`help(streameval.Evaluator)` explains one name; `streameval.__all__` lists all of them:

* `compare` answers from a log in one call
* events: `EventBatch` (`from_frame`, `from_arrays`), `read_events` for files; `EventLogger` in a recommender
* `Evaluator` takes events; its `report()` is a `Report` of each `Estimate` (`to_frame`, `to_json`)
* estimators: `IPS`, `SNIPS`, `StratifiedIPS`, `DR`, ... or their names, as in the configuration: `estimators=["ips"]`
* averages: `Cumulative`, `Window`, `Decay`, `AdaptiveWindow`, `AdaptiveDecay`, `Mixture`
* intervals: `Normal`, `EmpiricalLikelihood`, `EmpiricalBernstein`, `ConfidenceSequence`, `DriftAware`
* reward models: `Ridge`, `Tabular`, `RiverModel`, `PythonModel`
* candidates as code: `PythonPolicy`, `Uniform`, `First`, `EpsilonGreedy`, `Softmax`, `Logged`
* candidates that learn: `Learned`, `LearnedRanker`, `OfRewardModel`
* when a candidate is promotable: `Promotion`, `Trust`
* errors: `StreamevalError` and its kinds, each with a hint

Every public name is imported at its first use (PEP 562), so that `streameval --help` starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streameval.common.lazy import lazily

if TYPE_CHECKING:
    from streameval.cli.compare import compare
    from streameval.errors import ConfigError, InputError, SourceError, StateError, StreamevalError
    from streameval.event_logger import EventLogger
    from streameval.events import EventBatch
    from streameval.ingest.files.reading import read_events
    from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Mixture, Window
    from streameval.ope.estimators import (
        CAB,
        CABDR,
        DM,
        DR,
        DRPI,
        IIPS,
        IPS,
        RIPS,
        SNIPS,
        ClickCAB,
        ClickInterpol,
        ClickIPS,
        ClickSNIPS,
        ClickStaticBlend,
        ClickSwitch,
        ClippedClickIPS,
        ClippedIPS,
        ControlVariate,
        PseudoInverse,
        ScoredIPS,
        ScoredSNIPS,
        StaticBlend,
        StratifiedDR,
        StratifiedIPS,
        Switch,
        WeightedIIPS,
        WeightedPseudoInverse,
        WeightedRIPS,
    )
    from streameval.ope.evaluator.evaluator import Evaluator
    from streameval.ope.evidence import Ranking
    from streameval.ope.intervals import (
        ConfidenceSequence,
        DriftAware,
        EmpiricalBernstein,
        EmpiricalLikelihood,
        Interval,
        Normal,
    )
    from streameval.ope.learning.learned import Learned
    from streameval.ope.learning.learned_ranker import LearnedRanker
    from streameval.ope.learning.linear_bandit import LinearBandit
    from streameval.ope.learning.of_reward_model import OfRewardModel
    from streameval.ope.learning.of_slot_rewards import OfSlotRewards
    from streameval.ope.policies.coded import EpsilonGreedy, First, Logged, Softmax, Uniform
    from streameval.ope.policies.external import PythonPolicy
    from streameval.ope.policies.python import Decisions
    from streameval.ope.promotion import Promotion, Trust
    from streameval.ope.report import Estimate, Report
    from streameval.ope.reward_models import PythonModel, Ridge, RiverModel, Tabular

__all__ = ["ConfigError", "InputError", "SourceError", "StateError", "StreamevalError"]
__all__ += ["Evaluator", "Estimate", "EventBatch", "EventLogger", "Report", "compare", "read_events"]
__all__ += ["CAB", "CABDR", "ClippedIPS", "ControlVariate", "DM", "DR", "IPS", "SNIPS", "StaticBlend", "Switch"]
__all__ += ["DRPI", "IIPS", "PseudoInverse", "RIPS", "StratifiedDR", "StratifiedIPS", "WeightedPseudoInverse"]
__all__ += ["WeightedIIPS", "WeightedRIPS"]
__all__ += ["ClickCAB", "ClickInterpol", "ClickIPS", "ClickSNIPS", "ClickStaticBlend", "ClickSwitch", "ClippedClickIPS"]
__all__ += ["Ranking", "ScoredIPS", "ScoredSNIPS"]
__all__ += ["AdaptiveDecay", "AdaptiveWindow", "Cumulative", "Decay", "Mixture", "Window"]
__all__ += ["ConfidenceSequence", "DriftAware", "EmpiricalBernstein", "EmpiricalLikelihood", "Interval", "Normal"]
__all__ += ["Decisions", "EpsilonGreedy", "First", "Logged", "PythonPolicy", "Softmax", "Uniform"]
__all__ += ["Learned", "LearnedRanker", "LinearBandit", "OfRewardModel", "OfSlotRewards"]
__all__ += ["Promotion", "Trust"]
__all__ += ["PythonModel", "Ridge", "RiverModel", "Tabular"]
__all__.sort()

_HOMES = (
    *(
        "errors",
        "events",
        "event_logger",
        "ope.policies.coded",
        "ope.policies.python",
        "ope.reward_models",
        "ope.core",
    ),
    *("ope.estimators", "ope.evidence", "ope.intervals", "ope.promotion", "ope.report", "ope.evaluator.evaluator"),
    *("cli.compare", "ingest.files.reading", "ope.learning.learned", "ope.learning.learned_ranker"),
    *("ope.learning.linear_bandit", "ope.learning.of_reward_model", "ope.learning.of_slot_rewards"),
)
"""A name is imported from the first of these modules that has it."""

if TYPE_CHECKING:
    __version__: str
else:
    _imported = lazily(globals(), __all__, _HOMES)

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("importlib.metadata").version(__name__)
        return _imported(name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))})
