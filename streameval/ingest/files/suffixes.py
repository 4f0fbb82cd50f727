"""Name the endings of files of events."""

from __future__ import annotations

PARQUET_SUFFIXES, ARROW_SUFFIXES = (".parquet", ".pq"), (".arrow", ".feather", ".arrows")
"""Endings of files that a folder is read for."""
TABLE_SUFFIXES = {
    **dict.fromkeys(PARQUET_SUFFIXES, "parquet"),
    **dict.fromkeys(ARROW_SUFFIXES, "arrow"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
}
"""Formats by suffix. Another one may follow if the table is compressed text, such as .gz."""
LOG_SUFFIXES = (".ndjson", ".jsonl", *TABLE_SUFFIXES, ".gz", ".zst", ".bz2", ".xz")
"""Endings of files that are never a configuration."""
