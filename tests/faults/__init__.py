"""Run schedules of faults, each from one seed: the real daemon loop against a model of Kafka, a clock and a disk."""
