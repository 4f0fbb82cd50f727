"""Read a log again between live polls, and apply a changed configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from streameval.config.model import Config
from streameval.errors import ConfigError, InputError, SourceError, StreamevalError
from streameval.events import EventBatch
from streameval.ingest.base import MAX_AHEAD, BackfillReader, PartitionStatus, Records, SourceStatus, TopicPartition
from streameval.ingest.files.source import FileSettings
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.pipeline import EventPipeline
from streameval.ingest.simulated import SimulatedSettings
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.learning.learned import Learned
from streameval.ope.policies import policy_file
from streameval.ope.policies.coded import Logged, Uniform
from streameval.service.daemon import Daemon
from streameval.service.metrics import metrics_text
from streameval.service.reload import Backfill, Change, Reload, needing_restart
from streameval.service.status import BackfillStatus
from support import coded_policies
from support.commands import command
from support.factories import ListSource, NumberFormat, Recorder, make_published, records, running, wait_until


class Log:
    """Hold partitions of numbers. Each reader takes lots of its own, partition by partition or in turn."""

    def __init__(self, sizes: Sequence[int], lots: Sequence[int] = (3,), gap_after: int | None = None) -> None:
        self.offsets = [[n for n in range(size) if n != gap_after] for size in sizes]
        self.ends, self._lots, self._turn = list(sizes), lots, 0
        self.positions = [0] * len(sizes)
        self.closed, self.asked = False, 0

    def poll(self, timeout: float) -> list[Records]:
        self.asked += 1
        self._turn += 1
        partition = self._turn % len(self.ends)
        left = [offset for offset in self.offsets[partition] if offset >= self.positions[partition]]
        lot = left[: self._lots[self._turn % len(self._lots)]]
        if not lot:
            self.positions[partition] = self.ends[partition]
            return []
        self.positions[partition] = lot[-1] + 1
        return [Records("log", partition, lot, [b"%d" % (1000 * partition + offset) for offset in lot])]

    def status(self) -> SourceStatus:
        parts = enumerate(zip(self.positions, self.ends, strict=True))
        return SourceStatus(True, partitions=tuple(PartitionStatus("log", n, at, end - at) for n, (at, end) in parts))

    def close(self) -> None:
        self.closed = True


def values(polled: list[Records]) -> list[bytes | None]:
    return [value for part in polled for value in part.values]


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    live_lots=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    late_lots=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    turns=st.lists(st.booleans(), max_size=60),
    gap=st.none() | st.integers(0, 39),
)
def test_a_backfill_and_the_live_reader_read_every_message_once(
    sizes: list[int], live_lots: list[int], late_lots: list[int], turns: list[bool], gap: int | None
) -> None:
    live, source = Log(sizes, live_lots, gap), Log(sizes, late_lots, gap)
    reading, seen = BackfillReader(source), []

    def positions() -> dict[TopicPartition, int]:
        return live.status().positions

    for is_live in turns:
        if is_live:
            live.poll(0.0)
        else:
            seen += values(reading.poll(positions(), 0.0))
    for _ in range(1000):
        if reading.caught_up(positions()):
            break
        seen += values(reading.poll(positions(), 0.0))
    assert reading.caught_up(positions())
    assert len(seen) == sum(
        offset < position for offsets, position in zip(live.offsets, live.positions, strict=True) for offset in offsets
    )
    for _ in range(200):
        seen += values(live.poll(0.0))
    assert sorted(seen) == sorted(b"%d" % (1000 * p + n) for p, offsets in enumerate(live.offsets) for n in offsets)


def test_events_beyond_the_live_reader_are_buffered_within_bounds() -> None:
    source = Log([10 * MAX_AHEAD], lots=[5000])
    reading = BackfillReader(source)
    for _ in range(100):
        assert reading.poll({("log", 0): 0}, 0.0) == []
    assert source.asked * 5000 == MAX_AHEAD
    assert len(values(reading.poll({("log", 0): 7000}, 0.0))) == 7000


def test_falling_live_positions_show_a_recreated_log() -> None:
    reading = BackfillReader(Log([10]))
    reading.poll({("log", 0): 5}, 0.0)
    with pytest.raises(SourceError, match="recreated"):
        reading.poll({("log", 0): 2}, 0.0)


def polled_often(reading: BackfillReader, live: dict[TopicPartition, int]) -> None:
    for _ in range(10):
        reading.poll(live, 0.01)


def test_a_file_that_shrank_cannot_be_read_again(tmp_path: Path) -> None:
    log = tmp_path / "log.ndjson"
    log.write_bytes(b"1\n2\n3\n")
    for follow in (False, True):
        reading = FileSettings(path=[str(log)], follow=follow).open_backfill("earliest", {(str(log), 0): 11})
        with pytest.raises(SourceError, match="rotated or replaced"):
            polled_often(reading, {(str(log), 0): 11})
        reading.close()


def test_a_second_reading_starts_at_an_offset_or_a_time() -> None:
    kafka, file = KafkaSettings(topic="t"), FileSettings(path=["log"])
    assert kafka.backfill_start("earliest") == "earliest"
    assert file.backfill_start("17") == 17
    assert str(kafka.backfill_start("2026-01-31T00:00:00Z")) == "2026-01-31 00:00:00+00:00"
    for text, settings, complaint in (
        ("yesterday", kafka, "found 'yesterday'"),
        ("2026-01-31T00:00:00", kafka, "found '2026-01-31T00:00:00'"),
        ("2026-01-31T00:00:00Z", file, "only a Kafka topic"),
        ("2026-01-31T00:00:00Z", SimulatedSettings(), "only a Kafka topic"),
        ("earliest", FileSettings(path=["-"]), "standard input"),
    ):
        with pytest.raises(InputError, match=complaint):
            settings.backfill_start(text)


def test_a_simulation_is_read_again_without_waiting_for_it() -> None:
    reading = SimulatedSettings(rate=1.0, candidates=1).open_backfill("earliest", {("simulated", 0): 2500})
    read = 0
    for _ in range(5):
        read += len(values(reading.poll({("simulated", 0): 2500}, 0.0)))
    assert read == 2500
    assert reading.caught_up({("simulated", 0): 2500})


class AddedCandidate(Recorder):
    """Record whether and how a late candidate joined. Also stand in for the evaluator of a backfill."""

    policies = ("logging", "late")

    def __init__(self) -> None:
        super().__init__()
        self.awaited, self.joined = True, []  # type: ignore[var-annotated]

    def is_pending(self, late: AddedCandidate) -> bool:
        return self.awaited

    def activate(self, late: AddedCandidate, *, from_zero: bool = False) -> None:
        self.joined.append(from_zero)


class AllCandidates(Recorder):
    """Stand in for the evaluator of a daemon, with a late candidate once it has joined."""

    def __init__(self, added: AddedCandidate) -> None:
        super().__init__()
        self._new_candidate = added

    def update(self, batch: EventBatch) -> None:
        super().update(batch)
        if self._new_candidate.joined:
            self._new_candidate.update(batch)


@pytest.mark.parametrize(("live_lots", "late_lots"), [([7], [2]), ([1], [50]), ([3, 11], [5, 1])])
def test_a_backfill_between_live_polls_loses_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch, live_lots: list[int], late_lots: list[int]
) -> None:
    monkeypatch.setattr("streameval.service.reload.SLICE_SECONDS", 0.001)
    monkeypatch.setattr("streameval.service.daemon.MIN_TURN_SECONDS", 0.001)
    live, source, added = Log([120, 80], live_lots), Log([120, 80], late_lots), AddedCandidate()
    all_candidates = AllCandidates(added)
    changes = iter([Change(NumberFormat(), Backfill(added, added, lambda _: BackfillReader(source)))])
    daemon = Daemon(live, NumberFormat(), all_candidates, reload=lambda: next(changes))
    with capture_logs() as logs, running(daemon):
        wait_until(lambda: daemon.published.accepted > 0)
        daemon.reload()
        wait_until(lambda: bool(added.joined) and daemon.published.accepted == 200)
        wait_until(lambda: not daemon.published.backfills)
    assert added.joined == [False]
    assert sorted(added.rewards) == sorted(all_candidates.rewards)
    assert len(all_candidates.rewards) == 200
    assert source.closed
    events = [entry["event"] for entry in logs if entry["event"] != "backfill_continues"]
    assert [event for event in events if "backfill" in event] == ["backfill_done"]


class OnePoll(ListSource):
    """Return a whole partition by one poll."""

    def status(self) -> SourceStatus:
        return SourceStatus(True, partitions=(PartitionStatus("interactions", 0, 30 * self.handed_out, 0),))


def test_a_backfill_waits_while_the_clock_is_behind_and_reads_no_withheld_message() -> None:
    """Count events when the clock is right, for the candidate too."""
    now, added = [1.0], AddedCandidate()
    live, again = (OnePoll([[records(*[b"1000000"] * 30)]], exhausted=False) for _ in range(2))
    all_candidates = AllCandidates(added)
    change = Change(NumberFormat(), Backfill(added, added, lambda _: BackfillReader(again)))
    pipeline = EventPipeline(NumberFormat(), KafkaSettings(topic="interactions"))
    daemon = Daemon(live, pipeline, all_candidates, clock=lambda: now[0], reload=lambda: change)
    with capture_logs() as logs, running(daemon):
        wait_until(lambda: "behind the events" in daemon.published.detail)
        daemon.reload()
        wait_until(lambda: bool(daemon.published.backfills) or bool(added.joined))
        now[0] = 1_000_001.0
        wait_until(lambda: any(entry["event"] == "backfill_done" for entry in logs))
        wait_until(lambda: len(all_candidates.rewards) == 30)
    assert len(added.rewards) == 30


def test_an_unfinished_backfill_is_closed_with_the_daemon_and_its_progress_is_shown() -> None:
    source, added = Log([5]), AddedCandidate()
    live = Log([9])
    change = Change(NumberFormat(), Backfill(added, added, lambda _: BackfillReader(source)))
    daemon = Daemon(live, NumberFormat(), Recorder(), reload=lambda: change)
    with running(daemon):
        wait_until(lambda: daemon.published.accepted == 9)
        daemon.reload()
        wait_until(lambda: daemon.published.backfills == (BackfillStatus(("late",), 5, 4),))
    assert source.closed
    assert added.joined == []


def test_if_the_log_cannot_be_read_again_the_candidate_starts_with_the_next_event() -> None:
    class Broken(ListSource):
        def status(self) -> SourceStatus:
            return SourceStatus(True, partitions=(PartitionStatus("interactions", 0, 0, 1),))

    source, added = Broken([[records(b"1", b"2")], SourceError("gone", hint="keep it longer")]), AddedCandidate()
    backfill = Backfill(added, added, lambda _: BackfillReader(source))
    live = SourceStatus(True, partitions=(PartitionStatus("interactions", 0, 9, 0),))
    with capture_logs() as logs:
        assert not backfill.slice(EventPipeline(NumberFormat()), SourceStatus(False), 0)
        assert backfill.slice(EventPipeline(NumberFormat()), live, 0)
    assert added.joined == [True]
    assert source.closed
    assert [(entry["event"], entry["error"]) for entry in logs] == [("backfill_failed", "gone")]


def test_a_second_reading_keeps_decisions_and_rewards_apart() -> None:
    class Two(ListSource):
        read = 0

        def poll(self, timeout: float) -> list[Records]:
            self.read += 4
            offsets = range(self.read - 4, self.read)
            return [Records(topic, 0, offsets, [b"%d" % offset for offset in offsets]) for topic in ("orders", "log")]

        def status(self) -> SourceStatus:
            return SourceStatus(True, partitions=tuple(PartitionStatus(t, 0, self.read, 0) for t in ("orders", "log")))

    reading = BackfillReader(Two([]), first=2, first_of="log")
    live = {("log", 0): 7, ("orders", 0): 4}
    seen = [(part.topic, value) for _ in range(3) for part in reading.poll(live, 0.0) for value in part.values]
    assert sorted(seen) == [("log", b"%d" % n) for n in range(2, 7)] + [("orders", b"%d" % n) for n in range(4)]
    assert reading.caught_up(live)
    assert reading.behind({("log", 0): 1000, ("orders", 0): 4}) == 1000 - 12


def test_a_backfill_ends_when_its_candidate_is_removed() -> None:
    added = AddedCandidate()
    added.awaited = False
    backfill = Backfill(added, added, lambda _: BackfillReader(Log([5])))
    assert backfill.slice(EventPipeline(NumberFormat()), SourceStatus(True), 0)
    assert added.joined == []


def test_a_slice_reads_at_least_the_requested_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.service.reload.SLICE_SECONDS", 0.0)
    added = AddedCandidate()
    backfill = Backfill(added, added, lambda _: BackfillReader(Log([500], lots=[10])))
    live = SourceStatus(True, partitions=(PartitionStatus("log", 0, 400, 100),))
    assert not backfill.slice(EventPipeline(NumberFormat()), live, 95)
    assert len(added.rewards) == 100
    assert backfill.progress(live) == BackfillStatus(("late",), 100, 300)


def test_a_daemon_without_a_way_to_reload_ignores_the_request() -> None:
    recorder = Recorder()
    daemon = Daemon(ListSource([[records(b"1")]]), NumberFormat(), recorder, stop_when_exhausted=True)
    daemon.reload()
    daemon.run()
    assert recorder.rewards == [1.0]


def test_a_refused_reload_is_logged_and_shown_until_one_succeeds() -> None:
    outcomes = iter([ConfigError("polices: unknown", hint="policies"), None])

    def reload() -> Change:
        error = next(outcomes)
        if error:
            raise error
        return Change(NumberFormat())

    daemon = Daemon(ListSource([[records(b"1")]]), NumberFormat(), Recorder(), reload=reload)
    with capture_logs() as logs, running(daemon):
        for is_successful in (False, True):
            request = daemon.reload()
            wait_until(lambda request=request: daemon.published.reload.requests >= request)
            shown = f"streameval_config_last_reload_successful {float(is_successful)}"
            assert shown in metrics_text(daemon.published).decode().splitlines()
    failed = [(entry["error"], entry["hint"]) for entry in logs if entry["event"] == "reload_failed"]
    assert failed == [("polices: unknown", "policies")]


def test_a_request_during_a_reload_gets_the_result_of_the_next_one() -> None:
    started, go_on = Event(), Event()
    outcomes = iter([ConfigError("from before", hint=""), None])

    def reload() -> Change:
        error = next(outcomes)
        started.set()
        assert go_on.wait(10)
        if error:
            raise error
        return Change(NumberFormat())

    daemon = Daemon(ListSource([[records(b"1")]]), NumberFormat(), Recorder(), reload=reload)
    with running(daemon):
        daemon.reload()
        assert started.wait(10)
        later = [daemon.reload(), daemon.reload()]
        go_on.set()
        wait_until(lambda: daemon.published.reload.requests >= max(later))
        assert daemon.published.reload.successful
        assert next(outcomes, "used") == "used"


def test_the_metrics_show_the_progress_of_a_backfill() -> None:
    text = metrics_text(make_published(backfills=(BackfillStatus(("late", "later"), 70, 30),)))
    lines = text.decode().splitlines()
    for policy in ("late", "later"):
        assert f'streameval_backfill_read_events{{policy="{policy}"}} 70.0' in lines
        assert f'streameval_backfill_waiting_events{{policy="{policy}"}} 30.0' in lines
    assert "streameval_backfill_" not in metrics_text(make_published()).decode()


def test_an_impossible_start_is_refused_before_the_daemon_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = command(capfd, "run", str(written(tmp_path / "s.yaml")), "--backfill", "yesterday")
    assert outcome.code == 2
    assert "error: --backfill: found 'yesterday'" in outcome.err
    assert "hint: write earliest, an offset" in outcome.err


def test_code_that_fails_to_load_is_refused_and_the_old_candidates_stay(tmp_path: Path) -> None:
    path = written(tmp_path / "s.yaml")
    config = Config.load(path)
    changing = Evaluator.from_config(config.evaluator_config())
    code = {"kind": "python", "target": "math:sqrt", "options": {"no": 1}}
    written(path, policies={"candidates": {"early": "logged", "late": code}})
    with pytest.raises(ConfigError, match="math:sqrt fails"):
        Reload(lambda: Config.load(path), config, changing)()
    assert changing.policies == ("logging", "early")


def damaged_policy_file() -> bytes:
    """Return a policy file with an unknown method of compression."""
    content = bytearray(policy_file.to_bytes(Learned(), np.array([[0.5]]), 100))
    content[content.rindex(b"PK\x01\x02") + 10] ^= 0x40
    return bytes(content)


WINDOW = {"kind": "window", "tau": 10**12, "resolution": 100}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"policies": {"candidates": {"a": {"kind": "learned", "file": "damaged.npz"}}}}, "not a policy file"),
        ({"policies": {"candidates": {"a": {"kind": "python", "target": "sys:exit"}}}}, "SystemExit"),
        ({"policies": {"candidates": {"a": {"kind": "python", "target": "support.coded_policies:no_policy"}}}}, "int"),
        ({"logging": {"arms": {"logging": 0.8, "early": 0.2}}}, "the arm logging is the log itself"),
        ({"averages": [WINDOW]}, "this process may use"),
    ],
)
def test_a_reload_refuses_what_a_start_refuses_with_the_same_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], wrong: Any, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("damaged.npz").write_bytes(damaged_policy_file())
    path = written(Path("s.yaml"))
    config = Config.load(path)
    changing = Evaluator.from_config(config.evaluator_config())
    written(path, **wrong)
    with pytest.raises(StreamevalError) as refused:
        Reload(lambda: Config.load(path), config, changing)()
    assert problem in refused.value.message
    for name in ("run", "check"):
        outcome = command(capfd, name, str(path))
        assert (outcome.code, outcome.err) == (2, f"error: {refused.value.message}\nhint: {refused.value.hint}\n")
    assert changing.policies == ("logging", "early")


def test_a_reload_that_fails_in_an_unknown_way_changes_nothing_and_says_why() -> None:
    def load() -> Config:
        raise MemoryError("no memory left")

    config = Config.model_validate({"policies": {"candidates": ["early"]}, "source": {"topic": "t"}})
    changing = Evaluator.from_config(config.evaluator_config())
    with pytest.raises(ConfigError, match="the configuration cannot be read: MemoryError: no memory left"):
        Reload(load, config, changing)()
    assert changing.policies == ("logging", "early")


def test_a_reload_does_not_make_policies_again_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded_policies, "MADE", [-1])  # a start checks a policy, and then makes it
    code = {"kind": "python", "target": "support.coded_policies:once"}
    own = {"candidates": {"even": code}}
    config = Config.model_validate({"policies": own, "source": {"topic": "t"}})
    changing = Evaluator.from_config(config.evaluator_config())
    more = {**config.policies.candidates, "early": Logged(), "late": Uniform()}
    for candidates in (more, config.policies.candidates):
        policies = config.policies.model_copy(update={"candidates": candidates})
        wanted = config.model_copy(update={"policies": policies})
        Reload(partial(Config.model_copy, wanted), config, changing)()
        assert changing.policies == ("logging", *candidates)


def written(path: Path, **parts: Any) -> Path:
    base = {"policies": {"candidates": ["early"]}, "source": {"topic": "t"}}
    path.write_text(yaml.safe_dump(base | parts))
    return path


def test_a_reload_names_what_needs_a_restart_and_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "s.yaml")
    config = Config.load(path)
    changing = Evaluator.from_config(config.evaluator_config())
    reload = Reload(lambda: Config.load(path), config, changing)
    both = {"candidates": ["early", "late"], "production": "incumbent"}
    written(path, policies=both, source={"topic": "other"}, reward={"field": "clicked"})
    with pytest.raises(
        ConfigError, match=r"cannot change policies\.production, reward\.field, source\.topic"
    ) as refused:
        reload()
    assert "restart" in (refused.value.hint or "")
    assert changing.policies == ("logging", "early")


def test_a_reload_adds_and_removes_candidates_and_logs_it(tmp_path: Path) -> None:
    path = written(tmp_path / "s.yaml")
    config = Config.load(path)
    changing = Evaluator.from_config(config.evaluator_config())
    reload = Reload(lambda: Config.load(path), config, changing)
    written(path, policies={"candidates": {"late": "logged", "even": "uniform"}})
    with capture_logs() as logs:
        change = reload()
    assert change.backfill is None
    assert changing.policies == ("logging", "even", "late")
    assert [(entry["added"], entry["removed"]) for entry in logs] == [(["even", "late"], ["early"])]


@pytest.mark.parametrize("text", ["policies: [", "policies: {candidates: []}", "polices: {}"])
def test_an_unusable_file_is_refused_and_the_old_configuration_stays(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "s.yaml")
    config = Config.load(path)
    reload = Reload(lambda: Config.load(path), config, Evaluator.from_config(config.evaluator_config()))
    path.write_text(text)
    with pytest.raises(ConfigError):
        reload()
    path.unlink()
    with pytest.raises(ConfigError):
        reload()
    assert reload.config is config


def test_a_new_header_needs_no_restart(tmp_path: Path) -> None:
    before, after = (
        Config.load(written(tmp_path / f"{count}.yaml", source={"topic": "t", "policies_of": headers}))
        for count, headers in enumerate(({"v7": ["a"]}, {"v7": ["a"], "v8": ["a", "b"]}))
    )
    assert needing_restart(before, after) == []
    event = {"event_id": 1, "timestamp": 0, "action": "x", "propensity": 0.5, "reward": 1}
    message = json.dumps(event | {"policies_of": "v8", "policies": [0.25, 0.5]}).encode()
    assert [len(config.event_format().decode_batch([message])) for config in (before, after)] == [0, 1]


def test_equal_configurations_need_no_restart(tmp_path: Path) -> None:
    path = written(tmp_path / "s.yaml", source={"topic": "t", "start": "2026-01-31T00:00:00Z"})
    assert needing_restart(Config.load(path), Config.load(path)) == []
