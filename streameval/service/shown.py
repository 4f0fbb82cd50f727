"""Choose the candidates that an answer over HTTP shows, if there are many. What is stored is always complete."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from streameval.ope.answer import CandidateAnswer, answers
from streameval.service.status import DaemonStatus

__all__ = ["LEFT_OUT", "MAX_REPORTED", "SHOWN", "ranked_candidates", "shown_candidates"]

SHOWN = 100
"""Candidates that are shown by default if there are too many."""
MAX_REPORTED = 1000
"""Candidates of a Report that is complete by default."""
LEFT_OUT = "streameval-left-out"
"""Header with the number of candidates that a Report lacks."""


@lru_cache(maxsize=1)
def ranked_candidates(status: DaemonStatus) -> list[CandidateAnswer]:
    """Return the answers about all candidates, the best first."""
    return answers(status.reported)


def shown_candidates(status: DaemonStatus, named: Sequence[str], top: str, most: int) -> list[str] | None:
    """Return the names of the candidates to show, None for all.

    Args:
        status: what the daemon has published
        named: the only candidates, if any are named
        top: how many of the best, or `all`. By default `SHOWN`, if there are more than `most`
        most: the number of candidates that are all shown by default
    """
    if named:
        return list(named)
    candidates = len(status.reported.policies) - 1
    count = candidates if top == "all" or candidates <= most else SHOWN
    if top.isascii() and top.isdecimal():
        count = int(top[:9])
    return None if count >= candidates else [answer.policy for answer in ranked_candidates(status)[:count]]
