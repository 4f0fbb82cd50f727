"""Answer the mistakes that people make with a path, a cause and a remedy, and no traceback."""

from __future__ import annotations

import json
import math
import pickle
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streameval import EventBatch
from streameval.config.model import Config
from streameval.service.snapshots import SnapshotStore
from support.commands import Run
from support.snapshots import snapshot_of

CONFIG = """
policies: {candidates: [challenger]}
estimators: [ips, stratified_ips]
averages: [cumulative, mixture]
promotion: {}
"""
START = 1_700_000_000.0
EVENTS = 400
LOGGED, WANTED, EARNED = {"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 0.2, "b": 0.3, "c": 0.5}, {"a": 2, "b": 3, "c": 4}
Event = dict[str, Any]


def events() -> Iterator[Event]:
    """Yield a log without defects: actions in turn, as often as their propensities say."""
    turns = ["a"] * 5 + ["b"] * 3 + ["c"] * 2
    for index in range(EVENTS):
        action = turns[index * 7 % 10]
        yield {
            "event_id": f"e-{index}",
            "timestamp": START + index,
            "action": action,
            "propensity": LOGGED[action],
            "reward": int(index % 17 < EARNED[action]),
            "policies": {"challenger": WANTED[action]},
        }


def field(name: str, change: Callable[[Any], Any], every: int = 1) -> Callable[[int, Event], Event]:
    """Return a mistake in one field, in one of `every` events."""
    return lambda index, event: event if index % every else {**event, name: change(event[name])}


def drop_field(name: str, every: int = 1) -> Callable[[int, Event], Event]:
    return lambda index, event: event if index % every else {key: event[key] for key in event if key != name}


def challenger(change: Callable[[float], Any], every: int = 1) -> Callable[[int, Event], Event]:
    return field("policies", lambda policies: {"challenger": change(policies["challenger"])}, every)


@pytest.fixture
def run(run: Run) -> Run:
    """Run a command in a directory with a configuration."""
    Path("c.yaml").write_text(CONFIG)
    return run


def write_log(mistake: Callable[[int, Event], Event] = lambda _, event: event) -> None:
    lines = [json.dumps(mistake(index, event)) for index, event in enumerate(events())]
    Path("log.ndjson").write_text("\n".join(lines) + "\n")


def test_sound_log_has_no_warning(run: Run) -> None:
    write_log()
    assert run("replay", "c.yaml", "log.ndjson", "--strict")[::2] == (0, "")


NUMBER = "write 0.25, not 25"
SET = {"actions": ["a", "b", "c"]}
MISTAKES_IN_A_LOG = {
    "a timestamp goes back": (
        field("timestamp", lambda time: time - 7200, every=10),
        "warning: timestamp: 39 of 400 events are dated up to 120 minutes before an earlier one\nhint: sort the log",
    ),
    "ids are repeated": (
        lambda index, event: {**event, "event_id": f"e-{index // 2}"},
        "warning: event_id: 200 of 400 events repeat the id of an earlier one\nhint: give each decision its own",
    ),
    "the candidate is missing in a share of the events": (
        field("policies", lambda _: {}, every=5),
        "warning: policies.challenger: 80 of 400 events have no probability of it, and do not count\nhint: log the",
    ),
    "the candidate is NaN in a share of the events": (
        challenger(lambda _: math.nan, every=5),
        "policies.challenger: nan is not a finite number (log.ndjson:1)\nhint: leave a field out",
    ),
    "the candidate is null in a share of the events": (
        challenger(lambda _: None, every=4),
        "warning: policies.challenger: 100 of 400 events have no probability of it",
    ),
    "the candidate has another name": (
        field("policies", lambda policies: {"chalenger": policies["challenger"]}),
        "warning: no event has a probability of the policy 'challenger'\nhint: the events name chalenger",
    ),
    "rewards exceed reward.max": (
        field("reward", lambda reward: 12.5 * reward),
        "have a reward above reward.max (1); the largest is 12.5\nhint: set reward.max to the largest possible reward, "
        "or write above: clip",
    ),
    "rewards fall below reward.min": (
        field("reward", lambda reward: reward - 1),
        "have a reward below reward.min (0); the smallest is -1\nhint: set reward.min to the smallest possible reward",
    ),
    "propensities are percents": (
        field("propensity", lambda value: 100 * value),
        "propensity: 50 is not in (0, 1] (log.ndjson:1)\nhint: a propensity is greater than 0 and at most 1: "
        "write 0.5, not 50; divide by 100, as this looks like percent",
    ),
    "probabilities of the candidate are percents": (
        challenger(lambda value: 100 * value),
        "policies.challenger: 20 is not in [0, 1] (log.ndjson:1)\nhint: a probability is between 0 and 1: write 0.2",
    ),
    "some propensities are over 100": (
        lambda index, event: field("propensity", lambda value: 1000 if index else 100 * value)(index, event),
        f"propensity: 50 is not in (0, 1] (log.ndjson:1)\nhint: a propensity is greater than 0 and at most 1: {NUMBER}",
    ),
    "propensities are percents of less than 1": (
        field("propensity", lambda value: value / 100),
        "trust check mean_weight: mean weight 100 over 400 events, expected 1: propensities or support are wrong\n"
        "hint: write the propensity and the candidate's probability in the same unit: one looks like percent",
    ),
    "a propensity is text": (field("propensity", str), "propensity: expected float, got str: '0.5' (log.ndjson:1)"),
    "propensities are those of another policy": (
        field("propensity", lambda _: 0.9),
        "the trust check mean_weight: mean weight 0.322 over 400 events, expected 1",
    ),
    "propensities are missing": (drop_field("propensity"), "propensity: missing, as is `propensities` (log.ndjson:1)"),
    "the reward is missing": (drop_field("reward"), "reward: missing (log.ndjson:1)\nhint: write 0 if nothing was"),
    "the reward is a word": (
        field("reward", lambda _: "Yes"),
        "got str: 'Yes' (log.ndjson:1)\nhint: write 1 and 0 for words such as Yes; pandas: column.map(",
    ),
    "the id is missing": (
        drop_field("event_id"),
        "event_id: missing (log.ndjson:1)\nhint: events in JSON need ids, which show copies, while rows of tables need",
    ),
    "the id is a fraction": (field("event_id", lambda _: 0.5), "event_id: expected"),
    "the timestamp is missing": (drop_field("timestamp", every=2), "timestamp: missing (log.ndjson:1)"),
    "times are in milliseconds": (field("timestamp", lambda time: 1e3 * time), "is it in milliseconds? (log.ndjson:1)"),
    "times are in microseconds": (field("timestamp", lambda time: 1e6 * time), "is it in microseconds? (log.ndjson:1)"),
    "times are in nanoseconds": (field("timestamp", lambda time: 1e9 * time), "is it in nanoseconds? (log.ndjson:1)"),
    "times are in minutes": (
        field("timestamp", lambda time: time / 60),
        "warning: timestamp: the newest event is of 1970-11-24 22:22:19 UTC\nhint: write seconds since 1970, not min",
    ),
    "times have no zone": (
        field("timestamp", lambda _: "2026-01-31T12:00:00"),
        "timestamp: expected",
    ),
    "times are words": (field("timestamp", lambda _: "yesterday"), "timestamp: invalid RFC3339"),
    "policies are a list": (
        field("policies", lambda _: [{"id": "challenger", "p": 0.5}]),
        'policies: expected object, got array (log.ndjson:1)\nhint: write {"NAME": PROBABILITY}, or name the place '
        "of each in `columns`, e.g. columns: {policies: {new: policies.new.p}}",
    ),
    "the candidate's probability is text": (
        challenger(str),
        "warning: no event has a probability of the policy 'challenger'\nhint: its values must be numbers, or lists of",
    ),
    "no reward was joined": (
        field("reward", lambda _: 0),
        "warning: reward: it is 0 in all of 400 events, so a lift is chance or wrong propensities\n"
        "hint: check reward.field",
    ),
    "the log comes from a deterministic policy": (
        field("propensity", lambda _: 1),
        "the trust check mean_weight: mean weight 0.29 over 400 events, expected 1: propensities or support are wrong\n"
        "hint: log the probability with which the shown action was chosen, and give every action some probability",
    ),
    "propensities are logarithms": (
        field("propensity", math.log),
        "is not in (0, 1] (log.ndjson:1)\nhint: a propensity",
    ),
    "the propensities of all actions sum to more than 1": (
        lambda _, event: {**drop_field("propensity")(0, event), **SET, "propensities": [0.5, 0.3, 0.3]},
        "propensities: sums to 1.1, not to 1 (log.ndjson:1)\nhint: log the probability of every action",
    ),
    "the action is none of the actions": (
        lambda _, event: {**event, **SET, "action": "z"},
        "action: not one of the 3 `actions` (log.ndjson:1)\nhint: list every action that could be chosen",
    ),
    "the propensity contradicts the distribution": (
        lambda _, event: {**event, **SET, "propensity": 0.9, "propensities": [0.5, 0.3, 0.2]},
        "propensity: 0.9, but `propensities` has 0.5 for the action (log.ndjson:1)\nhint: log the propensity of",
    ),
}


@pytest.mark.parametrize("name", MISTAKES_IN_A_LOG)
def test_mistake_in_log_is_explained(run: Run, name: str) -> None:
    mistake, answer = MISTAKES_IN_A_LOG[name]
    write_log(mistake)
    outcome = run("replay", "c.yaml", "log.ndjson")
    assert answer in outcome.err
    assert "\nhint: " in outcome.err
    assert "Traceback" not in outcome.err


def test_failed_trust_checks_fail_a_strict_replay(run: Run) -> None:
    write_log(field("propensity", lambda _: 0.9))
    for options, code in (((), 0), (("--strict",), 1), (("--json",), 0), (("--json", "--strict"), 1)):
        outcome = run("replay", "c.yaml", "log.ndjson", *options)
        assert outcome.code == code
        assert outcome.err.count("warning: challenger fails the trust check mean_weight: ") == 1
        assert outcome.out


def test_a_strict_replay_needs_trust_checks(run: Run) -> None:
    write_log()
    Path("c.yaml").write_text(CONFIG.replace("promotion: {}", "promotion: off"))
    outcome = run("replay", "c.yaml", "log.ndjson", "--strict")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: promotion is off: its trust checks are off too\nhint: ")


@pytest.mark.parametrize("unit", ["D", "h", "s", "ms", "us", "ns"])
def test_the_type_of_a_column_of_times_decides_its_unit(unit: str) -> None:
    times = np.array(["2026-01-31", "2026-02-01"], dtype=f"datetime64[{unit}]")
    batch = EventBatch.from_arrays(reward=[0, 1], propensity=[0.5, 0.5], timestamp=times)
    assert batch.timestamp.tolist() == [1769817600.0, 1769904000.0]


def test_a_table_that_is_read_twice_is_found_without_ids(run: Run) -> None:
    rows = [f"{START + index},{'ab'[index % 2]},0.5,{index % 2},0.5" for index in range(EVENTS)]
    for name in ("one.csv", "two.csv"):
        Path(name).write_text("timestamp,action,propensity,reward,challenger\n" + "\n".join(rows) + "\n")
    outcome = run("replay", "c.yaml", "one.csv", "two.csv")
    assert outcome.err == (
        "warning: timestamp: 394 of 800 events are dated up to 7 minutes before an earlier one\n"
        "hint: sort the log and its files by timestamp: events count as they are read\n"
        "warning: logging and challenger fail the trust check repeated_events: about 50 % of the events are copies of "
        "earlier ones\n"
        "hint: read each event once: leave out copies of files or frames, and give each decision an event_id\n"
    )


def test_a_replay_drops_copies_as_the_configuration_of_the_daemon_says(run: Run) -> None:
    write_log(lambda index, event: {**event, "event_id": f"e-{index // 2}", "reward": 7 if index == 0 else 1})
    Path("c.yaml").write_text(CONFIG + "source: {topic: clicks, duplicates: 1000}\n")
    outcome = run("replay", "c.yaml", "log.ndjson", "--json")
    assert json.loads(outcome.out)["events"]["accepted"] == EVENTS // 2
    assert "warning: 200 of 400 events were rejected\n" in outcome.err
    assert "        199  duplicate  e.g. event_id: repeats the id of a recent event (log.ndjson:4)\n" in outcome.err
    assert "repeat the id of an earlier one" not in outcome.err


IDENTIFIED = "event_id,timestamp,action,propensity,reward,challenger\n1,1700000000,a,0.5,1,0.5\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.csv": IDENTIFIED}, None),
        ({"a.csv": IDENTIFIED.replace("event_id", "id")}, "event_id: missing in 1 of 1 event"),
        ({"a.csv": IDENTIFIED, "b.csv": IDENTIFIED.replace("event_id", "id")}, "event_id: missing in 1 of 2 events"),
    ],
)
def test_events_without_the_id_that_is_configured_are_counted(
    files: dict[str, str], expected: str | None, run: Run
) -> None:
    for name, text in files.items():
        Path(name).write_text(text)
    Path("c.yaml").write_text(CONFIG + "columns: {event_id: event_id}\n")
    err = run("replay", "c.yaml", *files).err
    hint = "so their copies are not found\nhint: name the column with ids in columns.event_id, which is 'event_id'\n"
    assert ("their copies" in err) == (expected is not None)
    assert expected is None or f"warning: {expected}, {hint}" in err


