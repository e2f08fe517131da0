"""Fitted constants, widths of intervals and paces: the part of calibration that a plan reads."""
