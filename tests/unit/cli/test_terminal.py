"""Test output on terminals that lack characters."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.cli.tables import result_tables
from streameval.cli.terminal import accept_every_character


def written(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    accept_every_character()
    print(text, end="", flush=True)
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_every_terminal_shows_a_table(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert written("0.1 … 0.2 ─ ±", encoding, monkeypatch).translate({0x85: "..."})[:4] == "0.1 "


def test_our_own_characters_have_plain_ones_in_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written("0.10 … 0.20 – ± ─", "ascii", monkeypatch) == "0.10 ... 0.20 - +- -"


def test_a_terminal_with_all_characters_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written("0.10 … 0.20 – 中", "utf-8", monkeypatch) == "0.10 … 0.20 – 中"


def test_json_with_other_characters_stays_the_same_json(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "中é"
    assert json.loads(written(json.dumps(name, ensure_ascii=False), "ascii", monkeypatch).replace("\\xe9", "é")) == name


def test_a_table_explains_a_value_beyond_the_possible_rewards() -> None:
    target = np.repeat([1.0, 0.0], [190, 110])
    evaluator = Evaluator(["new"], estimators=["ips"], averages=["cumulative"])
    evaluator.update(
        EventBatch.from_arrays(reward=np.ones(300), propensity=np.full(300, 0.5), policies={"new": target})
    )
    (note,) = (part for part in result_tables(evaluator.report(), everything=True) if isinstance(part, str))
    assert note.startswith(
        "new, ips on cumulative: weights carry the value beyond the possible rewards; the interval, "
    )
