"""Kafka: a source of `ingest` and `follow`, the way out for dead letters, and the figures of a running ingest."""
