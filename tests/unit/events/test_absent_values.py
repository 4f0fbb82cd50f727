"""Test that null means absent everywhere in an event, and that empty values are not absent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from streameval.events import JsonDecoder

BASE = b'{"event_id": 1, "timestamp": 0, '


@pytest.fixture(params=[("new",), None], ids=["configured", "named in events"])
def decoder(request: pytest.FixtureRequest) -> JsonDecoder:
    policies: Sequence[str] | None = request.param
    return JsonDecoder(policies)


@pytest.mark.parametrize(
    "fields",
    [
        b'"scored": {"propensity": null, "values": null, "revealed": false}',
        b'"scored": {"propensity": 0.5, "values": {"new": null}, "revealed": null}',
        b'"scored": {"propensity": 0.5, "values": {"new": 1}}, "policies": {"new": null}, "action": null',
        b'"slots": [{"action": 1, "propensity": 0.5}], "reward": 1, "policies": {"new": null}',
        b'"action": 1, "propensity": 0.5, "reward": 1, "slots": null, "scored": null, "sampling_probability": null',
    ],
)
def test_null_means_absent(decoder: JsonDecoder, fields: bytes) -> None:
    batch = decoder.decode_batch([BASE + fields + b"}"])
    assert (len(batch), batch.rejected) == (1, ())


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        (b'"action": 1, "actions": [], "propensity": 0.5', "actions: empty"),
        (b'"action": 1, "propensities": [], "propensity": 0.5', "propensities: a list over actions, but"),
        (b'"action": 1, "features": [], "propensity": 0.5', "features: a list over actions, but"),
        (b'"slots": []', "slots: empty"),
        (b'"slots": [{"action": 1, "propensity": 0.5}], "policies": {"new": 0}', "policies: not allowed together"),
        (b'"slots": [{"action": 1, "propensity": 0.5}], "propensity": 0', "propensity: not allowed together"),
        (b'"slots": [{"action": 1, "propensity": 0.5}], "actions": []', "actions: not allowed together"),
        (b'"scored": {"propensity": 0.5}, "slots": []', "slots: not allowed together"),
        (b'"slots": [{"action": 1, "propensity": 0.5, "actions": [1]}], "slates": []', "slate_propensities: 0 entries"),
    ],
)
def test_empty_values_and_zeros_are_checked(decoder: JsonDecoder, fields: bytes, detail: str) -> None:
    batch = decoder.decode_batch([BASE + fields + b', "reward": 1}'])
    assert [rejected.detail[: len(detail)] for rejected in batch.rejected] == [detail]


def test_a_policy_with_probability_zero_is_not_missing(decoder: JsonDecoder) -> None:
    batch = decoder.decode_batch([BASE + b'"action": 1, "propensity": 0.5, "reward": 0, "policies": {"new": 0}}'])
    np.testing.assert_array_equal(batch.probabilities, [[0.0]])
    assert batch.reward.tolist() == [0.0]