HEADER, ROW = "timestamp,action,propensity,reward,challenger\n", "1700000000,a,0.5,1,0.5\n"
MISTAKES_IN_FILES: dict[str, tuple[str, str | bytes, str]] = {
    "an array of events": (
        "x.json",
        "[" + json.dumps(next(events())) + "]",
        "e.g. not a JSON object (x.json:1)\nhint: write each event as one JSON object, in its own line or message; "
        "jq -c '.[]' FILE unpacks an array",
    ),
    "a pickle file": (
        "x.pkl",
        pickle.dumps({"action": ["a"]}),
        "error: x.pkl is a pickle file, not JSON or CSV\nhint: pandas.read_pickle(path).to_parquet(new)\n",
    ),
    "an array of numpy": (
        "x.npy",
        b"\x93NUMPY\1\0",
        "error: x.npy is an array of numpy, not JSON or CSV\nhint: ",
    ),
    "arrays of numpy": ("x.npz", b"PK\3\4" + bytes(99), "hint: pandas.DataFrame(dict(numpy.load(path)))"),
    "an old Feather file": (
        "x.feather",
        b"FEA1\0",
        "error: x.feather is a Feather file of version 1\nhint: pandas.read_feather(path).to_parquet(new)\n",
    ),
    "a database": (
        "x.db",
        b"SQLite format 3\0",
        "error: x.db is a database of SQLite, not JSON or CSV\nhint: s",
    ),
    "an event on several lines": (
        "x.json",
        json.dumps(next(events()), indent=1),
        "(x.json:1)\nhint: write each event as one JSON object, in its own line or",
    ),
    "text in Latin-1": (
        "x.ndjson",
        json.dumps(next(events()) | {"action": "ä"}, ensure_ascii=False).encode("latin-1"),
        "not UTF-8: invalid continuation byte at byte",
    ),
    "an archive": (
        "x.csv.zip",
        b"PK\3\4" + bytes(99),
        "error: x.csv.zip is a zip archive or a spreadsheet\nhint: unpack it, or write `unzip -p x.csv.zip | ... -`",
    ),
    "columns separated by semicolons in a file of text": (
        "x.txt",
        (HEADER + ROW).replace(",", ";"),
        "hint: separate the columns by commas\n",
    ),
    "an empty file": (
        "x.ndjson",
        "",
        "error: no event was accepted: there is none\nhint: check the names of files",
    ),
    "columns separated by semicolons": (
        "x.csv",
        (HEADER + ROW).replace(",", ";"),
        "error: x.csv has no column 'timestamp' for timestamp; it has timestamp;action;propensity;reward;challenger\n"
        "hint: separate the columns by commas\n",
    ),
    "a table without a header": ("x.csv", 2 * ROW, "hint: write the names of the columns into the first line\n"),
    "a table of JSON": (
        "x.csv",
        json.dumps(next(events())),
        "hint: this is JSON: leave out --format, and name the file",
    ),
    "a table without propensities": (
        "x.csv",
        (HEADER + ROW).replace("propensity", "p"),
        "error: x.csv has no column with the propensity; it has timestamp, action, p, reward, challenger\n"
        "hint: name it in the configuration: `columns: {propensity: NAME}`; "
        "`propensity: {kind: estimated}` is for logs that lack it\n",
    ),
    "a table without the candidate": (
        "x.csv",
        (HEADER + ROW).replace("challenger", "other"),
        "warning: no event has a probability of the policy 'challenger'\n"
        "hint: name its column in the configuration: `columns: {policies: {challenger: COLUMN}}`\n",
    ),
    "numbers with decimal commas": (
        "x.csv",
        HEADER + '1700000000,a,"0,5",1,0.5\n',
        "propensity: expected float, got str: '0,5' (x.csv:1)\nhint: write a decimal point for the comma: pandas.",
    ),
    "dates of a spreadsheet": (
        "x.csv",
        HEADER + "31/01/2026,a,0.5,1,0.5\n",
        "timestamp: invalid RFC3339 encoded datetime",
    ),
    "times in milliseconds in a table": (
        "x.csv",
        HEADER + "1700000000000,a,0.5,1,1\n",
        "is it in milliseconds? (x.csv:1)",
    ),
}


