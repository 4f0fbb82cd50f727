"""Kafka as a source of events."""
