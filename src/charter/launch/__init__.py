"""Starts stage processes, here or elsewhere, and says how they end."""
