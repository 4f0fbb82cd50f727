"""Define everything that goes wrong in a schedule, by name."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from faults.world import CANDIDATES, DAY, Event
from streameval.ingest.kafka.client import ClientError
from streameval.service import snapshots
from support.disk import STEPS
from support.fake_kafka import TOPIC

if TYPE_CHECKING:
    from faults.simulator import Schedule


class Killed(BaseException):
    """End the process here, as `kill -9` does."""


# --- Process and disk ---


def kill(schedule: Schedule) -> None:
    raise Killed


def kill_while_writing(schedule: Schedule) -> None:
    schedule.step_actions[schedule.random.choice(STEPS)] = lambda: kill(schedule)


def stop(schedule: Schedule) -> None:
    schedule.daemon.stop()


def fill_disk(schedule: Schedule) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    schedule.step_actions[schedule.random.choice(["opened", "written", "synced"])] = fail


def damage_snapshot(schedule: Schedule) -> None:
    """Change a byte of the newest snapshot, now and then of all of them, and restart."""
    paths = snapshots.snapshot_files(schedule.state)
    for path in paths if schedule.random.random() < 0.2 else paths[-1:]:
        content = bytearray(path.read_bytes())
        content[schedule.random.randrange(len(content))] ^= 1
        path.write_bytes(content)
    kill(schedule)


def change_snapshot(schedule: Schedule) -> None:
    """Give the newest snapshot a state that does not fit, under a right checksum, and restart."""
    paths = snapshots.snapshot_files(schedule.state)
    for path in paths[-1:]:
        document = snapshots.read_snapshot(path)
        evaluator = document.evaluator
        if len(paths) == 1 or schedule.random.random() < 0.5:
            content = schedule.random.choice([evaluator, document.pipeline])
            del content[schedule.random.choice(sorted(content.keys() - OTHER_VERSION))]
        else:  # only if there is an older one: the only one is kept for a human to look at if reading it fails
            changed = [evaluator[name] for name in sorted(evaluator.keys() - OTHER_VERSION)]
            content, name = schedule.random.choice(_plain_values([document.offsets, document.pipeline, *changed]))
            content[name] = "text"
        with path.open("wb") as file:
            snapshots.write_snapshot(file, document)
    kill(schedule)


OTHER_VERSION = {"schema", "settings"}
"""Entries of an evaluator that tell its version and configuration. A change of them is not damage."""


def _plain_values(value: Any) -> list[tuple[Any, Any]]:
    """Return the container and key of each number, array and truth value at any depth of a plain value."""
    numbers = []
    for key, entry in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
        if isinstance(entry, dict | list):
            numbers += _plain_values(entry)
        elif isinstance(entry, bool | int | float | bytes):
            numbers.append((value, key))
    return numbers


# --- Configuration ---


def reload_candidates(schedule: Schedule) -> None:
    """Add or remove candidates while the daemon runs."""
    count = schedule.random.randint(1, len(CANDIDATES))
    schedule.candidates = schedule.random.sample(CANDIDATES, count)
    schedule.order = ""
    schedule.daemon.reload()


def reload_wrongly(schedule: Schedule) -> None:
    """Ask for a change that needs a restart. The daemon continues as before."""
    schedule.order = ", order: event_time"
    schedule.daemon.reload()


# --- Broker ---


def break_connection(schedule: Schedule) -> None:
    schedule.some_topic().faults.append(ClientError("connection reset"))


def stop_broker(schedule: Schedule) -> None:
    topic = schedule.some_topic()

    def restart() -> None:
        topic.up = True

    topic.up = False
    schedule.later(restart)


def withhold_partition(schedule: Schedule) -> None:
    topic = schedule.some_topic()
    partition = schedule.random.choice(list(topic.logs))
    topic.deaf.add(partition)
    schedule.later(lambda: topic.deaf.discard(partition))


def cut_log(schedule: Schedule) -> None:
    """Lose the end of a log. Often it grows beyond its old end at once."""
    topic = schedule.some_topic()
    partition, log = schedule.random.choice(list(topic.logs.items()))
    end = schedule.random.randint(max(topic.first_offset(partition), len(log) - 30), len(log))
    lost = len(log) - end
    schedule.remove(topic, partition, end, len(log), schedule.cut)
    topic.cut(partition, end)
    for _ in range(schedule.random.choice([0, lost // 2, lost + 5])):
        schedule.producers.write(topic.topic, partition, schedule.producers.event() if topic.topic == TOPIC else None)


def cut_log_and_kill(schedule: Schedule) -> None:
    """Lose the end of a log while the daemon is not running."""
    cut_log(schedule)
    kill(schedule)


def delete_oldest(schedule: Schedule) -> None:
    topic = schedule.some_topic()
    partition, log = schedule.random.choice(list(topic.logs.items()))
    first = schedule.random.randint(topic.first_offset(partition), len(log))
    schedule.remove(topic, partition, topic.first_offset(partition), first, schedule.deleted)
    topic.first[partition] = first


def create_topic_again(schedule: Schedule) -> None:
    topic = schedule.some_topic()
    for partition, log in topic.logs.items():
        schedule.remove(topic, partition, topic.first_offset(partition), len(log), schedule.replaced)
    schedule.is_complete, schedule.is_replaced = False, True
    topic.create_again()


def add_partition(schedule: Schedule) -> None:
    """Add a partition that the daemon finds some time later."""
    topic = schedule.some_topic()
    topic.logs[len(topic.logs)] = []
    schedule.is_punctual = False


# --- Clocks ---


def move_clock(schedule: Schedule) -> None:
    """Let the calendar of the daemon's machine jump, and set it right later."""

    def set_right() -> None:
        schedule.clock.ahead = 0.0

    schedule.clock.ahead = schedule.random.choice([-5 * 365 * DAY, -3600.0, 3600.0, 5 * 365 * DAY])
    schedule.is_punctual = False
    schedule.later(set_right)


