"""Measured runs against predictions: read rows, predict and score them, fit constants; a plan never imports it."""
