"""Provide the probabilities `pi(a|x)` of policies.

`logged` reads the probabilities that events carry. `coded` holds policies that compute them when events arrive, and
`python` calls policies in the user's code.
"""
