"""Write decisions from the tables of a warehouse as Arrow batches. Try it, after `pip install duckdb pyarrow`.

    python batches.py warehouse.db > decisions.arrows
    streameval replay decisions.arrows --candidates challenger

It runs decisions.sql in DuckDB. Drivers of other warehouses return such batches, too, for example ADBC by
`cursor.fetch_record_batch()`. For a topic, send each message of `messages` instead of writing it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

SIZE = 500  # decisions in a batch


def messages(batches: Iterable[Any]) -> Iterator[bytes]:
    """Return each batch as a message, an Arrow stream of its own."""
    for batch in batches:
        policies = pa.StructArray.from_arrays([batch["challenger"].cast(pa.float64())], ["challenger"])
        events = pa.Table.from_batches([batch]).drop_columns("challenger").append_column("policies", policies)
        sink = pa.BufferOutputStream()
        metadata = {"streameval.events": str(batch.num_rows)}  # lost if the message is damaged
        with pa.ipc.new_stream(sink, events.schema.with_metadata(metadata)) as stream:
            stream.write_table(events)
        yield sink.getvalue().to_pybytes()


if __name__ == "__main__":
    import duckdb

    query = Path(__file__).with_name("decisions.sql").read_text()
    reader = duckdb.connect(sys.argv[1], read_only=True).sql(query).to_arrow_reader(SIZE)
    for message in messages(reader):
        sys.stdout.buffer.write(message)