@pytest.mark.parametrize("name", MISTAKES_IN_FILES)
def test_mistake_in_file_is_explained(run: Run, name: str) -> None:
    file, content, answer = MISTAKES_IN_FILES[name]
    Path(file).write_bytes(content.encode() if isinstance(content, str) else content)
    outcome = run("replay", "c.yaml", file)
    assert answer in outcome.err
    assert "\nhint: " in outcome.err
    assert "Traceback" not in outcome.err


MISTAKES_IN_COMMANDS = {
    "replay log.ndjson c.yaml": "error: log.ndjson is a log, not a configuration\nhint: name the configuration first: ",
    "replay log.tsv c.yaml": "error: log.tsv is a log, not a configuration\nhint: name the configuration first: ",
    "replay c.yaml absent.ndjson": "error: absent.ndjson does not exist\nhint: check the name",
    "replay c.yaml .": "error: . is a directory\nhint: name the files in it",
    "replay c.yaml log.ndjson --plot absent/x.png": "error: the directory absent does not exist\nhint: mkdir -p absent",
    "replay c.yaml log.ndjson --plot x.docx": "error: the plot x.docx ends in none of .png, .svg, .pdf\nhint: name it",
    "replay c.yaml log.ndjson --plot x.png --plot-estimator ip": "error: --plot-estimator: 'ip' is not configured\n"
    "hint: did you mean 'ips'?",
    "replay c.yaml log.ndjson --plot x.png --plot-average mixtur": "error: --plot-average: 'mixtur' is not configured\n"
    "hint: did you mean 'mixture'?",
    "replay": "error: Missing argument 'FILE'.\nhint: `streameval replay --help` shows how it is used\n",
    "replay c.yaml log.ndjson --jsn": "error: No such option: --jsn (Possible options: --json)\nhint: ",
    "plan c.yaml log.ndjson --lift big": "error: --lift: expected a number above 0, or a percentage; found 'big'\nhint",
    "plan c.yaml log.ndjson --power 2": "error: Invalid value for '--power': Input should be less than or equal to 1\n",
    "check absent.yaml": "error: the configuration absent.yaml does not exist\nhint: ",
    "check .": "error: the configuration . cannot be read: Is a directory\nhint: ",
    "run": "error: the configuration streameval.yaml does not exist\nhint: ",
    "run c.yaml": "error: source: expected a mapping of options, found nothing\nhint: write source: ",
    "run c.yaml --log-level loud": "error: Invalid value for '--log-level'",
    "simulate --events 0": "error: Invalid value for '--events': Input should be greater than or equal to 1\nhint: ",
    "simulate --exploration 0": "error: Invalid value for '--exploration': Input should be greater than or equal to 0.",
    "simulate absent/x.ndjson": "error: absent/x.ndjson cannot be written: No such file or directory\nhint: choose ",
    "demo --broker-only --events 5": "error: --events has no effect with --broker-only\nhint: leave one of them out\n",
    "replya": "error: No such command 'replya'. Did you mean 'replay', 'plan'?\nhint: `streameval --help`",
    "broker --topic x": "error: `broker` is now `demo --broker-only`\nhint: ",
    "hash-password ada": "error: `hash-password` is gone: logins are a reverse proxy's\nhint: see deploy/operate.md",
}


