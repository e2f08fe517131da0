"""Decisions for one stage, and what it needs around its accelerators."""
