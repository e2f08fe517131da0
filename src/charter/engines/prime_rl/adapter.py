"""prime-rl: `run/checkpoints/step_N` of trainer and orchestrator, its file of metrics, weights as vLLM gets them.

Read in prime-rl 559b447: trainer/ckpt.py (torch's distributed checkpoint, whose `.metadata` comes last),
orchestrator/ckpt.py (`progress.pt`, renamed into its place before the trainer's step has ended), utils/pathing.py,
transports/weights/filesystem.py (`broadcasts/step_N` in the form of a hub, `STABLE` last), trainer/utils.py (of these
it keeps the last two, and those of checkpoints).
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint
from charter.engines.common.files import link_tree, move_to, write_model
from charter.engines.common.logged import LoggedStep
from charter.engines.common.request import Handover
from charter.engines.prime_rl.log import file_steps
from charter.engines.prime_rl.mapping import RUN
from charter.errors import StageError

CHECKPOINTS, WEIGHTS, METRICS = f"{RUN}/checkpoints", f"{RUN}/broadcasts", f"{RUN}/metrics.jsonl"
TAKEN = "taken"
"""Below the work directory: the newest checkpoint that Charter has."""
_NAME = re.compile(r"step_(\d+)")


class PrimeRlAdapter(EngineAdapter):
    """prime-rl's `rl` as one stage."""

    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those whose trainer and orchestrator have both written theirs."""
        return [item for item in _steps(work / CHECKPOINTS) if _is_whole(item.path)]

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Move it away: a start takes the newest, so only what Charter has placed may lie there."""
        move_to(work / TAKEN, checkpoint.path)

    def place(self, saved: Path, step: int, work: Path) -> str:
        """The only one in its directory, where run_rl.py looks for the newest."""
        for name in (TAKEN, CHECKPOINTS):
            shutil.rmtree(work / name, ignore_errors=True)
        (work / METRICS).unlink(missing_ok=True)
        target = work / CHECKPOINTS / f"step_{step}"
        link_tree(saved, target, without=(MANIFEST,))
        return str(target)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From the file that trainer and orchestrator write: `rl` prints nothing of a step."""
        return file_steps(work / METRICS)

    def final_step(self, work: Path) -> int | None:
        """The step of the newest whole weights, which are written after every step."""
        return max((item.step for item in _steps(work / WEIGHTS) if (item.path / "STABLE").exists()), default=None)

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The weights that vLLM was given last."""
        step = self.final_step(work)
        if step is None:
            raise StageError(f"{work / WEIGHTS} has no whole weights of prime-rl")
        directory = work / WEIGHTS / f"step_{step}"
        if next(directory.glob("adapter_*"), None) is not None:
            raise StageError(f"{directory} holds an adapter alone; merge it with peft before it is used")
        write_model(sorted(directory.glob("*.safetensors")), directory, Path(handover.paths.trained), target)
        return {"converted_by": "weights that prime-rl's trainer wrote for vLLM", "step": step}


def _steps(directory: Path) -> Iterator[EngineCheckpoint]:
    try:
        paths = list(directory.iterdir())
    except OSError:
        return
    for step, path in sorted((int(name[1]), path) for path in paths if (name := _NAME.fullmatch(path.name))):
        yield EngineCheckpoint(step=step, path=path)


def _is_whole(path: Path) -> bool:
    try:
        parts = (path / "trainer" / ".metadata", path / "orchestrator" / "progress.pt")
        return all(part.stat().st_size > 0 for part in parts) and any((path / "trainer").glob("*.distcp"))
    except OSError:
        return False