@pytest.mark.parametrize("line", MISTAKES_IN_COMMANDS)
def test_mistake_in_command_is_explained(run: Run, line: str) -> None:
    Path("log.ndjson").write_text(json.dumps(next(events())) + "\n")
    outcome = run(*line.split())
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(MISTAKES_IN_COMMANDS[line])
    assert "\nhint: " in outcome.err


# --- check ---


def write_config(source: dict[str, Any], **sections: Any) -> None:
    policies = {"candidates": ["challenger"]}
    values = {"policies": policies, "source": source, "http": {"port": 0}, "state": {"dir": "state"}} | sections
    Path("c.yaml").write_text(json.dumps(values))


FILE = {"kind": "file", "path": "log.ndjson"}


def test_check_refuses_a_port_in_use(run: Run) -> None:
    write_log()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        write_config(FILE, http={"port": port})
        outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: cannot serve on 127.0.0.1:{port}: the port is in use\nhint: another program")


def test_check_refuses_an_address_of_another_machine(run: Run) -> None:
    write_log()
    write_config(FILE, http={"host": "192.0.2.1", "port": 0, "insecure": True})
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert outcome.err.startswith("error: cannot serve on 192.0.2.1:0: ")


def test_check_refuses_a_state_directory_that_run_refuses(run: Run) -> None:
    write_log()
    write_config(FILE)
    assert run("check", "c.yaml").code == 0
    store = SnapshotStore(Path("state"))
    in_use = run("check", "c.yaml")
    assert (in_use.code, in_use.err.partition(" (")[0]) == (1, "error: state is in use by another streameval")
    store.write(snapshot_of(Config.load("c.yaml")))
    store.close()
    write_config(FILE, reward={"max": 5})
    other = run("check", "c.yaml")
    assert other.code == 1
    assert "was computed with a different configuration: reward.max was 1.0 and is now 5.0\nhint: --reset" in other.err
    Path("file").touch()
    for path in ("file", "file/below"):
        write_config(FILE, state={"dir": path})
        err = run("check", "c.yaml").err
        assert err.startswith(f"error: {path} cannot be used for snapshots: ")
        assert "file is not a directory that this user may write to\nhint: " in err


