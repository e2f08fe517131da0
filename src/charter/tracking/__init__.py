"""Metrics of a run, to files and to trackers; what its machines did meanwhile."""

from charter.tracking.metering.row import GpuSample, MeterRow, meter_rows
from charter.tracking.metering.summary import MeterSummary, summarise

__all__ = ["GpuSample", "MeterRow", "MeterSummary", "meter_rows", "summarise"]
