"""Checkpoint intervals and the useful share of time under failures: pure functions."""