@pytest.mark.parametrize("path", ["absent/rejected.ndjson", "."])
def test_check_refuses_dead_letters_that_cannot_be_written(run: Run, path: str) -> None:
    write_log()
    write_config(FILE, dead_letters={"kind": "file", "path": path})
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: dead_letters.path: {path} cannot be written: ")


@pytest.mark.parametrize("option", ["ssl_cafile", "ssl_certfile"])
def test_check_refuses_files_that_are_not_certificates(run: Run, option: str) -> None:
    Path("x.pem").write_text("no certificate")
    write_config({"topic": "clicks", "security_protocol": "SSL", option: "x.pem"})
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: source.{option}: x.pem cannot be used: ")


def test_check_refuses_a_certificate_that_cannot_be_served(run: Run) -> None:
    Path("x.pem").write_text("no certificate")
    write_config(FILE, http={"tls_certfile": "x.pem", "tls_keyfile": "x.pem"})
    outcome = run("check", "c.yaml")
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert "http.tls_certfile" in outcome.err


def test_check_refuses_a_file_that_is_absent(run: Run) -> None:
    write_config(FILE)
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert "log.ndjson" in outcome.err


def test_check_names_a_candidate_that_some_events_lack_and_why_others_cannot_be_used(run: Run) -> None:
    write_log(lambda index, event: drop_field("policies", every=4)(index, field("reward", str, every=10)(index, event)))
    write_config(FILE)
    outcome = run("check", "c.yaml")
    assert outcome.code == 0
    assert outcome.err == (
        "warning: 10 of the first events cannot be used, e.g. malformed: reward: expected bool | float, got str: '1'\n"
        "hint: write the number 1 without quotes; pandas: column.astype(float)\n"
        "warning: 20 events of 90 have no probability of the policy 'challenger'\n"
        "hint: log the probability of every candidate with every event\n"
    )


