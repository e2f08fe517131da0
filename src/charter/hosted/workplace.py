"""The directory that an engine works in, below its stage's: emptied before every start, but for what is still good.

What an engine has left of its own is never resumed from: Trainers take the checkpoint with the highest number, whole
or not (transformers#35782). Whole checkpoints are taken over first, everything else goes; Charter's own copy of the
newest one is put where the engine finds it.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.lease import host_id
from charter.artifacts.stage_dir import StageDir
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint
from charter.engines.common.files import OWNER, PROCESSES, link_tree, owner_of
from charter.hosted.beating import beating

WORK, LOG = "engine", "log.txt"
ENGINE_KEEPS = 2
"""How many of its newest checkpoints every engine is told to keep at least."""


def take_over(stage: StageDir, adapter: EngineAdapter, work: Path) -> bool:
    """Make the engine's whole checkpoints Charter's own: hashed, flushed, kept as the file says; whether there was one.

    Only those younger than what Charter has; what vanishes while it is taken was one too many for the engine.
    """
    newest = max((position.step for position in stage.checkpoints.positions()), default=0)
    checkpoints = [item for item in _kept_by_engine(adapter, work) if item.step > newest]
    return any([_take(stage, adapter, work, item) for item in checkpoints])


def _kept_by_engine(adapter: EngineAdapter, work: Path) -> Sequence[EngineCheckpoint]:
    """Those that the engine does not remove yet: an older one may look whole while half of it is gone already."""
    return sorted(adapter.checkpoints(work), key=lambda item: item.step)[-ENGINE_KEEPS:]


def _take(stage: StageDir, adapter: EngineAdapter, work: Path, checkpoint: EngineCheckpoint) -> bool:
    def link(target: Path) -> None:
        link_tree(checkpoint.path, target)
        if checkpoint not in _kept_by_engine(adapter, work):
            raise FileNotFoundError(checkpoint.path)

    try:
        with beating(stage):
            stage.save_checkpoint(checkpoint.step, link)
    except FileNotFoundError:
        return False
    adapter.taken(checkpoint, work)
    return True


def take_over_left(stage: StageDir, adapter: EngineAdapter, work: Path) -> None:
    """The same for what an earlier start has left, when this machine has not gone down since.

    A file that was never flushed may have its size and not its content after that.
    """
    if owner_of(work) == _owner(stage):
        take_over(stage, adapter, work)


def empty(stage: StageDir, work: Path) -> None:
    """Remove everything that the engine has left, and say whose the directory is now."""
    if work.exists():
        durable.discard_dir(work)
    durable.make_dir(work)
    durable.write_json(work / OWNER, _owner(stage))


def discard(work: Path) -> None:
    """Remove the directory of a finished stage; its outputs have names of their own."""
    shutil.rmtree(work, ignore_errors=True)


def _owner(stage: StageDir) -> dict[str, str | int]:
    return {
        "engine": stage.job.spec.engine,
        "host": host_id(),
        "fingerprint": stage.job.fingerprint,
        PROCESSES: int(stage.job.frozen.get("world_size", 1)),
    }
