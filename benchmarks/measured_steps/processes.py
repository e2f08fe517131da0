"""Child processes: one per case, forked from a server that has imported torch but never touched the device."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

from .grid import Case

PRELOADED = [
    "charter.train.ppo",
    "charter.train.sft",
    "charter.train.preference_model",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen3.modeling_qwen3",
]
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
DETAIL = 300


def in_child(task: Case | None, *options: Any, timeout: float) -> dict[str, Any]:
    """The answer of a child: `status` is ok, oom, failed or late; without a case it says what the machine is."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(sender, task, options), daemon=True)
    child.start()
    sender.close()
    try:
        answer: dict[str, Any] = (
            receiver.recv() if receiver.poll(timeout) else {"status": "late", "detail": f"{timeout:.0f} s"}
        )
    except EOFError:
        child.join(10)
        answer = {
            "status": "failed",
            "detail": f"the process ended with {child.exitcode} (-9: killed for host memory?)",
        }
    child.join(10 if answer["status"] != "late" else 0)
    if child.is_alive():
        child.kill()
        child.join()
    return answer


def _child(sender: Connection, task: Case | None, options: tuple[Any, ...]) -> None:
    try:
        if task is None:
            answer = _machine(*options)
        else:
            from .child import measure

            answer = measure(task, *options)
        sender.send({"status": "ok", **answer})
    except Exception as error:  # the parent goes on with the next case and prints this one
        text = f"{type(error).__name__}: {error}"
        status = "oom" if any(sign in text for sign in OUT_OF_MEMORY) or isinstance(error, MemoryError) else "failed"
        sender.send({"status": status, "detail": text[:DETAIL]})


def _machine(want_cpu: bool) -> dict[str, Any]:
    """The accelerator at hand, or the processors, and the versions that matter."""
    import torch
    import transformers

    on_cuda = torch.cuda.is_available() and not want_cpu
    properties = torch.cuda.get_device_properties(0) if on_cuda else None
    return {
        "device": "cuda" if on_cuda else "cpu",
        "name": properties.name if properties else "cpu",
        "memory_bytes": properties.total_memory if properties else 0,
        "devices": torch.cuda.device_count() if on_cuda else 1,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cuda": torch.version.cuda,
    }
