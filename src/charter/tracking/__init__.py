"""Metrics of a run, to files and to trackers; what its machines did meanwhile."""

from charter.tracking.metering.row import GpuSample, MeterRow, meter_rows
from charter.tracking.metering.summary import MeterSummary, facility_kilowatt_hours, summarise

__all__ = ["GpuSample", "MeterRow", "MeterSummary", "facility_kilowatt_hours", "meter_rows", "summarise"]
