"""Read decisions from a table of PostgreSQL, each once, also with writers that commit late or roll back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row

QUERY = """
SELECT *, transaction::text AS "transaction"
FROM decisions
WHERE transaction < pg_snapshot_xmin(pg_current_snapshot()) AND (transaction, id) > (%s::xid8, %s)
ORDER BY decisions.transaction, id
LIMIT 2000
"""
"""Rows of transactions that have ended. Ids alone would lose rows: a transaction may commit after larger ids."""


def decisions(
    positions: Mapping[int, str] | None, pause: float = 1.0
) -> Iterator[tuple[dict[int, str], dict[str, Any]] | None]:
    """Yield the rows after a position, and then new ones as they come."""
    transaction, number = (positions or {0: "0/0"})[0].split("/")
    with psycopg.connect(os.environ["DECISIONS_DSN"], autocommit=True, row_factory=dict_row) as connection:
        while True:
            rows = connection.execute(QUERY, (transaction, int(number))).fetchall()
            for row in rows:
                transaction, number = row.pop("transaction"), row.pop("id")
                yield {0: f"{transaction}/{number}"}, row
            if not rows:
                yield None  # nothing is new: this daemon has read everything
                time.sleep(pause)
