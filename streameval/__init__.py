"""Streaming off-policy evaluation: which candidate policy would do better than the one in production now."""

from streameval.averages import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Window
from streameval.bounds import EmpiricalBernstein, Interval, Normal
from streameval.errors import ConfigError, InputError, SourceError, StateError, StreamevalError
from streameval.estimators import IPS, SNIPS, ClippedIPS, ControlVariate
from streameval.evaluator import Evaluator
from streameval.events import EventBatch
from streameval.report import Estimate, Report

__all__ = [
    "AdaptiveDecay",
    "AdaptiveWindow",
    "ClippedIPS",
    "ConfigError",
    "ControlVariate",
    "Cumulative",
    "Decay",
    "EmpiricalBernstein",
    "Estimate",
    "Evaluator",
    "EventBatch",
    "IPS",
    "InputError",
    "Interval",
    "Normal",
    "Report",
    "SNIPS",
    "SourceError",
    "StateError",
    "StreamevalError",
    "Window",
]
