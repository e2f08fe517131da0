"""Metrics of a run, to files and to trackers; what its machines did meanwhile."""

from charter.metering.row import GpuSample, MeterRow, meter_rows
from charter.metering.summary import MeterSummary, summarise

__all__ = ["GpuSample", "MeterRow", "MeterSummary", "meter_rows", "summarise"]
