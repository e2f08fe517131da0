"""Kubernetes: what a job looks like there, and the few calls of `kubectl` that send, watch and end it."""
