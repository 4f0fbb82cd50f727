"""Streaming off-policy evaluation: which candidate policy would do better than the one in production now."""

from streameval.errors import ConfigError, InputError, SourceError, StateError, StreamevalError
from streameval.events import EventBatch
from streameval.ingest.files.source import read_events
from streameval.ope.averages import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import (
    CAB,
    CABDR,
    DM,
    DR,
    IPS,
    SNIPS,
    ClippedIPS,
    ControlVariate,
    PseudoInverse,
    StaticBlend,
    StratifiedDR,
    StratifiedIPS,
    Switch,
    WeightedPseudoInverse,
)
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.intervals import (
    ConfidenceSequence,
    DriftAware,
    EmpiricalBernstein,
    EmpiricalLikelihood,
    Interval,
    Normal,
)
from streameval.ope.policies import Decisions, EpsilonGreedy, First, Logged, PythonPolicy, Softmax, Uniform
from streameval.ope.promotion import Promotion, Trust
from streameval.ope.report import Estimate, Report
from streameval.ope.reward_models import PythonModel, Ridge, RiverModel, Tabular

__all__ = [
    "AdaptiveDecay",
    "AdaptiveWindow",
    "CAB",
    "CABDR",
    "ClippedIPS",
    "ConfidenceSequence",
    "ConfigError",
    "ControlVariate",
    "Cumulative",
    "DM",
    "DR",
    "Decay",
    "Decisions",
    "DriftAware",
    "EmpiricalBernstein",
    "EmpiricalLikelihood",
    "EpsilonGreedy",
    "Estimate",
    "Evaluator",
    "EventBatch",
    "First",
    "IPS",
    "InputError",
    "Interval",
    "Logged",
    "Mixture",
    "Normal",
    "Promotion",
    "PseudoInverse",
    "PythonModel",
    "PythonPolicy",
    "Report",
    "Ridge",
    "RiverModel",
    "SNIPS",
    "Softmax",
    "SourceError",
    "StateError",
    "StaticBlend",
    "StratifiedDR",
    "StratifiedIPS",
    "StreamevalError",
    "Switch",
    "Tabular",
    "Trust",
    "Uniform",
    "WeightedPseudoInverse",
    "Window",
    "read_events",
]
