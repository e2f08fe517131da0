"""Looks at accelerators and their driver, and whether torch was built for them."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from charter.launch.machine import gpus_here
from charter.launch.node_checks.nvidia import accelerators, kernel_log, xid_errors
from charter.launch.node_checks.report import Finding
from charter.pipeline.doctor.check import Check
from charter.units import GIB

METER = 'pip install "charter-plan[meter]"'
TORCH_FOR_CUDA = "install a CUDA build of torch: pip install torch (without the CPU index)"


def examine_drivers() -> tuple[Check, ...]:
    """Accelerators, driver, memory errors, and torch's build."""
    count = gpus_here()
    if not count:
        return (Check(group="drivers", name="accelerators", ok=True, found="none; stages run on the processor"),)
    findings = (*accelerators(), xid_errors(kernel_log()))
    return (*_driver(count), *(_of(finding) for finding in findings), torch_build(torch_cuda(), count))


def _of(finding: Finding) -> Check:
    return Check(group="drivers", name=finding.name, ok=finding.ok, found=finding.found, advice=finding.advice)


def _driver(count: int) -> Sequence[Check]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return [Check(group="drivers", name="driver", ok=False, found=f"{count} GPUs, no NVML", advice=METER)]
    except Exception as error:
        advice = "install or load the NVIDIA driver: nvidia-smi must list the devices"
        return [Check(group="drivers", name="driver", ok=False, found=f"{count} GPUs; {error}", advice=advice)]
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        memory = pynvml.nvmlDeviceGetMemoryInfo(device).total / GIB
        found = (
            f"{count} x {pynvml.nvmlDeviceGetName(device)}, {memory:.0f} GiB each; driver "
            f"{pynvml.nvmlSystemGetDriverVersion()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
        )
        return [Check(group="drivers", name="driver", ok=True, found=found)]
    finally:
        pynvml.nvmlShutdown()


def torch_build(cuda: str | None, count: int) -> Check:
    """Whether torch can use the GPUs that are here.

    >>> torch_build(None, 8).ok, torch_build("12.8", 8).ok
    (False, True)
    """
    found = f"built for CUDA {cuda}" if cuda else f"built for processors only, beside {count} GPUs"
    return Check(group="drivers", name="torch", ok=cuda is not None, found=found, advice=TORCH_FOR_CUDA)


def torch_cuda(facts_file: Path | None = None) -> str | None:
    """The CUDA version that torch was built for, read without importing it; None for a build without."""
    if facts_file is None:
        found = find_spec("torch")
        if found is None or found.origin is None:
            return None
        facts_file = Path(found.origin).with_name("version").with_suffix(".py")
    match = re.search(r"^cuda\b[^=]*= '([\d.]+)'", facts_file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return match[1] if match else None
