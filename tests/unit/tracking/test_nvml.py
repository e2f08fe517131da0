"""Accelerators by NVML, with the library replaced: there is none on the machine that runs these tests.

The stand-in has the names and the shapes of `nvidia-ml-py` 13.615, and answers or refuses what a test wants.
"""

from types import SimpleNamespace

import pytest

from charter.metering.sampler import NoGpuMeter, open_gpu_meter


class NVMLError(Exception):
    pass


class Nvml:
    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0
    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_SUCCESS = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *, count=2, refused=(), gpm=False):
        self.count, self.refused, self.gpm = count, set(refused), gpm
        self.millijoules = 1000
        self.xids = []
        self.processes = [SimpleNamespace(pid=11, usedGpuMemory=30), SimpleNamespace(pid=99, usedGpuMemory=50)]
        self.open = False

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetName": "NVIDIA H100",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80, used=40),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=70, memory=10),
            "nvmlDeviceGetPowerUsage": 400_000,
            "nvmlDeviceGetTemperature": 60,
            "nvmlDeviceGetTotalEccErrors": 3,
        }
        if name not in answers:
            raise AttributeError(name)

        def answer(*_):
            if name in self.refused:
                raise NVMLError(name)
            return answers[name]

        return answer

    def _refuse(self, name):
        if name in self.refused:
            raise NVMLError(name)

    def nvmlInit(self):
        self._refuse("nvmlInit")
        self.open = True

    def nvmlShutdown(self):
        self.open = False

    def nvmlDeviceGetCount(self):
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= self.count:
            raise NVMLError("no such device")
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if not uuid.startswith("GPU-"):
            raise NVMLError("no such device")
        return uuid

    def nvmlDeviceGetUUID(self, handle):
        return handle

    def nvmlDeviceGetIndex(self, handle):
        return int(handle[4:])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self._refuse("nvmlDeviceGetTotalEnergyConsumption")
        return self.millijoules

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return self.processes

    def nvmlGpmQueryDeviceSupport(self, handle):
        return SimpleNamespace(isSupportedDevice=self.gpm)

    def nvmlGpmSampleAlloc(self):
        return object()

    def nvmlGpmSampleGet(self, handle, sample):
        pass

    def nvmlGpmSampleFree(self, sample):
        pass

    def c_nvmlGpmMetricsGet_t(self):
        return SimpleNamespace(metrics=[SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0)])

    def nvmlGpmMetricsGet(self, asked):
        assert (asked.metrics[0].metricId, asked.numMetrics) == (2, 1)
        asked.metrics[0].value = 25.0

    def nvmlEventSetCreate(self):
        self._refuse("nvmlEventSetCreate")
        return "set"

    def nvmlDeviceRegisterEvents(self, handle, kind, events):
        assert kind == 8

    def nvmlEventSetWait_v2(self, events, timeout):
        if not self.xids:
            raise NVMLError("timeout")
        device, number = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=number)

    def nvmlEventSetFree(self, events):
        pass


def look(nvml, visible=None, seconds=10.0, pids=(11,)):
    return open_gpu_meter(visible, nvml=nvml).look(seconds, pids)


def test_what_a_device_tells():
    nvml = Nvml(gpm=True)
    meter = open_gpu_meter("1", nvml=nvml)
    nvml.millijoules += 4_000_000
    nvml.xids = [("GPU-1", 79), ("GPU-0", 13)]
    (gpu,) = meter.look(10.0, (11,))
    assert (gpu.index, gpu.uuid, gpu.name) == (1, "GPU-1", "NVIDIA H100")
    assert (gpu.sm_activity, gpu.utilisation, gpu.activity) == (0.25, 0.7, 0.25)
    assert (gpu.memory_bytes, gpu.memory_used_bytes, gpu.job_memory_bytes) == (80, 40, 30)
    assert (gpu.energy_joules, gpu.energy_source, gpu.power_watts) == (4000.0, "nvml_counter", 400.0)
    assert (gpu.temperature_celsius, gpu.uncorrected_ecc_errors, gpu.xids) == (60, 3, (79,))
    meter.close()
    assert not nvml.open


def test_only_the_accelerators_of_the_job_are_metered():
    assert [gpu.index for gpu in look(Nvml(count=8), "2,5")] == [2, 5]
    assert [gpu.uuid for gpu in look(Nvml(count=8), "GPU-3")] == ["GPU-3"]
    assert len(look(Nvml(count=8))) == 8


def test_without_an_energy_counter_power_times_time():
    (gpu,) = look(Nvml(refused={"nvmlDeviceGetTotalEnergyConsumption"}), "0", seconds=5.0)
    assert (gpu.energy_joules, gpu.energy_source) == (2000.0, "nvml_power")


def test_a_counter_that_began_again_is_no_negative_energy():
    nvml = Nvml()
    meter = open_gpu_meter("0", nvml=nvml)
    nvml.millijoules = 10
    (gpu,) = meter.look(5.0, ())
    assert (gpu.energy_joules, gpu.energy_source) == (2000.0, "nvml_power")


REFUSED = ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo")


def test_what_a_device_refuses_is_unknown():
    (gpu,) = look(Nvml(refused={*REFUSED, "nvmlDeviceGetTotalEnergyConsumption", "nvmlEventSetCreate"}), "0")
    assert (gpu.activity, gpu.power_watts, gpu.energy_joules, gpu.energy_source) == (None,) * 4
    assert (gpu.memory_bytes, gpu.xids) == (None, ())


def test_in_a_container_the_jobs_memory_is_unknown():
    (gpu,) = look(Nvml(), "0", pids=(4711,))
    assert gpu.job_memory_bytes is None


@pytest.mark.parametrize(
    ("visible", "nvml", "note"),
    [
        (None, Nvml(refused={"nvmlInit"}), "no GPU metering: nvmlInit"),
        (None, Nvml(count=0), "no GPU metering: none is there"),
        ("9", Nvml(), "no GPU metering: the driver knows none of 9"),
        ("", Nvml(), "no GPU metering: the stage computes on processors"),
    ],
)
def test_why_there_is_none(visible, nvml, note):
    meter = open_gpu_meter(visible, nvml=nvml)
    assert isinstance(meter, NoGpuMeter)
    assert (meter.note, meter.look(1.0, ())) == (note, None)
