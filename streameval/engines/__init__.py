"""Evaluate past one machine: executors of an engine read and evaluate ranges of offsets, and the daemon folds."""
