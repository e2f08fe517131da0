"""Measured rows to predictions: one quantity, one path from row over job to figure."""