def test_check_names_the_field_of_a_segment_that_no_event_has(run: Run) -> None:
    write_log(lambda index, event: {**event, "context": {"country": "de"}})
    segments = {"country": {"field": "context.country", "values": ["fr"]}, "device": {"values": ["phone"]}}
    write_config(FILE, segments=segments)
    outcome = run("check", "c.yaml")
    assert (outcome.code, outcome.err) == (
        0,
        "warning: none of these events has the field 'device' of the segment 'device'\n"
        "hint: name the field as in the events, e.g. context.country for a key of `context`\n",
    )


def test_check_names_the_column_that_a_file_lacks(run: Run) -> None:
    Path("log.csv").write_text("action,propensity,reward,challenger\nfirst,0.7,0,0.3\n")
    write_config({"kind": "file", "path": "log.csv"}, columns={"action": "banner"})
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert "action: missing: there is no value 'banner', its name in `columns`\nhint: correct that name" in outcome.err


def test_check_prints_its_findings_as_json(run: Run) -> None:
    Path("x.pem").write_text("no certificate")
    write_config({"topic": "clicks", "security_protocol": "SSL", "ssl_cafile": "x.pem"})
    outcome = run("check", "c.yaml", "--json")
    assert (outcome.code, outcome.err) == (1, "")
    result = json.loads(outcome.out)
    assert result["ok"] is False
    assert [(finding["part"], finding["level"]) for finding in result["findings"]] == [
        ("http.port", "ok"),
        ("state.dir", "ok"),
        ("source", "error"),
    ]
    assert result["findings"][2]["hint"].startswith("it must be a PEM file")
    Path("c.yaml").write_text(CONFIG.replace("ips", "ipps", 1))
    outcome = run("check", "c.yaml", "--json")
    assert (outcome.code, outcome.err) == (2, "")
    (finding,) = json.loads(outcome.out)["findings"]
    assert finding["level"] == "error"
    assert "ipps" in finding["message"]


