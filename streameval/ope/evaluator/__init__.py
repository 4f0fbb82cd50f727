"""The evaluator: every estimator on every average, folded over a stream of events."""
