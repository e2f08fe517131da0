"""Metrics of a run, to files and to trackers; what its machines did meanwhile."""

from charter.metering.row import GpuSample, MeterRow, MeterSummary, meter_rows, summarise

__all__ = ["GpuSample", "MeterRow", "MeterSummary", "meter_rows", "summarise"]
