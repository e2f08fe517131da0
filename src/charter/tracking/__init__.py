"""Metrics of a run, to files and to trackers."""
