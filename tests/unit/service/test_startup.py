"""Continue from snapshots with equal numbers, apply changes of the configuration, or refuse them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from faults.simulator import Schedule
from structlog.testing import capture_logs

from streameval.cli.show import contents
from streameval.common.arrays import to_plain
from streameval.config.model import Config
from streameval.errors import ConfigError, DamagedError, InputError, StateError
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.report import Report
from streameval.service.daemon import Daemon
from streameval.service.metrics import metrics_text
from streameval.service.snapshots import DAMAGED, WRONG_CONTENT, SnapshotStore, read_snapshot, snapshot_files
from streameval.service.startup import daemon as daemon_of
from streameval.service.startup import fingerprint, resume
from support.factories import running, wait_until
from support.messages import message


def lines(first: int, last: int) -> str:
    """Return events that their rewards identify."""
    coin, names = [0.5, 0.5], ("early", "late", "other")
    sets = {"actions": ["a", "b"], "propensities": coin, "propensity": ..., "policies": dict.fromkeys(names, coin)}
    events = (
        message(number, event_id=f"e-{number}", timestamp=1_700_000_000 + number, reward=number, **sets)
        for number in range(first, last)
    )
    return "".join(event.decode() + "\n" for event in events)


class Workspace:
    """Hold a directory with a log, a configuration and the state of daemons."""

    def __init__(self, directory: Path) -> None:
        self.config, self.log, self.state = directory / "s.yaml", directory / "log.ndjson", directory / "state"
        self.log.write_text("")

    def parts(self, **changes: Any) -> dict[str, Any]:
        parts: dict[str, Any] = {
            "source": {"kind": "file", "path": str(self.log), "follow": True},
            "policies": {"candidates": ["early"]},
            "reward": {"max": 1_000_000},
            "estimators": ["ips"],
            "averages": ["cumulative"],
            "drift": "off",
            "promotion": "off",
            "state": {"dir": str(self.state), "interval": "1h"},
        }
        return parts | changes

    def daemon(self, options: dict[str, Any] | None = None, **changes: Any) -> Daemon:
        self.config.write_text(yaml.safe_dump(self.parts(**changes)))
        return daemon_of(self.config, Config.load(self.config, {}), **(options or {}))

    def run(self, first: int, last: int, options: dict[str, Any] | None = None, **changes: Any) -> Report:
        """Append events, let a daemon read the log, and return its last Report."""
        with self.log.open("a") as log:
            log.write(lines(first, last))
        daemon = self.daemon(options, **changes)
        with running(daemon):
            wait_until(lambda: daemon.published.report is not None)
            wait_until(lambda: sum(part.position for part in daemon.published.source.partitions) > last)
        assert daemon.published.report is not None
        return daemon.published.report


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr("streameval.service.daemon.POLL_TIMEOUT_SECONDS", 0.02)  # because these tests run many daemons
    return Workspace(tmp_path)


def seen(report: Report) -> dict[str, tuple[int, float]]:
    """Return the number of events and the sum of their rewards by policy."""
    events = {policy.policy: policy.events for policy in report.policies}
    values = {estimate.policy: estimate.value for estimate in report.estimates if estimate.average == "cumulative"}
    return {name: (count, round(count * (values[name] or 0.0), 6)) for name, count in events.items()}


def total(first: int, last: int) -> tuple[int, float]:
    return last - first, float(sum(range(first, last)))


def test_a_second_run_continues_at_the_end_of_the_first(workspace: Workspace) -> None:
    assert seen(workspace.run(0, 250)) == dict.fromkeys(("logging", "early"), total(0, 250))
    newest = snapshot_files(workspace.state)[-1]
    with capture_logs() as logs:
        assert seen(workspace.run(250, 1000)) == dict.fromkeys(("logging", "early"), total(0, 1000))
    (continued,) = [entry for entry in logs if entry["event"] == "continued"]
    assert continued["snapshot"] == str(newest)


@pytest.mark.parametrize(("changes", "name"), [({}, "log"), ({"name": "home"}, "home")])
def test_the_status_of_a_daemon_has_its_name(workspace: Workspace, changes: dict[str, str], name: str) -> None:
    daemon = workspace.daemon(**changes)
    with running(daemon):
        assert daemon.published.name == name
        wait_until(lambda: daemon.published.report is not None)
        assert daemon.published.name == name


def test_the_history_of_the_page_continues_and_a_reset_ends_it(workspace: Workspace) -> None:
    workspace.run(0, 250)
    daemon = workspace.daemon()
    before = daemon.published.history
    with running(daemon):
        wait_until(lambda: daemon.published.ready)
    after = daemon.published.history
    assert before.points
    assert {point.at for point in before.points} <= {point.at for point in after.points}
    label = ("early", "ips", "cumulative")
    assert after.series(label)[0] == pytest.approx(before.series(label)[0], nan_ok=True)
    daemon = workspace.daemon({"reset": True})
    with running(daemon):
        assert daemon.published.history.points == ()


def test_candidates_may_change_between_two_runs(workspace: Workspace) -> None:
    workspace.run(0, 250)
    report = workspace.run(250, 400, policies={"candidates": ["early", "late"]})
    assert seen(report) == {"logging": total(0, 400), "early": total(0, 400), "late": total(250, 400)}
    report = workspace.run(400, 500, policies={"candidates": ["late"]})
    assert seen(report) == {"logging": total(0, 500), "late": total(250, 500)}


def test_a_candidate_of_a_second_run_can_get_the_events_of_the_first(workspace: Workspace) -> None:
    workspace.run(0, 250)
    daemon = workspace.daemon({"backfill": "earliest"}, policies={"candidates": ["early", "late"]})
    with running(daemon):
        wait_until(lambda: daemon.published.report is not None and len(daemon.published.report.policies) == 3)
    assert daemon.published.report is not None
    assert seen(daemon.published.report) == dict.fromkeys(("logging", "early", "late"), total(0, 250))


def test_estimators_and_averages_may_change_between_two_runs(workspace: Workspace) -> None:
    workspace.run(0, 250)
    more = {"estimators": ["ips", "snips"], "averages": ["cumulative", {"kind": "window", "tau": 50}]}
    report = workspace.run(250, 400, **more)
    rows = {(estimate.estimator, estimate.average): estimate.effective_sample_size for estimate in report.estimates}
    assert rows == {
        ("ips", "cumulative"): 400,
        ("ips", "window"): 50,
        ("snips", "cumulative"): 200,  # from the unfinished block on
        ("snips", "window"): 50,
    }
    report = workspace.run(400, 500, estimators=["snips"])
    assert [(estimate.policy, estimate.estimator, estimate.average) for estimate in report.estimates] == [
        ("logging", "snips", "cumulative"),
        ("early", "snips", "cumulative"),
    ]


def test_new_kept_reset_and_dropped_parts_are_logged_and_dropped_ones_leave_the_snapshot(
    workspace: Workspace,
) -> None:
    many = {
        "policies": {"candidates": ["early", "late"]},
        "estimators": ["ips", "snips", {"kind": "clipped_ips", "cap": 5}],
        "averages": ["cumulative", {"kind": "window", "tau": 100}, "mixture"],
    }
    few = {
        "policies": {"candidates": ["other", "late"]},
        "estimators": ["ips", {"kind": "clipped_ips", "cap": 2}],
        "averages": ["cumulative", {"kind": "decay", "half_life": 100}],
    }
    before = workspace.run(0, 250, **many)
    with capture_logs() as logs:
        after = workspace.run(250, 250, **few)
    (continued,) = [entry for entry in logs if entry["event"] == "continued"]
    assert continued["policies"] == {"kept": ["logging", "late"], "new": ["other"], "dropped": ["early"]}
    assert continued["estimators"] == {"kept": ["ips"], "reset": ["clipped_ips"], "dropped": ["snips"]}
    assert continued["averages"] == {"kept": ["cumulative"], "new": ["decay"], "dropped": ["window", "mixture"]}
    assert after.get("late", "ips", "cumulative") == before.get("late", "ips", "cumulative")
    document = read_snapshot(snapshot_files(workspace.state)[-1])
    kept = str(document.evaluator)
    assert not [name for name in ("early", "snips", "mixture", "window") if name in kept]
    assert "clipped_ips" in kept


def test_another_production_starts_everything_from_zero_and_logs_it(workspace: Workspace) -> None:
    workspace.run(0, 250, policies={"candidates": ["early", "late"]})
    with capture_logs() as logs:
        report = workspace.run(250, 400, policies={"production": "early", "candidates": ["late"]})
    assert report.production == "early"
    assert seen(report) == dict.fromkeys(("early", "late"), total(250, 400))
    assert [entry["log_level"] for entry in logs if entry["event"] == "restarted_from_zero"] == ["warning"]
    (continued,) = [entry for entry in logs if entry["event"] == "continued"]
    assert continued["policies"] == {"reset": ["early", "late"], "dropped": ["logging"]}


def test_only_the_retrained_policy_starts_from_zero(workspace: Workspace) -> None:
    both = {"candidates": ["early", "late"]}
    workspace.run(0, 250, policies=both)
    with capture_logs() as logs:
        report = workspace.run(250, 400, {"reset_policies": ["late"]}, policies=both)
    assert seen(report) == {"logging": total(0, 400), "early": total(0, 400), "late": total(250, 400)}
    (continued,) = [entry for entry in logs if entry["event"] == "continued"]
    assert continued["policies"] == {"kept": ["logging", "early"], "reset": ["late"]}


def test_a_retrained_production_starts_everything_from_zero(workspace: Workspace) -> None:
    policies = {"production": "other", "candidates": ["early"]}
    workspace.run(0, 250, policies=policies)
    report = workspace.run(250, 400, {"reset_policies": ["other"]}, policies=policies)
    assert seen(report) == dict.fromkeys(("other", "early"), total(250, 400))


def test_only_policies_that_are_configured_can_be_reset(workspace: Workspace) -> None:
    workspace.run(0, 10)
    for name in ("nobody", "logging"):
        with pytest.raises(InputError, match=f"no policy {name} to reset"):
            workspace.daemon({"reset_policies": [name]})


def test_a_reset_starts_from_zero_and_sets_old_snapshots_aside(workspace: Workspace) -> None:
    workspace.run(0, 250)
    old = [path.name for path in snapshot_files(workspace.state)]
    report = workspace.run(250, 300, {"reset": True})
    assert seen(report) == dict.fromkeys(("logging", "early"), total(0, 300))
    assert [path.stem for path in snapshot_files(workspace.state, ".before-reset")] == [Path(name).stem for name in old]
    assert seen(workspace.run(300, 310))["early"] == total(0, 310)


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"reward": {"max": 2_000_000}}, "reward.max was 1000000.0 and is now 2000000.0"),
        ({"reward": {"max": 1_000_000, "min": -1}}, "reward.min was 0.0 and is now -1.0"),
        ({"reward": {"max": 1_000_000, "field": "revenue"}}, "reward.field was reward and is now revenue"),
        ({"reward": {"max": 1_000_000, "above": "clip"}}, "reward.above was not set and is now clip"),
        ({"source": {"format": "dsjson"}}, "source.format was json and is now dsjson"),
        ({"source": {"path": __file__}}, "log.ndjson'] and is now"),
    ],
)
def test_numbers_that_mean_something_else_are_not_mixed(workspace: Workspace, changes: Any, output: str) -> None:
    workspace.run(0, 10)
    parts = {part: {**workspace.parts()[part], **changed} for part, changed in changes.items()}
    with pytest.raises(StateError, match="with a different configuration") as error:
        workspace.daemon(**parts)
    assert output in error.value.message
    assert "--reset starts from zero" in error.value.hint
    assert "another state.dir" in error.value.hint
    with running(workspace.daemon({"reset": True}, **parts)):
        pass


def test_snapshots_from_before_rewards_could_be_clipped_are_continued(workspace: Workspace) -> None:
    """Their fingerprints lack the keys."""
    config = Config.model_validate(workspace.parts())
    assert {key for key in fingerprint(config) if key.startswith("reward")} == {
        "reward.field",
        "reward.min",
        "reward.max",
    }
    without_reward = {name: part for name, part in workspace.parts().items() if name != "reward"}
    several = Config.model_validate(without_reward | {"rewards": {"a": {}, "b": {"max": 2}}})
    assert fingerprint(several)["rewards"] == [["a", "a", 0.0, 1.0], ["b", "b", 0.0, 2.0]]


@pytest.mark.parametrize(
    "rewards",
    [
        {"a": {}, "b": {"max": 2, "quantiles": [0.5, 0.95], "per_unit": "24h"}},
        {"a": {}, "b": {"max": "auto", "quantile": 0.99}},
        {"a": {}, "b": {"max": 2}, "ratio": {"of": ["b", "a"]}, "sum": {"of": {"a": 1, "b": 2}}},
    ],
)
def test_a_snapshot_has_the_same_fingerprint_as_its_configuration(workspace: Workspace, rewards: Any) -> None:
    without_reward = {name: part for name, part in workspace.parts().items() if name != "reward"}
    found = fingerprint(Config.model_validate(without_reward | {"rewards": rewards}))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found)) == found


def test_options_that_only_describe_numbers_may_change(workspace: Workspace) -> None:
    workspace.run(0, 250)
    changes = {
        "confidence": 0.8,
        "intervals": {"cumulative": "empirical_bernstein"},
        "http": {"port": 0},
        "drift": "ADWIN",
        "promotion": "paired",
        "state": {**workspace.parts()["state"], "interval": "2h"},
    }
    assert seen(workspace.run(250, 400, **changes)) == dict.fromkeys(("logging", "early"), total(0, 400))
    assert seen(workspace.run(400, 410)) == dict.fromkeys(("logging", "early"), total(0, 410))


def test_two_daemons_cannot_have_one_directory(workspace: Workspace) -> None:
    first = workspace.daemon()
    with pytest.raises(StateError, match="in use by another streameval"):
        workspace.daemon()
    with running(first):
        pass
    workspace.run(0, 5)


def test_there_is_nothing_to_reset_if_no_state_is_kept(workspace: Workspace) -> None:
    for options in ({"reset": True}, {"reset_policies": ["early"]}):
        with pytest.raises(ConfigError, match="no state to reset"):
            workspace.daemon(options, state="off")


def test_a_snapshot_of_a_later_version_is_not_touched(workspace: Workspace) -> None:
    workspace.state.mkdir()
    snapshots = SnapshotStore(workspace.state)
    snapshots.write({"schema": 99})
    snapshots.close()
    with pytest.raises(StateError, match="schema 99, this version reads"):
        workspace.daemon()
    assert len(snapshot_files(workspace.state)) == 1


def present(parts: Any) -> Any:
    return parts["evaluator"]["counts"]["present"]


def offsets(parts: Any) -> Any:
    return next(iter(parts["offsets"].values()))


WRONG_CONTENTS: dict[str, Callable[[Any], object]] = {
    "a key is missing": lambda parts: parts["evaluator"]["counts"].pop("present"),
    "an array has another shape": lambda parts: present(parts).update(to_plain(np.zeros(7))),
    "an array has another type": lambda parts: present(parts).update({"__array__": "<i8"}),
    "an array has too few bytes": lambda parts: present(parts).update({"data": b"12345678"}),
    "a number is a text": lambda parts: parts["evaluator"]["events"].update(accepted="many"),
    "a list is too short": lambda parts: parts["evaluator"]["grids"].clear(),
    "settings differ": lambda parts: parts["evaluator"]["settings"].update(products=7),
    "there is no evaluator": lambda parts: parts.update(evaluator="none"),
    "there is no fingerprint": lambda parts: parts.pop("fingerprint"),
    "offsets are not numbers": lambda parts: parts["offsets"].update(log={"positions": [["a", "b"]]}),
    "an offset is below 0": lambda parts: offsets(parts).update(positions=[[0, -1]]),
    "an offset is too large": lambda parts: offsets(parts).update(positions=[[0, 2**63]]),
    "an offset is a fraction": lambda parts: offsets(parts).update(positions=[[0, 7.5]]),
    "a partition is below 0": lambda parts: offsets(parts).update(positions=[[-1, 7]]),
    "an epoch is below 0": lambda parts: offsets(parts).update(epochs=[[0, -3]]),
    "there are no offsets": lambda parts: parts["offsets"].clear(),
    "there are no stages": lambda parts: parts["pipeline"].clear(),
}
NAMED = {"schema", "settings"}
"""Entries of an evaluator that name another version or configuration if they are changed."""


def read_parts(path: Path) -> dict[str, Any]:
    """Read a snapshot as a plain value."""
    return msgspec.structs.asdict(read_snapshot(path))


def numbers_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the container and key of each number, array and truth value in a plain value, once for each list."""
    is_list = isinstance(value, list)
    for key, entry in enumerate(value) if is_list else value.items():
        if isinstance(entry, dict | list) and key not in NAMED:
            yield from numbers_in(entry)
        elif isinstance(entry, bool | int | float | bytes) and key not in NAMED and not (is_list and key):
            yield value, key


