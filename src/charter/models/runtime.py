"""Settings of torch in this process: threads, determinism, device, precision."""

import contextlib
import ctypes
import importlib.util
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from charter.artifacts.group import LOCAL_RANK
from charter.errors import DataError, MissingExtraError
from charter.models.engine_layout import CPU_ATTENTION, CPU_LAYERS, CPU_PROMPTS, DEFAULT_ATTENTION
from charter.spec.project import BITS, EXACT

SIXTEEN_BITS = {"bf16": torch.bfloat16, "fp16": torch.float16}
FLASH, FLEX, EAGER = "flash_attention_2", "flex_attention", "eager"
ATTENTION = {"sdpa": "", EAGER: "", FLASH: "flash_attn", FLEX: ""}
"""Implementations of attention that Hugging Face's classes know, and the package that each needs."""
CUDA_ONLY = (FLASH, FLEX)
"""Flex attention has no backward pass on a CPU (torch 2.13)."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
LARGEST_KEPT = 2**25
"""Bytes of a block that the allocator takes from its own heap; glibc takes no more than 32 MiB here."""


COLLECTIVES = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "NCCL_NVLS_ENABLE": "0", "NCCL_COLLNET_ENABLE": "0"}
"""One order of adding up over processes: left free, NCCL chooses by what it measures when a stage starts.

Source: NCCL's user guide, "Environment Variables".
"""
CUDA_ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **COLLECTIVES}
"""Read by cuBLAS at its first product and by NCCL when processes meet; `:4096:8` gives each stream its own memory.

Source: NVIDIA's cuBLAS documentation, section 2.1.4, "Results Reproducibility".
"""
FLASH_DETERMINISTIC = "FLASH_ATTENTION_DETERMINISTIC"
"""The package flash-attn, which torch's switch does not reach, adds up in one order where this is 1."""


_CONFIGURED: dict[str, str | int] = {}
"""The frozen values of the stage of this process."""


def configure(frozen: Mapping[str, str | int]) -> torch.device:
    """Set threads and deterministic kernels as the stage's record froze them, and return the device.

    Bits depend on the number of threads and on the kernels, so both come from the record, never from the
    machine that happens to run the resume. With less than `exact: bits` kernels are those that torch takes by itself.
    """
    _CONFIGURED.clear()
    _CONFIGURED.update(frozen)
    torch.set_num_threads(int(frozen.get("threads", 1)))
    device = torch.device(str(frozen.get("device", "cpu")))
    is_exact = frozen.get(EXACT, BITS) == BITS
    if device.type == "cuda":
        if is_exact:
            os.environ.update(CUDA_ENVIRONMENT)
        if not torch.cuda.is_available():
            raise DataError("this stage was started on a CUDA device; none is visible here")
        device = torch.device("cuda", own_gpu(torch.cuda.device_count()))
        torch.cuda.set_device(device)
        if is_exact:
            _plain_products()
    if frozen.get("attention") == FLASH and is_exact:
        os.environ[FLASH_DETERMINISTIC] = "1"
    torch.use_deterministic_algorithms(is_exact)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if device.type == "cpu":
        keep_freed_memory()
        if CPU_ATTENTION in frozen:
            attend_in_fp32()
    return device


def own_gpu(count: int) -> int:
    """The number of this process's GPU among `count` visible ones: shards and ranks of a stage have one each."""
    return int(os.environ.get(LOCAL_RANK, "0")) % count


def _plain_products() -> None:
    """Products in the precision that they are asked for, by kernels that are not chosen by measuring."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def keep_freed_memory() -> None:
    """Let the allocator of glibc keep large blocks instead of giving them back after every operation.

    A training step frees and asks again for the same tensors; each time the system would have to map and clear
    their pages: 3 to 8 % of a small model's step (benchmarks/freed_memory.py). Elsewhere than on glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def attend_in_fp32() -> None:
    """Let `sdpa` of transformers' models leave autocast on processors: its inputs stay, or become, fp32.

    Torch's fused attention there takes 2.5 to 3 times as long forward and backward in bf16 as in fp32 at up to 128
    tokens (torch 2.13, one Zen 4 core), since its backward pass converts at every product; queries and keys are
    fp32 already, after their rotation.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
    ) -> tuple[Tensor, None]:
        """Attend as transformers does, outside of autocast where that is in use."""
        attended: tuple[Tensor, None]
        if not torch.is_autocast_enabled("cpu"):
            attended = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
            return attended
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.float()
        with torch.autocast("cpu", enabled=False):
            attended = sdpa_attention_forward(module, query.float(), key.float(), value.float(), attention_mask, **more)
        return attended

    AttentionInterface.register(DEFAULT_ATTENTION, attend)


def is_queued(device: torch.device) -> bool:
    """Return True if operations on a device are only queued, so that reading a value makes the host wait."""
    return device.type != "cpu"


def reads_prompts_once(device: torch.device) -> bool:
    """Return True if a prompt is read once for all answers to it: on processors where the stage has begun so."""
    return is_queued(device) or CPU_PROMPTS in _CONFIGURED


def joins_layers() -> bool:
    """Return True if a stage on processors has begun with layers that are functions of their own."""
    return CPU_LAYERS in _CONFIGURED


def on_device(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on `device`; from the host without a wait, through memory that an accelerator reads by itself.

    A copy from ordinary memory makes the host wait until the device has done all that it was given before.
    """
    if value.device.type != "cpu" or device.type == "cpu":
        return value.to(device)
    return (value.pin_memory() if device.type == "cuda" else value).to(device, non_blocking=True)


def precision(dtype: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The autocast context of a stage: matmuls in 16 bits, weights and sums in fp32; nothing for fp32."""
    if dtype in SIXTEEN_BITS:
        return torch.autocast(device_type=device.type, dtype=SIXTEEN_BITS[dtype])
    return contextlib.nullcontext()


def checked_attention(name: str) -> str:
    """The name of an attention implementation that can run here; else what is missing."""
    if name not in ATTENTION:
        raise DataError(f"attention {name!r} is unknown; use one of {', '.join(ATTENTION)}")
    package = ATTENTION[name]
    if package and importlib.util.find_spec(package) is None:
        raise MissingExtraError(
            f"attention {name} needs the package {package.replace('_', '-')}, which is not installed; install it (it "
            "needs a CUDA device), or use attention sdpa"
        )
    if name in CUDA_ONLY and not torch.cuda.is_available():
        raise DataError(f"attention {name} needs a CUDA device, none is visible here; use attention sdpa")
    return name


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block under its own seed (weight initialisation, dropout) and restore the generator after it.

    Dropout takes torch's global generator, so every optimizer step seeds it from its own counter.
    """
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield
