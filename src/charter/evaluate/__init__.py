"""Measure what was made, on data that no stage has seen."""
