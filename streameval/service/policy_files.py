"""Write frozen copies of policies to files next to the snapshots, so that a recommender can serve them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import structlog

from streameval.common.arrays import State
from streameval.ope.candidates.versions import CONTENT_SUFFIX, number_of
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.policies.policy_file import POLICY_SUFFIX
from streameval.service.snapshots import complete_file

log = structlog.get_logger("streameval.policy_files")


def keep_files(directory: Path, state: State) -> None:
    """Write a file for each frozen copy in a state of an evaluator, and delete the files of retired copies.

    A file that cannot be written is logged, and tried again with the next snapshot.
    """
    policies = state["settings"]["versions"]
    contents = dict(_files(state))
    try:
        for name, content in contents.items():
            path = directory / name
            if not path.exists() or path.read_bytes() != content:
                with complete_file(path) as file:
                    file.write(content)
        for path in chain(directory.glob(f"*{POLICY_SUFFIX}"), directory.glob(f"*{CONTENT_SUFFIX}")):
            if path.name not in contents and any(number_of(path.stem, policy) is not None for policy in policies):
                path.unlink(missing_ok=True)
    except OSError as error:
        log.error("policy_file_failed", directory=str(directory), reason=error.strerror)


def _files(state: State) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file."""
    for version, _, content in Evaluator.versions_in(state):
        if content is not None:
            yield version.file, content