@pytest.mark.parametrize("wrong", WRONG_CONTENTS)
def test_a_snapshot_of_wrong_content_is_set_aside_and_the_one_before_is_used(workspace: Workspace, wrong: str) -> None:
    workspace.run(0, 250)
    parts = read_parts(snapshot_files(workspace.state)[-1])
    WRONG_CONTENTS[wrong](parts)
    snapshots = SnapshotStore(workspace.state)
    path = snapshots.write(parts)
    snapshots.close()
    with capture_logs() as logs:
        report = workspace.run(250, 300)
    assert seen(report) == dict.fromkeys(("logging", "early"), total(0, 300))
    (damage,) = [entry for entry in logs if entry["event"] == "snapshot_damaged"]
    assert damage["path"] == str(path)
    assert snapshot_files(workspace.state, DAMAGED) == [path.with_suffix(DAMAGED)]


def test_a_text_in_place_of_any_number_is_found_before_the_daemon_runs(tmp_path: Path) -> None:
    """Include numbers that only a later event or Report would read."""
    schedule = Schedule(0, tmp_path, ["produce_damaged", "produce_again", "kill"])
    schedule.run()
    path = snapshot_files(schedule.state)[-1]
    snapshot, config, accepted = read_snapshot(path), schedule.configuration(), []
    states = snapshot.offsets, snapshot.pipeline, snapshot.evaluator
    places = [workspace for state in states for workspace in numbers_in(state)]
    for container, key in places:
        before, container[key] = container[key], "text"
        with capture_logs(), suppress(*WRONG_CONTENT, DamagedError):
            resume(config, path, snapshot)
            accepted.append((key, before))
        container[key] = before
    assert len(places) > 100
    assert not accepted


