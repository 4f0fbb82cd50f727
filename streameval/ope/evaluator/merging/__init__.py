"""Evaluation in parts: what some events add to every estimate, and the evaluator that adds the parts up."""
