"""NeMo RL: `checkpoints/tmp_step_N` renamed to `step_N` when it is whole, console lines, consolidated weights.

Read in NeMo RL 0.6.0 (7ea279a): nemo_rl/utils/checkpoint.py (`training_info.json` and `config.yaml` first, the
algorithm's files next, the rename last; the highest number in the directory is taken at a start, whole or not),
nemo_rl/algorithms (`policy/weights`, `policy/optimizer`, `train_dataloader.pt`).

Log: steps as NeMo RL prints them.

Read in NeMo RL 0.6.0 (7ea279a): nemo_rl/algorithms/{sft,rm,dpo,grpo}.py. A step begins with
`===== Step 3/10 =====`, its figures follow under `Training Results:` (`  • Loss: 1.2345`), and
`  • Total step time: 12.34s` comes when it has ended.
"""

import json
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from charter.artifacts.safetensors_file import read_header
from charter.artifacts.whole_dir import MANIFEST
from charter.data.dataset import Turn
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep, LogReader
from charter.engines.common.files import link_tree, move_to, numbered_steps, read_log, write_model
from charter.engines.common.request import Handover
from charter.engines.nemo_rl.settings import CHECKPOINTS
from charter.errors import DataError, StageError

NAMES = {
    "Loss": "loss",
    "Avg Reward": "reward",
    "Generation KL Error": "generation_kl_error",
    "Mean Generation Length": "mean_new_tokens",
    "rewards_chosen_mean": "chosen_reward",
    "rewards_rejected_mean": "rejected_reward",
}
"""Others keep their own names; of DPO and the reward model they are those of its own metrics (`loss`, `accuracy`)."""
_STEP = re.compile(r"={5,} Step (\d+)/\d+ ={5,}")
_FIGURE = re.compile(r"^\s*• ([^:]+): (\S+)$")
_END = re.compile(r"^\s*• Total step time: ([\d.]+)s")
_RESULTS = "Training Results:"


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The steps that have ended, in what the process has printed."""
    step, values, listens = 0, dict[str, float](), False
    for line in lines:
        if begun := _STEP.search(line):
            step, values, listens = int(begun[1]), {}, False
        elif _RESULTS in line:
            listens = step > 0
        elif listens and (ended := _END.match(line)):
            yield LoggedStep(step=step, metrics=values, seconds=float(ended[1]))
            step, values, listens = 0, {}, False
        elif listens and (figure := _FIGURE.match(line)):
            values |= _value(figure[1], figure[2])


def _value(name: str, text: str) -> dict[str, float]:
    try:
        return {NAMES.get(name, name): float(text)}
    except ValueError:
        return {}


LOG = LogReader(console=console_steps)


TAKEN = "taken"
"""Below the work directory: the newest checkpoint that Charter has."""


class NemoRlAdapter(EngineAdapter):
    """NeMo RL's example scripts as one stage."""

    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those that have been renamed, and hold what every checkpoint holds."""
        return list(_whole_ones(work / CHECKPOINTS))

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Move it away: a start takes the highest number, so only what Charter has placed may lie there."""
        move_to(work / TAKEN, checkpoint.path)

    def place(self, saved: Path, step: int, work: Path) -> str:
        """The only one in its directory, since no setting names the one to go on from."""
        for name in (TAKEN, CHECKPOINTS):
            shutil.rmtree(work / name, ignore_errors=True)
        target = work / CHECKPOINTS / f"step_{step}"
        link_tree(saved, target, without=(MANIFEST,))
        return str(target)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From its console lines."""
        return read_log(log, console_steps)

    def final_step(self, work: Path) -> int | None:
        """The step of the newest whole checkpoint, which it always writes at its last step."""
        newest = _newest(work)
        return None if newest is None else newest.step

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The consolidated safetensors of the newest checkpoint (`save_consolidated`)."""
        newest = _newest(work)
        if newest is None:
            raise StageError(f"{work} has no whole checkpoint of NeMo RL to take weights from")
        weights = sorted((newest.path / "policy" / "weights").rglob("consolidated/*.safetensors"))
        if not weights:
            raise StageError(
                f"{newest.path} has no consolidated weights: a checkpoint of LoRA, or of shards alone; join them with "
                "examples/converters of NeMo RL"
            )
        write_model(weights, weights[0].parent, Path(handover.paths.trained), target)
        return {"converted_by": "consolidated safetensors of NeMo RL's checkpoint", "step": newest.step}

    def prompt_row(
        self, turns: Sequence[Turn], *, kind: str, index: int, carried: str | None = None
    ) -> Mapping[str, object]:
        """Return a prompt of one user turn; `output` is what its environment reads (nemo_rl/data/processors.py)."""
        if [turn.role for turn in turns] != ["user"]:
            roles = ", ".join(turn.role for turn in turns)
            raise DataError(f"NeMo RL takes prompts of one user turn; prompt {index} has: {roles}")
        return {"input": turns[0].content, "output": carried or ""}

    def pair_row(self, pair: Mapping[str, Any]) -> dict[str, Any]:
        """Return a pair as NeMo RL ranks it: 0 for the better.

        Read in NeMo RL 0.6.0 (7ea279a): nemo_rl/data/datasets/preference_datasets/preference_dataset.py.
        """
        ranked = [{"rank": rank, "completion": pair[name]} for rank, name in enumerate(("chosen", "rejected"))]
        return {"context": pair["prompt"], "completions": ranked}


def _newest(work: Path) -> EngineCheckpoint | None:
    checkpoints = [*_whole_ones(work / CHECKPOINTS), *_whole_ones(work / TAKEN)]
    return max(checkpoints, key=lambda item: item.step, default=None)


def _whole_ones(directory: Path) -> Iterator[EngineCheckpoint]:
    for step, path in numbered_steps(directory, "step_"):
        if _is_whole(path, step):
            yield EngineCheckpoint(step=step, path=path)


def _is_whole(path: Path, step: int) -> bool:
    """Return True if its own description, the loader's place, weights and optimizer are there to their ends."""
    try:
        info = json.loads((path / "training_info.json").read_text(encoding="utf-8"))
        tensors = list((path / "policy" / "weights").rglob("*.safetensors"))
        optimizer = list((path / "policy" / "optimizer").rglob(".metadata"))
        return (
            info["total_steps"] == step
            and (path / "config.yaml").stat().st_size > 0
            and zipfile.is_zipfile(path / "train_dataloader.pt")
            and bool(optimizer)
            and all(item.stat().st_size > 0 for item in optimizer)
            and bool(tensors)
            and all(map(read_header, tensors))
        )
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return False