def test_an_error_of_the_program_sets_no_snapshot_aside(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (0, 100, 200):
        workspace.run(first, first + 100)
    kept = snapshot_files(workspace.state)

    def fail(_pipeline: EventPipeline, _state: Any) -> None:
        raise TypeError("a mistake in this version")

    with monkeypatch.context() as patch:
        patch.setattr(EventPipeline, "restore", fail)
        with pytest.raises(StateError, match="TypeError: a mistake in this version") as error:
            workspace.daemon()
    assert isinstance(error.value.__cause__, TypeError)
    assert snapshot_files(workspace.state) == kept
    assert snapshot_files(workspace.state, DAMAGED) == []
    assert seen(workspace.run(300, 310)) == dict.fromkeys(("logging", "early"), total(0, 310))


UNEXPLAINED = {"settings differ", "offsets are not numbers"}
"""Wrong contents that an error of the program could also cause."""


def damage_all(workspace: Workspace, wrong: str | None) -> None:
    """Write the snapshots again with wrong content, or without their last byte."""
    for path in snapshot_files(workspace.state):
        parts = read_parts(path)
        path.unlink()
        if wrong is not None:
            WRONG_CONTENTS[wrong](parts)
        snapshots = SnapshotStore(workspace.state)
        path = snapshots.write(parts)
        snapshots.close()
        if wrong is None:
            path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("wrong", sorted(UNEXPLAINED))
def test_when_no_snapshot_can_be_restored_the_daemon_refuses_to_start(workspace: Workspace, wrong: str) -> None:
    workspace.run(0, 250)
    damage_all(workspace, wrong)
    kept = snapshot_files(workspace.state)
    with pytest.raises(StateError, match=r"no snapshot in .* can be restored; 0+\d\.snapshot: \w+Error: ") as error:
        workspace.daemon()
    assert error.value.hint.startswith("--reset starts from zero")
    assert snapshot_files(workspace.state) == kept
    assert seen(workspace.run(250, 260, {"reset": True})) == dict.fromkeys(("logging", "early"), total(0, 260))


@pytest.mark.parametrize("wrong", [None, "a key is missing", "there is no fingerprint", "there are no stages"])
def test_when_all_snapshots_are_damaged_the_loss_is_counted_and_logged(workspace: Workspace, wrong: str | None) -> None:
    workspace.run(0, 250)
    damage_all(workspace, wrong)
    with capture_logs() as logs:
        daemon = workspace.daemon()
        with running(daemon):
            wait_until(lambda: daemon.published.accepted == 250)
    (lost,) = [entry for entry in logs if entry["event"] == "state_lost"]
    assert lost["log_level"] == "error"
    assert "`start: latest`" in lost["reason"]
    damaged = len(snapshot_files(workspace.state, DAMAGED))
    assert damaged > 0
    assert lost["damaged"] == damaged
    assert f"streameval_snapshots_damaged_total {damaged}.0" in metrics_text(daemon.published).decode()
    with capture_logs() as logs:
        workspace.run(250, 260)
    assert "state_lost" not in [entry["event"] for entry in logs]


def test_the_loss_of_all_snapshots_is_counted_and_logged_if_a_topic_is_read_from_its_end(
    workspace: Workspace,
) -> None:
    """Report the loss, because earlier events are never read again."""
    workspace.run(0, 250)
    damage_all(workspace, None)
    with capture_logs() as logs, running(workspace.daemon(source={"topic": "clicks", "start": "latest"})) as daemon:
        wait_until(lambda: daemon.published.snapshots is not None)
    (lost,) = [entry for entry in logs if entry["event"] == "state_lost"]
    assert lost["log_level"] == "error"
    assert daemon.published.snapshots.damaged == lost["damaged"] > 0


def test_code_that_is_no_longer_configured_is_not_run_again(workspace: Workspace, tmp_path: Path) -> None:
    code = {"kind": "python", "target": "support.coded_policies:constant", "options": {"answer": [1.0, 0.0]}}
    workspace.run(0, 150, policies={"candidates": {"early": "logged", "mine": code}})
    snapshot = read_snapshot(snapshot_files(workspace.state)[-1])
    snapshot.evaluator["settings"]["computed_policies"]["mine"]["target"] = "os:abort"
    snapshots = SnapshotStore(workspace.state)
    path = snapshots.write(snapshot)
    snapshots.close()
    assert contents(path, snapshot)["report"].events.accepted == 150, "looking at it runs nothing"
    assert seen(workspace.run(150, 160)) == dict.fromkeys(("logging", "early"), total(0, 160))
