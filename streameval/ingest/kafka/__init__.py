"""Read events from Kafka, and write to it."""
