"""Seconds of a training step: operations, memory traffic, launches, collectives, pipeline, update."""