def test_scored_events_have_no_reward_that_could_be_wrong(run: Run) -> None:
    def score(_: int, event: Event) -> Event:
        scored = {"propensity": 0.5, "values": {"now": event["reward"], "challenger": event["policies"]["challenger"]}}
        return {"event_id": event["event_id"], "timestamp": event["timestamp"], "scored": scored}

    write_log(score)
    Path("c.yaml").write_text("policies: {production: now, candidates: [challenger]}\nestimators: [scored_snips]\n")
    outcome = run("replay", "c.yaml", "log.ndjson", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    (value,) = {
        row["value"]
        for row in json.loads(outcome.out)["estimates"]
        if (row["policy"], row["average"]) == ("challenger", "cumulative")
    }
    assert value == pytest.approx(sum(event["policies"]["challenger"] for event in events()) / EVENTS)


def test_scored_outcomes_without_a_named_production_are_refused(run: Run) -> None:
    Path("c.yaml").write_text("policies: {candidates: [challenger]}\nestimators: [scored_snips]\n")
    outcome = run("check", "c.yaml")
    assert outcome.code == 2
    assert "estimators.0 (line 2): expected an estimator of logged actions, found 'scored_snips'" in outcome.err
    assert "hint: write policies: {production: NAME}, a name in scored.values" in outcome.err


def test_numbers_of_listed_actions_match_text_cells(run: Run) -> None:
    Path("log.csv").write_text("timestamp,action,propensity,reward,challenger\n1,0,0.5,1,0.5\n2,1,0.5,0,0.5\n")
    Path("c.yaml").write_text(CONFIG + "columns: {actions: [0, 1]}\n")
    outcome = run("replay", "c.yaml", "log.csv", "--json")
    assert "rejected" not in outcome.err
    assert json.loads(outcome.out)["events"]["accepted"] == 2
