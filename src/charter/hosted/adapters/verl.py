"""verl: `checkpoints/global_step_N`, console lines, weights merged by verl's own `model_merger`."""

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from charter.artifacts.whole_dir import MANIFEST
from charter.errors import StageError
from charter.handover.request import Handover
from charter.handover.verl.trainer import CHECKPOINTS
from charter.hosted.adapter import EngineCheckpoint
from charter.hosted.adapters.verl_checkpoint import ACTOR, is_whole, tracked_step
from charter.hosted.files import link_tree, move_to, read_log
from charter.hosted.logged import LoggedStep
from charter.hosted.logs.verl import console_steps
from charter.hosted.model_files import write_model

TAKEN, RESUME, MERGED = "taken", "resume", "merged"
"""Below the work directory: the newest checkpoint that Charter has; what verl goes on from; the final weights."""
_NAME = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class VerlAdapter:
    """verl's trainers as one stage; `python` is the interpreter that has verl."""

    python: str = "python"
    saves_on_sigterm: ClassVar[bool] = False

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those that verl has called whole and whose files are all there."""
        last = tracked_step(work / CHECKPOINTS)
        return [item for item in _whole_ones(work / CHECKPOINTS, work) if item.step <= last]

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Move it away: after a resume from before it, verl would write into its very files."""
        move_to(work / TAKEN, checkpoint.path)

    def place(self, saved: Path, step: int, work: Path) -> str:
        """Beside verl's own directory, which is emptied: its later steps would be called whole while rewritten."""
        target = work / RESUME / f"global_step_{step}"
        for name in (RESUME, TAKEN, CHECKPOINTS):
            shutil.rmtree(work / name, ignore_errors=True)
        link_tree(saved, target, without=(MANIFEST,))
        return str(target)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From its console lines: its file of metrics is emptied whenever it starts."""
        return read_log(log, console_steps)

    def final_step(self, work: Path) -> int | None:
        """The step of the newest whole checkpoint: a run that trained nothing has none beyond the one it began with."""
        newest = _newest(work, self)
        return None if newest is None else newest.step

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """Merge the shards of the newest checkpoint by verl's own command, in its environment."""
        newest = _newest(work, self)
        if newest is None:
            raise StageError(f"{work} has no whole checkpoint of verl to take weights from")
        merged = work / MERGED
        shutil.rmtree(merged, ignore_errors=True)
        command = merge_command(self.python, newest.path, merged)
        ended = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise StageError(f"verl.model_merger ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
        if (merged / "lora_adapter").exists():
            raise StageError(f"{merged} holds an adapter beside its base; merge them with peft before it is used")
        role = "policy" if "policy" in handover.paths.models else "init"
        write_model(sorted(merged.glob("*.safetensors")), merged, Path(handover.paths.models[role]), target)
        return {"converted_by": "verl.model_merger merge --backend fsdp", "step": newest.step}


def merge_command(python: str, checkpoint: Path, target: Path) -> list[str]:
    """verl's command that joins the shards of FSDP; of PPO the actor's, of SFT the only ones."""
    shards = checkpoint / ACTOR if (checkpoint / ACTOR).is_dir() else checkpoint
    where = ["--local_dir", str(shards), "--target_dir", str(target)]
    return [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp", *where]


def _newest(work: Path, adapter: VerlAdapter) -> EngineCheckpoint | None:
    checkpoints = [*adapter.checkpoints(work), *_whole_ones(work / TAKEN, work), *_whole_ones(work / RESUME, work)]
    return max(checkpoints, key=lambda item: item.step, default=None)


def _whole_ones(directory: Path, work: Path) -> Iterator[EngineCheckpoint]:
    try:
        paths = list(directory.iterdir())
    except OSError:
        return
    numbered = ((int(name[1]), path) for path in paths if (name := _NAME.fullmatch(path.name)))
    for step, path in sorted(numbered):
        if is_whole(path, work):
            yield EngineCheckpoint(step=step, path=path)
