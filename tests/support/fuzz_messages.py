"""Make messages for fuzzing: valid ones of every format, and mutations of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

POLICIES = ("a", "b")
WIDTH = 3  # features of an action

TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|[\[\]{}:,]|[^\s]')

NUMBERS = [
    b"0", b"-0", b"-0.0", b"1", b"-1", b"2", b"0.5", b"1.0000000000000002", b"1.0000001", b"0.9999999999999999",
    b"1e-9", b"1e-300", b"5e-324", b"1e-400", b"1e15", b"-1e15", b"1e308", b"-1e308", b"1.7976931348623157e308",
    b"1e309", b"-1e999", b"18446744073709551615", b"18446744073709551616", b"9007199254740993",
    b"-9223372036854775809", b"1" + b"0" * 400, b"0." + b"3" * 400, b"NaN", b"Infinity", b"-Infinity", b"nan", b"01",
    b"1.", b".5", b"+1", b"0x10", b"1e", b"1_000", b"3.4028235e38", b"1e-45", b"0.1", b"0.30000000000000004",
    b"0.333333", b"253402300800", b"-62135596801",
]  # fmt: skip
STRINGS = [
    b'""', b'"a"', b'"b"', b'"logging"', b'"0.5"', b'"\\ud800"', b'"\\udfff\\ud800"', b'"\\ud83d\\ude00"',
    b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b'"\\u0000"', b'"\x00"', b'"\\x"', b'"\\',
    b'"', b'"' + b"x" * 300 + b'"', b'"2019-11-24T00:00:00Z"', b'"2019-11-24T00:00:00"', b'"0000-00-00T00:00:00Z"',
    b'"9999-12-31T23:59:60Z"', b'"0001-01-01T00:00:00+23:59"', b'"9999-12-31T23:59:59-23:59"', b'"factored"',
    b'"uniform_ranking"', b'"\xe2\x80\xa8"', b'"__proto__"', b'"event_id"', b'"policies"', b'"%s{}"',
    b'"\\n\\r\\t\\u001b[2J"',
]  # fmt: skip
VALUES = [
    b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b"[{}]", b"[null]", b'{"a":null}', b'{"":0}', b"[0.5,0.5]",
    b"[1,0,0]", b"[1e308,1e308]", b"[[1,2,3]]", b'{"a":0.5,"a":0.25}', b'{"a":[0.5,0.5],"b":0.5}',
    b"[" * 50 + b"]" * 50, b'{"a":' * 30 + b"0" + b"}" * 30, b"undefined", b"'x'",
]  # fmt: skip
ALONE = [
    b"", b" ", b"null", b"0", b"[]", b"{}", b'""', b"\x00", b"\xff", b"\xef\xbb\xbf{}", b"{}{}", b"{} x", b"[" * 5000,
    b'{"a":' * 3000, b"{\"event_id\"", b"\xff\xfe{\x00}\x00", b"\x1f\x8b\x08\x00", b"PK\x03\x04", b"\x80\x04K\x01.",
    b"\x82\xa1a\x01",
]  # fmt: skip


def encode(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


def shares(random: random.Random, count: int) -> list[float]:
    """Draw a distribution with rounding as computers write it."""
    drawn = [random.random() + 0.01 for _ in range(count)]
    return [
        round(value / sum(drawn), random.choice((6, 9, 17))) if count < 5 else value / sum(drawn) for value in drawn
    ]


def common(random: random.Random, number: int) -> dict[str, Any]:
    moment = 1574553634.76 + number
    return {
        "event_id": random.choice([f"e-{number}", number]),
        "timestamp": random.choice([moment, int(moment), "2019-11-24T00:00:34.76Z", "2019-11-24T02:00:34+02:00"]),
        "reward": random.choice([0, 1, 0.5, True, False, 0.125]),
    } | random.choice(
        [{}, {}, {"unit": "u", "logging_policy": 3, "context": {"hour": [1, {"deep": None}]}, "other": "ü"}]
    )


def compact(random: random.Random, number: int) -> dict[str, Any]:
    cells = {"a": random.random(), "b": random.choice([random.random(), None]), "c": 0.5}
    sampled = random.choice([{}, {"sampling_probability": 0.5}])
    return (
        common(random, number) | {"action": "14", "propensity": random.uniform(0.01, 1.0), "policies": cells} | sampled
    )


def full(random: random.Random, number: int) -> dict[str, Any]:
    count = random.randrange(1, 6)
    logged = shares(random, count)
    index = random.randrange(count)
    return common(random, number) | {
        "actions": [f"x{action}" for action in range(count)],
        "action": f"x{index}",
        "propensities": logged,
        "propensity": logged[index],
        "features": [[random.gauss(0, 1) for _ in range(WIDTH)] for _ in range(count)],
        "policies": {"a": shares(random, count), "b": random.choice([shares(random, count), random.random() / count])},
    }


def slate(random: random.Random, number: int) -> dict[str, Any]:
    slots, count = random.randrange(1, 4), random.randrange(3, 5)
    actions = [f"x{action}" for action in range(count)]
    shown = random.sample(actions, slots)
    kind = random.randrange(3)
    blocks: list[dict[str, Any]] = []
    for action in shown:
        logged = [1 / count] * count if kind else shares(random, count)
        block = {
            "action": action,
            "actions": actions,
            "policies": {"a": shares(random, count), "b": shares(random, count)},
        }
        blocks.append(block | ({} if kind == 2 else {"propensities": logged}))
    event = common(random, number) | {"slots": blocks}
    if random.random() < 0.5:
        for block in blocks:
            block["reward"] = event["reward"] / slots
    if kind == 1:
        scores = [random.gauss(0, 1) for _ in actions]
        drawn = {"slate_logging": "plackett_luce", "scores": scores}
        if random.random() < 0.5:
            for block in blocks:
                del block["propensities"]
            return event | drawn
        return event | {"slate_logging": "uniform_ranking"}
    if kind == 2:
        listed = [shown, *[random.sample(actions, slots) for _ in range(3)]]
        unique = [list(order) for order in dict.fromkeys(map(tuple, listed))]
        return event | {"slates": unique, "slate_propensities": [1 / len(unique)] * len(unique)}
    return event


def dsjson(random: random.Random, number: int) -> dict[str, Any]:
    count, kind = random.randrange(2, 5), random.randrange(3)
    fields = {"EventId": f"e{number}", "Timestamp": "2021-05-18T13:28:29.6560000Z", "c": {"_multi": [{}] * count}}
    fields |= random.choice([{}, {"pdrop": 0.5, "_ba": [1]}, {"o": [{"ActionTaken": True}], "_deferred": True}])
    logged = shares(random, count)
    if kind == 0:
        return fields | {
            "_label_cost": -1.0, "_label_probability": logged[0], "_label_Action": count, "_labelIndex": count - 1,
            "a": [count, *range(1, count)], "p": logged,
        }  # fmt: skip
    outcomes = [{"_a": list(range(count)), "_p": logged}, {"_a": [0, 1], "_p": [0.5, 0.5]}]
    if kind == 1:
        return fields | {"_label_cost": -1, "_outcomes": outcomes}
    return fields | {"_outcomes": [outcome | {"_label_cost": -0.5} for outcome in outcomes]}


def scored(random: random.Random, number: int) -> dict[str, Any]:
    event = full(random, number)
    return event | {"scores": [random.gauss(0, 3) for _ in event["actions"]]}


def outcome(random: random.Random, number: int) -> dict[str, Any]:
    event = common(random, number)
    del event["reward"]
    if random.random() < 0.2:
        return event | {"scored": {"revealed": False}}
    values = {"a": random.choice([random.random(), None, 1]), "b": random.random()}
    return event | {"scored": {"propensity": random.uniform(0.01, 1), "values": values}}


def late_reward(random: random.Random, number: int) -> dict[str, Any]:
    return common(random, number)


FORMATS = {
    "compact": compact,
    "full": full,
    "slate": slate,
    "dsjson": dsjson,
    "scored": scored,
    "outcome": outcome,
    "late_reward": late_reward,
}


def corpus(kind: str, random: random.Random, count: int = 200) -> list[bytes]:
    """Make valid messages of one format."""
    return [encode(FORMATS[kind](random, number)) for number in range(count)]


class Mutator:
    """Mutate valid messages. Most mutations are small, so that the rest of a message is decoded too."""

    def __init__(self, messages: Sequence[bytes], random: random.Random) -> None:
        self._random = random
        self._messages = list(messages)
        self._tokens = [TOKEN.findall(message) for message in messages]
        self._ends = [_ends(tokens) for tokens in self._tokens]

    def messages(self, count: int) -> list[bytes | None]:
        """Make this many messages. One in five is left as it is."""
        return [self._message() for _ in range(count)]

    def _message(self) -> bytes | None:
        chance = self._random.random()
        number = int(self._random.random() * len(self._messages))
        if chance < 0.2:
            return self._messages[number]
        if chance < 0.7:
            return self._with_tokens(number)
        if chance < 0.83:
            return self._with_branches(number)
        return self._with_bytes(number) if chance < 0.99 else self._random.choice([*ALONE, None])

    def _with_tokens(self, number: int) -> bytes:
        """Replace some values by odd ones of their own or another kind."""
        random, tokens = self._random, self._tokens[number].copy()
        for _ in range(random.choice((1, 1, 1, 2, 4))):
            index = int(random.random() * len(tokens))
            first, chance = tokens[index][:1], random.random()
            if first in b"-0123456789" and chance < 0.8:
                tokens[index] = random.choice(NUMBERS)
            elif first == b'"' and chance < 0.8:
                tokens[index] = random.choice(STRINGS)
            elif first in b"[]{}:," and chance < 0.6:
                continue
            elif chance < 0.9:
                tokens[index] = random.choice(VALUES)
            else:
                tokens[index] = random.choice(random.choice(self._tokens))
        return b"".join(tokens)

    def _with_branches(self, number: int) -> bytes:
        """Remove, double, exchange or wrap a whole value or field."""
        random, tokens, ends = self._random, self._tokens[number], self._ends[number]
        start = int(random.random() * len(tokens))
        stop = ends[start]
        branch, kind = tokens[start:stop], random.randrange(6)
        if kind == 0:
            branch = []
        elif kind == 1:
            branch = [*branch, b",", *branch]
        elif kind == 2:
            other = int(random.random() * len(self._tokens))
            index = int(random.random() * len(self._tokens[other]))
            branch = self._tokens[other][index : self._ends[other][index]]
        elif kind == 3:
            branch = [b"[", *branch, b"]"]
        elif kind == 4:
            branch = [b'{"a":', *branch, b"}"]
        else:
            branch = [random.choice(VALUES)]
        return b"".join([*tokens[:start], *branch, *tokens[stop:]])

    def _with_bytes(self, number: int) -> bytes:
        """Cut off, tear or splice the message, or flip a bit."""
        random, message = self._random, self._messages[number]
        start, stop = sorted((int(random.random() * len(message)), int(random.random() * len(message))))
        kind = random.randrange(5)
        if kind == 0:
            return message[:start]
        if kind == 1:
            return message[:start] + message[stop:]
        if kind == 2:
            return message[:start] + random.choice(self._messages)[start:]
        if kind == 3:
            return message[:start] + random.randbytes(random.randrange(4)) + message[start + 1 :]
        return message[:start] + bytes([message[start] ^ (1 << random.randrange(8))]) + message[start + 1 :]


def _ends(tokens: Sequence[bytes]) -> list[int]:
    """Return the end of the value that starts at each token."""
    ends = list(range(1, len(tokens) + 1))
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token in (b"[", b"{"):
            opened.append(index)
        elif token in (b"]", b"}") and opened:
            ends[opened.pop()] = index + 1
    return ends
