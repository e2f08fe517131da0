"""The stall of training by a checkpoint of 200 MB: plain, in the background, and what is chosen.

    python benchmarks/checkpoint_stall.py [--megabytes 200] [--rounds 7] [--device cpu|cuda]

A state of that size (parameters and two moments of AdamW) is saved by Charter's own `Checkpointer`, in turn in both
modes, with work between the saves. Every save is durable: flushed, hashed, named. What a save in the background costs
is the time that `save` took and how much longer the work beside it took than such work takes alone. The last line is
one JSON object: medians in seconds, and the mode that `CHARTER_SAVE=auto` chooses from these very figures.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from charter.artifacts.checkpoints import Position
from charter.artifacts.job import Job, write_job
from charter.artifacts.stage_dir import StageDir
from charter.models.ranks import Ranks
from charter.spec.stage import SftStage
from charter.train.checkpoint import Checkpointer, SaveMode, choose, slow_down
from charter.train.state import TrainState

PARTS = 12
"""Pieces of work between two saves, each of about a quarter of a second."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--directory", type=Path, help="Where to write; the system's temporary directory if left out.")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        result = measure(Path(directory), options.device, int(options.megabytes * 1e6), options.rounds)
    print(json.dumps(result))


def measure(directory: Path, device: str, state_bytes: int, rounds: int) -> dict[str, object]:
    """Medians of both modes over so many saves of each."""
    state = make_state(state_bytes, device)
    checkpoints = Checkpointer(make_stage(directory), Ranks(device=torch.device(device)), state, SaveMode("sync"))
    part = make_part(device)
    usual = [part() for _ in range(2 * PARTS)]
    sync: list[float] = []
    stalls: list[float] = []
    slowed: list[float] = []
    durable: list[float] = []
    for step in range(2 * rounds + 2):
        kind = "async" if step % 2 else "sync"
        checkpoints.mode = SaveMode(kind)
        began = time.perf_counter()
        checkpoints.save(Position(step + 1))
        seconds = time.perf_counter() - began
        beside: list[tuple[int, float]] = []
        for _ in range(PARTS):
            flying = checkpoints._in_flight
            busy = flying is not None and flying.is_busy
            (beside.append((0, part())) if busy else usual.append(part()))
        checkpoints.finish()
        if step < 2:
            continue
        (sync if kind == "sync" else stalls).append(seconds)
        if kind == "async":
            slowed.append(slow_down(beside, {0: usual}))
            durable.append(seconds + checkpoints.metrics()["checkpoint_background_seconds"])
        print(f"{kind:5} {seconds:.3f} s" + (f", beside it {slowed[-1]:.3f} s lost" if kind == "async" else ""))
        checkpoints.metrics()
    costs = [stall + lost for stall, lost in zip(stalls, slowed, strict=True)]
    sync_seconds, async_seconds = statistics.median(sync), statistics.median(stalls)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "state_megabytes": round(state_bytes / 1e6),
        "saves_of_each": len(sync),
        "sync_seconds": round(sync_seconds, 4),
        "async_stall_seconds": round(async_seconds, 4),
        "ratio": round(async_seconds / sync_seconds, 4),
        "async_cost_seconds": round(statistics.median(costs), 4),
        "cost_ratio": round(statistics.median(costs) / sync_seconds, 4),
        "durable_seconds": round(statistics.median(durable), 4),
        "chosen": choose(sync, costs),
    }


def make_state(state_bytes: int, device: str) -> TrainState:
    """Parameters and AdamW's moments of so many bytes together."""
    width = 1024
    layers = max(1, round(state_bytes / (12 * width * width)))
    module = nn.ModuleList([nn.Linear(width, width, bias=False, device=device) for _ in range(layers)])
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return TrainState(modules={"model": module}, optimizers={"model": optimizer})


def make_stage(directory: Path) -> StageDir:
    """A stage directory with a job in it."""
    job = Job(
        run="stall", stage="sft", kind="sft", fingerprint="0" * 64, seed=1,
        spec=SftStage(init="model", data=("data",), steps=1), inputs={}, constitution=None, frozen={}, keep_last=2,
    )  # fmt: skip
    write_job(directory, job)
    return StageDir(directory)


def make_part(device: str) -> Callable[[], float]:
    """Work as training does it, and how long it took this time."""
    size = 1024 if device == "cpu" else 8192
    left, right = torch.randn(size, size, device=device), torch.randn(size, size, device=device)

    def once() -> float:
        began = time.perf_counter()
        for _ in range(repeats):
            torch.mm(left, right)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    repeats = 1
    once()
    repeats = max(1, round(0.25 / once()))
    return once


if __name__ == "__main__":
    main()
