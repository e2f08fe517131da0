"""What each of several processes does in the tests of sharded checkpoints."""

import hashlib
import json
import multiprocessing
import os
import traceback
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

PRELOAD = ["torch", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor.parallel",
           "charter.train.checkpoint"]  # fmt: skip


def run_ranks(world: int, what: str, directory: Path, **options: Any) -> list[Any]:
    """The result of function `what` of this module in every one of `world` processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    group = uuid.uuid4().hex
    places = [directory / f"result-{group}-{rank}.json" for rank in range(world)]
    started = [
        context.Process(target=_process, args=(rank, world, group, what, directory, options, places[rank]))
        for rank in range(world)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(90)
    assert [process.exitcode for process in started] == [0] * world, [
        place.read_text() if place.exists() else None for place in places
    ]
    return [json.loads(place.read_text()) for place in places]


def _process(rank: int, world: int, group: str, what: str, directory: Path, options: Any, place: Path) -> None:
    import torch

    from charter.models.ranks import join, leave

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "CHARTER_GROUP": group}
    torch.set_num_threads(1)
    try:
        ranks = join(directory, torch.device("cpu"))
        result = globals()[what](directory, ranks, **options)
        place.write_text(json.dumps(result))
        leave()
    except BaseException:
        place.write_text(json.dumps(traceback.format_exc()))
        os._exit(1)


def make_state(ranks: Any, kind: str, seed: int) -> Any:
    """A small model with its optimizer: plain, ddp, fsdp2 or fsdp2 over tensor parallelism."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    from charter.train.state import TrainState

    torch.manual_seed(seed)
    module: Any = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8), nn.Linear(8, 5))
    nn.init.ones_(module[3].bias).requires_grad_(False)
    if kind == "tp":
        mesh = init_device_mesh("cpu", (ranks.world_size // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(module, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(module[0], mesh=mesh["data"])
        fully_shard(module, mesh=mesh["data"])
    if kind in ("fsdp2", "offloaded"):
        kept = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if kind == "offloaded" else {}
        fully_shard(module[0], **kept)
        fully_shard(module, **kept)
    wrapped = DistributedDataParallel(module) if kind == "ddp" else module
    optimizer = torch.optim.AdamW([item for item in module.parameters() if item.requires_grad], lr=0.1)
    return TrainState(modules={"net": wrapped}, optimizers={"net": optimizer})


def work(state: Any, step: int) -> None:
    """One step on the same rows everywhere."""
    import torch

    state.modules["net"](torch.arange(16.0).reshape(2, 8) / (step + 3)).square().sum().backward()
    state.optimizers["net"].step()
    state.optimizers["net"].zero_grad(set_to_none=True)
    state.buffers["rollout"] = torch.arange(step + 2)


def digests(state: Any) -> dict[str, str]:
    """A hash of every tensor that is saved, whole."""
    from torch.distributed.tensor import DTensor

    from charter.train.state import tensors_of

    found = {}
    for name, tensor in tensors_of(state).items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found[name] = hashlib.sha256(whole.numpy().tobytes()).hexdigest()
    return found | {name: str(value.tolist()) for name, value in state.buffers.items()}


def checkpointer(directory: Path, ranks: Any, state: Any, mode: str = "sync") -> Any:
    """The checkpoints of the stage in `directory`."""
    from charter.artifacts.stage_dir import StageDir
    from charter.train.checkpoint import Checkpointer, SaveMode

    return Checkpointer(StageDir(directory), ranks, state, SaveMode(mode))


def save(directory: Path, ranks: Any, *, kind: str, mode: str, steps: int = 2) -> Any:
    """Work, save, work on while that is written; what was saved, and what became of it."""
    from charter.artifacts.checkpoints import Position

    state = make_state(ranks, kind, seed=1)
    for step in range(steps):
        work(state, step)
    saved, saver = digests(state), checkpointer(directory, ranks, state, mode)
    saver.save(Position(steps), 1.0)
    for step in range(steps, steps + 3):
        work(state, step)
    saver.finish()
    return {"saved": saved, "later": digests(state)}


def load(directory: Path, ranks: Any, *, kind: str, go_on: int = 0) -> Any:
    """Load into another model and work on."""
    from charter.errors import DataError

    state = make_state(ranks, kind, seed=2)
    try:
        position = checkpointer(directory, ranks, state).load_latest()
    except DataError as error:
        return {"error": str(error)}
    loaded = digests(state)
    for step in range(position.step, position.step + go_on):
        work(state, step)
    return {"step": position.step, "saved": loaded, "later": digests(state)}


def fail_on_one(directory: Path, ranks: Any, *, mode: str) -> Any:
    """One process has no room for its files; then there is room again."""
    from charter.artifacts import faults
    from charter.artifacts.checkpoints import Position
    from charter.errors import DataError

    state = make_state(ranks, "fsdp2", seed=1)
    saver = checkpointer(directory, ranks, state, mode)
    saver.save(Position(1))
    saver.finish()
    found = []
    for action in (1, 2):
        faults.reset_count()
        os.environ |= {"CHARTER_FAULT_AT": f"{action}:enospc", "CHARTER_FAULT_RANK": "1"}
        try:
            saver.save(Position(2))
            saver.finish()
        except DataError as error:
            found.append(str(error).partition(":")[0])
        os.environ.pop("CHARTER_FAULT_AT")
        ranks.wait()
        found.append(sorted(os.listdir(directory / "state")))
    saver.save(Position(2))
    saver.finish()
    ranks.wait()
    return [*found, sorted(os.listdir(directory / "state"))]


def reshard_of(directory: Path) -> None:
    """Let the stage go on with another number of processes."""
    from charter.artifacts.job import read_job, write_job

    job = read_job(directory)
    write_job(directory, replace(job, frozen={**job.frozen, "resharded": "at step 2"}))


def saves_killed_at(directory: Path, mode: str, fault: str | None) -> list[str]:
    """Save three times in a process of its own that is killed at a durable action; the actions it logged."""
    import tiny

    from charter.spec.stage import SftStage

    tiny.stage_dir(directory, SftStage(init="base", data=("chat",), steps=6), keep_last=1)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=_save_three, args=(directory, mode, fault))
    process.start()
    process.join(60)
    assert process.exitcode == (0 if fault is None else -9), (fault, process.exitcode)
    return (directory / "actions").read_text().splitlines()


def _save_three(directory: Path, mode: str, fault: str | None) -> None:
    import torch
    from torch import nn

    from charter.artifacts.checkpoints import Position
    from charter.models.ranks import Ranks
    from charter.train.state import TrainState

    os.environ["CHARTER_FAULT_LOG"] = str(directory / "actions")
    if fault is not None:
        os.environ["CHARTER_FAULT_AT"] = fault
    saver = checkpointer(directory, Ranks(), TrainState(modules={}, optimizers={}), mode)
    for step in (1, 2, 3):
        saver.state.buffers["step"] = torch.tensor(step)
        saver.state.modules["net"] = nn.Linear(4, 4)
        saver.save(Position(step))
    saver.finish()
