"""List the rooms of an evaluator. Without one module, its import and its name here, all others still work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import convert

from streameval.common.arrays import State, from_plain
from streameval.errors import ConfigError
from streameval.events import EventBatch
from streameval.ope.core.state import Company
from streameval.ope.evaluator.calibration import ROOM as CALIBRATION
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.frequencies import ROOM as FREQUENCIES
from streameval.ope.evaluator.learning import ROOM as LEARNING
from streameval.ope.evaluator.limits import ROOM as LIMITS
from streameval.ope.evaluator.per_unit import ROOM as PER_UNIT
from streameval.ope.evaluator.propensities import ROOM as PROPENSITIES
from streameval.ope.evaluator.quantiles import ROOM as QUANTILES
from streameval.ope.evaluator.ramp import ROOM as RAMP
from streameval.ope.evaluator.rewards import Clips
from streameval.ope.evaluator.room import Blocks, Incomplete, Owned, Present, Room
from streameval.ope.evaluator.segments import ROOM as SEGMENTS
from streameval.ope.policies.coded import Faults
from streameval.ope.report import TrustCheck

ROOMS: tuple[Room, ...] = (
    LIMITS,
    QUANTILES,
    PER_UNIT,
    SEGMENTS,
    CALIBRATION,
    RAMP,
    FREQUENCIES,
    PROPENSITIES,
    LEARNING,
)


class RoomSums(dict[str, Any]):
    """Hold the sums of half 1 by name of the room."""


def decoded(kind: type, plain: Any) -> Any:
    """Decode the sums of rooms, or an array, from the plain value of `to_plain`."""
    if kind is not RoomSums:
        return from_plain(plain)
    kinds = {room.name: room.sums for room in ROOMS}
    return RoomSums({name: convert(sums, kinds[name], dec_hook=decoded) for name, sums in plain.items()})


def require(config: EvaluatorConfig) -> None:
    """Require the rooms that a config asks for.

    Raises:
        ConfigError: One of them was removed.
    """
    for name, key in _asked_for(config):
        if all(room.name != name for room in ROOMS):
            hint = f"remove the key, or install streameval with the module of {name}"
            raise ConfigError(f"{key}: this installation is without the room {name}", hint=hint)


def start(config: EvaluatorConfig) -> State:
    """Return the states of all rooms by name, before the first event.

    Raises:
        ConfigError: The config asks for a room that was removed.
    """
    require(config)
    return {room.name: room.start(config) for room in ROOMS}


def resume(config: EvaluatorConfig, before: EvaluatorConfig, states: State) -> State:
    """Return the states under another config.

    Args:
        config: the config from now on
        before: the config of `states`
        states: states by name of the room
    """
    return {room.name: room.resume(config, before, states[room.name]) for room in ROOMS}


def join(
    both: EvaluatorConfig, own: tuple[EvaluatorConfig, State], late: tuple[EvaluatorConfig, State], company: Company
) -> State:
    """Return the states under a config that joins two others. Rooms without policies keep their first state."""
    merged = {}
    for room in ROOMS:
        first, second = (Owned(config, states[room.name]) for config, states in (own, late))
        merged[room.name] = second.state if first.state is None else first.state
        if room.join is not None:
            merged[room.name] = room.join(both, first, second, company)
    return merged


def fresh(config: EvaluatorConfig, plain: Mapping[str, Any]) -> State:
    """Return the templates that decode plain states."""
    late = {room.name: room.fresh for room in ROOMS if room.fresh and plain.get(room.name) is not None}
    return save(config, start(config), {}) | {name: start_room(config) for name, start_room in late.items()}


def save(config: EvaluatorConfig, states: State, faults: Faults) -> State:
    """Return the states as structs of arrays and plain values, and add policies that cannot be saved to the faults."""
    return states | {room.name: room.save(config, state, faults) for room, state in _present(states) if room.save}


def load(config: EvaluatorConfig, saved: State, trusted: Any, faults: Faults) -> State:
    """Return the inverse of `save`. `Room` describes the arguments."""
    present = ((room.name, room.load, state) for room, state in _present(saved))
    return saved | {name: load_room(config, state, trusted, faults) for name, load_room, state in present if load_room}


def without_code(config: EvaluatorConfig, plain: State, trusted: Any) -> State:
    """Return the plain states without the code that `trusted` does not name."""
    present = _present(plain)
    return plain | {
        room.name: room.without_code(config, state, trusted) for room, state in present if room.without_code
    }


def derive(
    config: EvaluatorConfig, states: State, events: EventBatch
) -> tuple[EventBatch, State, Mapping[str, list[Clips]]]:
    """Return events with rewards that are learned, the states after them, and what clipping did."""
    after, clips = dict(states), dict[str, list[Clips]]()
    for room, state in _present(states):
        if room.derive:
            events, after[room.name], added = room.derive(config, state, events)
            clips |= added
    return events, after, clips


def ranged(config: EvaluatorConfig, states: State) -> EvaluatorConfig:
    """Return the config with the ranges that rewards have had until now."""
    for room, state in _present(states):
        config = room.ranged(config, state) if room.ranged else config
    return config


def complete(config: EvaluatorConfig, states: State, incomplete: Incomplete) -> tuple[Incomplete, State]:
    """Return events with what their log lacks, and the states after them."""
    after = dict(states)
    for room, state in _present(states):
        if room.complete:
            incomplete, after[room.name] = room.complete(config, state, incomplete)
    return incomplete, after


def prepare(config: EvaluatorConfig, states: State, events: EventBatch) -> tuple[EventBatch, State]:
    """Return the events as they are weighed, and the states after them."""
    after = dict(states)
    for room, state in _present(states):
        if room.prepare:
            events, after[room.name] = room.prepare(config, state, events)
    return events, after


def observe(config: EvaluatorConfig, states: State, blocks: Blocks) -> State:
    """Return the states after whole blocks, before `fold` adds their sums."""
    return states | {room.name: room.observe(config, states[room.name], blocks) for room in ROOMS if room.observe}


def summarise(config: EvaluatorConfig, states: State, blocks: Blocks) -> RoomSums:
    """Return the sums of whole blocks by name of the room (half 1)."""
    present = _present(states)
    room_sums = ((room.name, room.summarise(config, state, blocks)) for room, state in present if room.summarise)
    return RoomSums((name, sums) for name, sums in room_sums if sums is not None)


def fold(config: EvaluatorConfig, states: State, sums: RoomSums) -> State:
    """Return the states after these sums (half 2)."""
    pairs = ((room, sums[room.name]) for room in ROOMS if room.name in sums)
    return states | {room.name: room.fold(config, states[room.name], added) for room, added in pairs if room.fold}


def rows(config: EvaluatorConfig, states: State, present: Present) -> dict[str, Any]:
    """Return the fields of a Report that rooms fill."""
    reports = (room.rows(config, state, present) for room, state in _present(states) if room.rows)
    return {name: value for fields in reports for name, value in fields.items()}


def checks(config: EvaluatorConfig, states: State, policy_checks: Sequence[TrustCheck]) -> Iterator[TrustCheck]:
    """Yield the trust checks of rooms.

    Args:
        config: what is evaluated
        states: states by name of the room
        policy_checks: checks of the policies that have events
    """
    for room, state in _present(states):
        if room.checks:
            yield from room.checks(config, state, policy_checks)


def _present(states: State) -> list[tuple[Room, Any]]:
    return [(room, states[room.name]) for room in ROOMS if states.get(room.name) is not None]


def _asked_for(config: EvaluatorConfig) -> Iterator[tuple[str, str]]:
    """Yield the rooms that the config needs, with the key of the configuration that asks for each.

    No key asks for `calibration` or `frequencies`: they report what they can about every log.
    """
    keys = {
        "limits": ("reward.max", any(reward.quantile is not None for reward in config.rewards)),
        "quantiles": ("reward.quantiles", any(reward.quantiles for reward in config.rewards)),
        "per_unit": ("reward.per_unit", any(reward.per_unit for reward in config.rewards)),
        "segments": ("segments", config.segments),
        "ramp": ("logging", config.logging),
        "propensities": ("propensity", config.propensity),
        "learning": (f"policies.candidates.{next(iter(config.learned_policies), '')}", config.learned_policies),
    }
    yield from ((name, key) for name, (key, setting) in keys.items() if setting)