def produce_ahead(schedule: Schedule) -> None:
    """Write a dozen events in a row with timestamps ahead of time, as a producer with a wrong clock does."""
    partition, ahead = schedule.producers.some_partition(), schedule.random.choice([60.0, 3600.0, 300 * DAY])
    for _ in range(12):
        schedule.producers.write(TOPIC, partition, schedule.producers.event(ahead))
    schedule.is_punctual = False


def produce_late(schedule: Schedule) -> None:
    """Write one event that is far behind the others."""
    schedule.producers.write(TOPIC, schedule.producers.some_partition(), schedule.producers.event(ahead=-300.0))
    schedule.is_punctual = False


def produce_history(schedule: Schedule) -> None:
    """Write events of hours or days ago to a partition at once."""
    partition, ago = schedule.producers.some_partition(), schedule.random.choice([3600.0, 30 * DAY])
    for number in range(schedule.random.randint(20, 60)):
        schedule.producers.write(TOPIC, partition, schedule.producers.event(ahead=number - ago))
    schedule.is_punctual = False


# --- Messages ---


def pause_producers(schedule: Schedule) -> None:
    """Make no event for a while. The daemon reads to the end of the logs and waits there."""

    def resume() -> None:
        schedule.producers.pauses = False

    schedule.producers.pauses = True
    schedule.later(resume)


def produce_damaged(schedule: Schedule) -> None:
    topic = schedule.some_topic()
    schedule.producers.write(topic.topic, schedule.producers.some_partition(topic.topic), None)


def produce_again(schedule: Schedule) -> None:
    """Send an event a second time, to any partition. It counts late if the first one is lost."""
    events = [event for event in schedule.producers.written if isinstance(event, Event)]
    if events:
        schedule.producers.write(TOPIC, schedule.producers.some_partition(), schedule.random.choice(events[-50:]))
    schedule.is_punctual = False


FAULTS: dict[str, Callable[[Schedule], None]] = {
    fault.__name__: fault
    for fault in (
        kill,
        kill_while_writing,
        stop,
        fill_disk,
        damage_snapshot,
        change_snapshot,
        reload_candidates,
        reload_wrongly,
        break_connection,
        stop_broker,
        withhold_partition,
        cut_log,
        cut_log_and_kill,
        delete_oldest,
        create_topic_again,
        add_partition,
        move_clock,
        produce_ahead,
        produce_late,
        produce_history,
        pause_producers,
        produce_damaged,
        produce_again,
    )
}

UNPUNCTUAL = {
    fault.__name__ for fault in (add_partition, move_clock, produce_ahead, produce_late, produce_history, produce_again)
}
"""Faults after which messages may be late."""
