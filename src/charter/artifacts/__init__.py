"""Durable and verified state of runs: fingerprints, records, checkpoints, leases."""
