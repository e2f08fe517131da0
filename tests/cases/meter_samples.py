"""Samples of a machine without and with an accelerator, for tests."""

from dataclasses import replace
from typing import Any

from charter.tracking import GpuSample, MeterRow

ROW = MeterRow(
    time=100.0,
    node="n1",
    interval_seconds=10.0,
    processes=2,
    cpu_seconds=15.0,
    resident_bytes=5,
    read_bytes=1,
    written_bytes=2,
    node_cpus=4,
    node_cpu_share=0.5,
    node_memory_bytes=100,
    node_memory_used_bytes=50,
    node_received_bytes=3,
    node_sent_bytes=4,
    gpus=None,
    gpu_note="no GPU metering: the driver is not there",
)
GPU = GpuSample(
    index=0,
    uuid="GPU-1",
    name="H100",
    memory_bytes=80,
    memory_used_bytes=40,
    sm_activity=0.6,
    utilisation=0.9,
    power_watts=500.0,
    energy_joules=5000.0,
    energy_source="nvml_counter",
)


def with_gpus(*gpus: GpuSample, **changed: Any) -> MeterRow:
    """The sample of a node with these accelerators."""
    return replace(ROW, gpus=gpus, gpu_note=None, **changed)
