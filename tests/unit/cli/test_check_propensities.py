"""Test `check --propensities`: a correct log passes, and wrong actions and buckets are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import Run

NAMES = ("news", "sport", "music")


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    lines = [json.dumps({"event_id": number, "timestamp": 1.5, **row}) for number, row in enumerate(rows)]
    path.write_text("\n".join(lines))
    return str(path)


def single(seed: int, events: int, wrong: float = 1.0) -> list[dict[str, Any]]:
    """Simulate events with the propensity of the chosen action alone, from both arms of a ramp."""
    rng = np.random.default_rng(seed)
    distribution = np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2]])[(rng.uniform(size=events) < 0.2).astype(int)]
    action = (rng.uniform(size=(events, 1)) > distribution.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    propensity = distribution[np.arange(events), action] * np.where(action == 1, wrong, 1.0)
    chosen = zip(action.tolist(), propensity.tolist(), strict=True)
    return [{"action": NAMES[index], "propensity": p, "reward": 0} for index, p in chosen]


def listed(seed: int, events: int, off: float = 0.0) -> list[dict[str, Any]]:
    """Simulate events with full distributions.

    Args:
        off: Share of the events that ignore the logged distribution, in [0, 1].
    """
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(events):
        shown = rng.permutation(NAMES)[: int(rng.integers(2, 4))].tolist()
        logged = np.exp(2 * rng.uniform(size=len(shown)))
        logged = (logged / logged.sum()).round(6)
        logged[-1] = 1 - logged[:-1].sum()
        taken = shown.index("music") if "music" in shown and rng.uniform() < off else rng.choice(len(shown), p=logged)
        rows.append({"action": shown[int(taken)], "actions": shown, "propensities": logged.tolist(), "reward": 0})
    return rows


def test_correct_propensities_pass(run: Run, tmp_path: Path) -> None:
    outcome = run("check", "--propensities", written(tmp_path / "log.ndjson", single(1, 5000)))
    assert outcome.code == 0, outcome.err
    assert outcome.out == "the propensities of 5,000 events agree with how often actions were chosen (3 comparisons)\n"
    assert run("check", "--propensities", written(tmp_path / "log.ndjson", listed(2, 3000))).code == 0


@pytest.mark.parametrize(("wrong", "finding"), [(1.2, "too high"), (0.8, "too low")])
def test_an_action_with_propensities_wrong_by_a_fifth_is_named(
    wrong: float, finding: str, run: Run, tmp_path: Path
) -> None:
    outcome = run("check", "--propensities", written(tmp_path / "log.ndjson", single(3, 8000, wrong)))
    assert outcome.code == 1
    assert outcome.err.count("error: ") == 1
    assert "action sport: the logged propensities are" in outcome.err
    assert finding in outcome.err


def test_actions_and_buckets_of_full_distributions_are_compared(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "log.ndjson", listed(4, 3000, off=0.3))
    outcome = run("check", "--propensities", path, "--json")
    assert outcome.code == 1
    result = json.loads(outcome.out)
    messages = [finding["message"] for finding in result["findings"]]
    assert result["ok"] is False
    assert any(message.startswith("action music: the logged propensities are") for message in messages)


def test_an_action_that_is_seldom_available_passes_if_events_list_their_actions(run: Run, tmp_path: Path) -> None:
    rows = [{"action": "news", "actions": ["news", "sport"], "propensity": 0.5, "reward": 0}] * 500
    rows += [{"action": "sport", "actions": ["news", "sport"], "propensity": 0.5, "reward": 0}] * 500
    rows += [{"action": "music", "actions": ["music"], "propensity": 1.0, "reward": 0}] * 100
    assert run("check", "--propensities", written(tmp_path / "log.ndjson", rows)).code == 0


def test_tables_are_read_and_a_file_without_events_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{row['action']},{row['propensity']},0" for row in single(5, 8000, wrong=1.2)]
    path.write_text("\n".join(["action,propensity,reward", *rows]))
    outcome = run("check", "--propensities", str(path))
    assert (outcome.code, "action sport" in outcome.err) == (1, True)
    (tmp_path / "empty.ndjson").write_text("{}")
    outcome = run("check", "--propensities", str(tmp_path / "empty.ndjson"))
    assert outcome.code == 2
    assert "1  missing_field  e.g. event_id: missing\nhint: " in outcome.err
    assert "has no event: all were rejected" in outcome.err


def test_a_candidate_that_no_event_knows_is_named_with_the_names_of_events(run: Run, tmp_path: Path) -> None:
    rows = [{**row, "policies": {"old": 0.5, "new": 0.5}} for row in single(3, 100)]
    path = written(tmp_path / "log.ndjson", rows)
    outcome = run("check", "--propensities", path, "--candidates", "newer")
    assert outcome.code == 1
    assert "error: no event has a probability of the policy 'newer'\nhint: the events name old, new\n" in outcome.err


def test_a_configuration_is_no_log(run: Run) -> None:
    outcome = run("check", "--propensities", "c.yaml", "--candidates", "new")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --propensities reads a log, and c.yaml is a configuration\nhint: name a file")


def test_rows_over_several_lines_are_shown_unless_they_are_expected(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("action,propensity,reward,title\n" + 'a,0.5,1,"two\nlines"\nb,0.5,0,x\n' * 30)
    outcome = run("check", "--propensities", str(path))
    assert outcome.code == 0
    assert "warning: 30 rows of CSV take several lines" in outcome.err
    assert run("check", "--propensities", str(path), "--multiline").err == ""


@pytest.mark.parametrize("name", ["log.ndjson", "log.csv"])
@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.2, 1)])
def test_weights_of_candidates_are_checked(run: Run, tmp_path: Path, name: str, factor: float, code: int) -> None:
    rows = [{**row, "policies": {"even": factor / len(NAMES), "same": row["propensity"]}} for row in single(3, 5000)]
    path = tmp_path / name
    if name.endswith(".csv"):
        columns = ("action", "propensity", "reward")
        lines = [",".join([*columns, "even", "same"])]
        lines += [",".join(str(x) for x in [*(row[c] for c in columns), *row["policies"].values()]) for row in rows]
        path.write_text("\n".join(lines))
    else:
        written(path, rows)
    outcome = run("check", "--propensities", str(path), "--candidates", "even,same")
    assert outcome.code == code, outcome.err
    assert "same: mean weight 1 over 5,000 events" in outcome.out
    assert ("even: mean weight 1.2" in outcome.err) == (code == 1)


def test_candidates_need_a_log_of_propensities(run: Run) -> None:
    outcome = run("check", "--candidates", "even")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --candidates has no effect without --propensities\nhint: ")
