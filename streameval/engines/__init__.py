"""Evaluation past one machine: executors of an engine read, decode and evaluate ranges of offsets; the daemon folds."""
