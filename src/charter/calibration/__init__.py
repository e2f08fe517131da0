"""Measured runs against predictions: read published rows, fit constants, score, and say how far to trust a figure."""
