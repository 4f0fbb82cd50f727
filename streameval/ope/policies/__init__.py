"""Policies: where `pi(a|x)` comes from.

`logged`: the probabilities that events carry. `coded`: policies that compute them when events arrive; `python`: those
in the user's code.
"""
