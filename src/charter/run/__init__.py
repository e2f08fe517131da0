"""Decides what is stale, runs it in order, restarts what fell over, and says how far everything is."""
