"""Streaming off-policy evaluation: which candidate policy would do better than the one in production now."""

from streameval.averages import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Mixture, Window
from streameval.bounds import ConfidenceSequence, DriftAware, EmpiricalBernstein, EmpiricalLikelihood, Interval, Normal
from streameval.errors import ConfigError, InputError, SourceError, StateError, StreamevalError
from streameval.estimators import (
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
from streameval.evaluator import Evaluator
from streameval.events import EventBatch
from streameval.policies import Decisions, EpsilonGreedy, First, Logged, PythonPolicy, Softmax, Uniform
from streameval.promotion import Promotion, Trust
from streameval.report import Estimate, Report
from streameval.rewards import PythonModel, Ridge, RiverModel, Tabular
from streameval.sources.file import read_events

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
