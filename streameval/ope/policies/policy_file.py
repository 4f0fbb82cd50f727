"""Write and read the file of a policy that has learned: weights and options, readable with plain numpy."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from streameval.common.arrays import Array
from streameval.errors import InputError

POLICY_SUFFIX = ".npz"
FILE_SCHEMA = 1
"""Version of the format."""
LEARNED = "learned"
TRAINED = (LEARNED, "learned_ranker")
"""Kinds of the policies that `streameval learn` trains in several passes."""
KINDS = (*TRAINED, "of_slot_rewards")
"""Kinds of the policies that are read again."""


def to_bytes(policy: Any, weights: Array, events: int) -> bytes:
    """Return the content of a file `NAME.npz` with two arrays.

    `weights` [1, positions or slots, features] are the weights of the scores. `description` is a JSON text with the
    `schema` of the file, the `kind` and options of the policy, and the number of `events`. Equal policies give equal
    bytes.

    Args:
        policy: the policy, a dataclass
        weights: [1, positions or slots, features]
        events: the number of events that it learned from

    >>> from streameval.ope.learning.learned import Learned
    >>> options = options_of(to_bytes(Learned(step=0.1), np.array([[1.0, -0.5]]), events=2_000))
    >>> options["weights"], options["step"]
    ([[1.0, -0.5]], 0.1)
    """
    described = asdict(policy)
    del described["weights"]
    return _written(described, events, weights=np.asarray(weights, dtype=float))


def model_to_bytes(policy: Any, coefficients: Array, reward_range: tuple[float, float], events: int) -> bytes:
    """Return the content of a file of a policy that follows a linear reward model, with three arrays.

    They are `intercept` [1 or positions], `weights` [1 or positions, features] and `description`. The description also
    has the `reward_range` that predictions are cut to.

    Args:
        policy: the policy, a dataclass
        coefficients: the constant, then the coefficients [1 or positions, 1 + features]
        reward_range: the lowest and the highest reward
        events: the number of events that the model learned from
    """
    arrays = {"weights": coefficients[:, 1:], "intercept": coefficients[:, 0]}
    return _written({**asdict(policy), "reward_range": reward_range}, events, **arrays)


def _written(described: Mapping[str, Any], events: int, **arrays: Array) -> bytes:
    description = json.dumps({"schema": FILE_SCHEMA, **described, "events": events})
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, description=np.array(description), **arrays)
    return file.getvalue()


def options_of(content: bytes, kind: str = LEARNED) -> dict[str, Any]:
    """Return the options of the policy in a file, with its weights, as arguments of the class of this kind.

    Raises:
        InputError: This is not a policy file, or it has another schema or kind.
    """
    hint = "it has the arrays `weights` and `description`, as `streameval learn` writes them"
    if not zipfile.is_zipfile(io.BytesIO(content)):
        raise InputError("this is not a policy file: it is not in the format .npz", hint=hint)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            weights, described = file["weights"], json.loads(str(file["description"]))
        schema, _ = described.pop("schema"), described.pop("events")
    except Exception as error:  # noqa: BLE001 - for damaged bytes, numpy, zipfile and zlib raise many kinds
        raise InputError(f"this is not a policy file: {type(error).__name__}: {error}", hint=hint) from None
    if schema != FILE_SCHEMA:
        hint = "use the version of streameval that wrote it"
        raise InputError(f"the policy file has schema {schema}, this version reads {FILE_SCHEMA}", hint=hint)
    found = described.get("kind", LEARNED)
    if found not in KINDS:
        hint = "a recommender serves it; candidates start from files of policies of kind learned"
        raise InputError(f"the policy file is of kind {found}, which no candidate starts from", hint=hint)
    if found != kind:
        raise InputError(f"the policy file is of kind {found}, expected {kind}", hint=f"write kind: {found}")
    if weights.ndim != 2 or not weights.size:
        raise InputError(f"`weights` of the policy file have the shape {weights.shape}, expected rows", hint=hint)
    return {**described, "weights": weights.tolist()}
