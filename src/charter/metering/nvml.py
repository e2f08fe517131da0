"""Accelerators by NVML: activity, memory, power, energy, temperature, errors; only those that a job may use."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from charter.metering.row import GpuSample

JOULES_PER_MILLIJOULE = 1e-3
WATTS_PER_MILLIWATT = 1e-3
NO_LIBRARY = "no GPU metering: nvidia-ml-py is not installed (pip install 'charter-plan[meter]')"
ON_PROCESSORS = "no GPU metering: the stage computes on processors"


class NoGpuMeter:
    """Stands where accelerators cannot be metered, and says why."""

    def __init__(self, note: str) -> None:
        self.note: str | None = note

    def look(self, seconds: float, pids: Collection[int]) -> tuple[GpuSample, ...] | None:
        """Nothing is known: not zero."""
        return None

    def close(self) -> None:
        """Nothing is open."""


class NvmlMeter:
    """The accelerators of one job on this node."""

    note: str | None = None

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._devices = [_Device(nvml, handle) for handle in handles]
        self._xids = _XidEvents(nvml, handles)

    def look(self, seconds: float, pids: Collection[int]) -> tuple[GpuSample, ...] | None:
        """Measure each GPU over the `seconds` since the last look."""
        xids = self._xids.take()
        return tuple(device.look(seconds, pids, xids) for device in self._devices)

    def close(self) -> None:
        """Let go of the driver."""
        self._xids.close()
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def open_gpu_meter(visible: str | None, *, nvml: Any = None) -> NvmlMeter | NoGpuMeter:
    """The meter of the accelerators that `visible` names (as CUDA_VISIBLE_DEVICES does: numbers or UUIDs).

    None means all of the node, an empty text none of them. Where there is no driver, the meter says so instead of
    giving zeros. Numbers are NVML's (order of the bus), which are CUDA's where all accelerators of a node are alike.
    """
    if visible is not None and not visible.strip():
        return NoGpuMeter(ON_PROCESSORS)
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return NoGpuMeter(NO_LIBRARY)
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NoGpuMeter(f"no GPU metering: {error}")
    handles = list(_handles(nvml, visible))
    if not handles:
        named = "none is there" if visible is None else f"the driver knows none of {visible}"
        return NoGpuMeter(f"no GPU metering: {named}")
    return NvmlMeter(nvml, handles)


def _handles(nvml: Any, visible: str | None) -> Iterator[Any]:
    names = [str(index) for index in range(nvml.nvmlDeviceGetCount())] if visible is None else visible.split(",")
    for name in filter(None, (name.strip() for name in names)):
        with contextlib.suppress(nvml.NVMLError):
            yield nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


class _Device:
    """One accelerator: what is asked of it, and what it had counted at the last look."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.uuid: str = self._ask(nvml.nvmlDeviceGetUUID) or ""
        self._name: str = self._ask(nvml.nvmlDeviceGetName) or "unknown"
        self._index: int = self._ask(nvml.nvmlDeviceGetIndex) or 0
        self._millijoules: int | None = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption)
        self._gpm = _SmActivity(nvml, handle)

    def look(self, seconds: float, pids: Collection[int], xids: list[tuple[str, int]]) -> GpuSample:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        watts = None if milliwatts is None else milliwatts * WATTS_PER_MILLIWATT
        joules, source = self._energy(watts, seconds)
        return GpuSample(
            index=self._index,
            uuid=self.uuid,
            name=self._name,
            memory_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            job_memory_bytes=self._job_memory_bytes(pids),
            sm_activity=self._gpm.look(),
            utilisation=None if rates is None else rates.gpu / 100,
            power_watts=watts,
            energy_joules=joules,
            energy_source=source,
            temperature_celsius=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            uncorrected_ecc_errors=self._ask(
                nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
            xids=tuple(xid for uuid, xid in xids if uuid == self.uuid),
        )

    def _energy(self, watts: float | None, seconds: float) -> tuple[float | None, str | None]:
        before, self._millijoules = self._millijoules, self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        if before is not None and self._millijoules is not None and self._millijoules >= before:
            return (self._millijoules - before) * JOULES_PER_MILLIJOULE, "nvml_counter"
        return (None, None) if watts is None else (watts * seconds, "nvml_power")

    def _job_memory_bytes(self, pids: Collection[int]) -> int | None:
        """None where the driver names none of the job's processes: in a container it sees other pids."""
        running = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        own = [item.usedGpuMemory for item in running or () if item.pid in pids]
        return sum(own) if own and None not in own else None

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None where this device or driver has none."""
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


class _SmActivity:
    """Share of busy multiprocessors between two looks, by NVML's GPM (from Hopper on)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before: Any = None
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._before = self._sample()

    def look(self) -> float | None:
        if self._before is None:
            return None
        nvml = self._nvml
        try:
            after = self._sample()
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            request.sample1, request.sample2 = self._before, after
            request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError:
            return None
        nvml.nvmlGpmSampleFree(self._before)
        self._before = after
        metric = request.metrics[0]
        return float(metric.value) / 100 if metric.nvmlReturn == nvml.NVML_SUCCESS else None

    def _sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample


class _XidEvents:
    """Critical Xid errors as the driver tells them; nothing where it does not let this user listen."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._set: Any = None
        with contextlib.suppress(nvml.NVMLError):
            self._set = nvml.nvmlEventSetCreate()
            for handle in handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)

    def take(self) -> list[tuple[str, int]]:
        """UUID and number of every error since the last call."""
        events: list[tuple[str, int]] = []
        with contextlib.suppress(self._nvml.NVMLError):
            while self._set is not None:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
                events.append((self._nvml.nvmlDeviceGetUUID(event.device), int(event.eventData)))
        return events

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            if self._set is not None:
                self._nvml.nvmlEventSetFree(self._set)
