"""How torch computes in this process: threads, determinism, device, precision."""

import contextlib
import os
from collections.abc import Iterator, Mapping

import torch

from charter.errors import DataError


def configure(frozen: Mapping[str, str | int]) -> torch.device:
    """Set threads and deterministic kernels as the stage's record froze them, and return the device.

    Bits depend on the number of threads and on the kernels, so both come from the record, never from the
    machine that happens to run the resume.
    """
    torch.set_num_threads(int(frozen.get("threads", 1)))
    device = torch.device(str(frozen.get("device", "cpu")))
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not torch.cuda.is_available():
            raise DataError("this stage was started on a CUDA device; none is visible here")
    torch.use_deterministic_algorithms(True)
    return device


def precision(dtype: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The autocast context of a stage: matmuls in bf16, weights and sums in fp32; nothing for fp32."""
    if dtype == "bf16":
        return torch.autocast(device_type=device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block under its own seed (weight initialisation, dropout) and restore the generator after it.

    Dropout takes torch's global generator, so every optimizer step seeds it from its own counter.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
