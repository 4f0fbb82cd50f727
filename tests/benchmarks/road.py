"""Measure the road of an event for 1 to 10,000 candidates: decoding from both formats, and evaluation."""

from __future__ import annotations

from growth import names_of
from measuring import Benchmark, Ratio, Work, updating
from memory_source import decoded, parsing
from messages import batched, compact

from streameval import Evaluator
from streameval.common.text import counted
from streameval.events.arrow_messages import ArrowDecoder
from streameval.events.tables import ColumnNames

SIZES = {1: 1, 10: 1, 100: 4, 1_000: 20, 10_000: 80}
"""Numbers of candidates, and how many times fewer events each has."""
NUMBERS_IN_MESSAGE, MOST_IN_MESSAGE = 100_000, 500
"""Probabilities in a message of Arrow, which then has less than a megabyte, and its largest number of events."""
NUMBERS_IN_POLL = 200_000
FORMATS = ("JSON", "Arrow")
YARDSTICK = "orjson.loads"


def decoding(form: str, count: int) -> str:
    """Return the name of the work of decoding events with so many candidates."""
    return f"{form}, {counted(count, 'candidate')}"


def evaluation(count: int) -> str:
    """Return the name of the work of evaluating so many candidates."""
    return f"evaluation, {counted(count, 'candidate')}"


def state(count: int) -> str:
    """Return the name of the size of the state of so many candidates."""
    return f"state of {counted(count, 'candidate')}"


def works_of(count: int, events: int) -> tuple[dict[str, Work], Evaluator]:
    """Return the works for so many candidates, and the evaluator."""
    values, evaluator = compact(events, names_of(count)), Evaluator(names_of(count))
    size = max(1, min(MOST_IN_MESSAGE, NUMBERS_IN_MESSAGE // count))
    poll = max(size, min(MOST_IN_MESSAGE * 32, NUMBERS_IN_POLL // count))
    decode = ArrowDecoder(evaluator.config.decoder(), ColumnNames()).decode_batch
    forms = {"JSON": (values, poll), "Arrow": (batched(values, size), poll // size)}
    works = {
        decoding(form, count): Work(lambda messages=messages, poll=poll: decoded(messages, decode, poll), events)
        for form, (messages, poll) in forms.items()
    }
    return works | {evaluation(count): updating(evaluator, decoded(values, decode, poll))}, evaluator


def benchmark(events: int = 40_000) -> Benchmark:
    works, sizes = {YARDSTICK: parsing(compact(events))}, {}
    for count, fewer in SIZES.items():
        own, evaluator = works_of(count, events // fewer)
        works |= own
        sizes[f"state of {counted(count, 'candidate')}"] = (
            lambda evaluator=evaluator: evaluator.full_bytes / 1e6,
            None,
        )
    ratios = [Ratio(name, YARDSTICK) for name in works if name != YARDSTICK]
    ratios.append(Ratio(evaluation(10_000), evaluation(1_000), 10.0))
    title = f"The road of an event, with {YARDSTICK} of events with 10 candidates"
    return Benchmark(title, works, ratios, sizes)
