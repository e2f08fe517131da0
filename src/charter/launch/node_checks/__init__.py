"""Checks that a node must pass before an attempt starts on it, and the choice of nodes that take part."""
