"""verl: `checkpoints/global_step_N`, console lines, weights merged by verl's own `model_merger`.

Read in verl 0.9.1: utils/checkpoint/fsdp_checkpoint_manager.py (three files of every rank, by their number; the model's
configuration and `fsdp_config.json` of rank 0), trainer/ppo/v1/trainer_base.py (`_save_checkpoint`: actor, critic,
`data.pt`, then `latest_checkpointed_iteration.txt`), utils/checkpoint/checkpoint_handler.py (SFT: `data_R.pt` of every
data-parallel rank; rank 0 names the step before it has waited for the others'). `torch.save` writes ZIP files, whose
directory is at their end.

Log: steps as verl logs them: the console line of its LocalLogger, and the JSON lines of its FileLogger.

Read in verl 0.9.1: utils/logger/aggregate_logger.py (`concat_dict_to_str`: `step:N - key:value - key:value`, values as
`pprint` prints them, so NumPy's come as `np.float64(0.5)`), utils/tracking.py (`{"step": N, "data": {...}}`).
"""

import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from charter.artifacts.durable import objects_in
from charter.artifacts.whole_dir import MANIFEST
from charter.data.dataset import Turn
from charter.data.rows import messages
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep, LogReader
from charter.engines.common.files import (
    converted_weights,
    fsdp_ranks,
    link_tree,
    move_to,
    numbered_steps,
    read_log,
    read_number,
    write_model,
)
from charter.engines.common.request import Handover
from charter.engines.verl.settings import CHECKPOINTS
from charter.errors import StageError

NAMES = {
    "train/loss": "loss",
    "train/lr": "learning_rate",
    "train/grad_norm": "gradient_norm",
    "actor/pg_loss": "loss",
    "actor/lr": "learning_rate",
    "actor/grad_norm": "gradient_norm",
    "critic/score/mean": "reward",
    "critic/vf_loss": "value_loss",
    "actor/entropy": "entropy",
}
"""Others keep their own names. `actor/reward_kl_penalty` is nats per token, where Charter's `kl` is per answer."""
_TOKENS = ("perf/total_num_tokens", "train/global_tokens")
_SECONDS = ("perf/time_per_step", "timing_s/step")
_TRAINS = ("training/global_step", "train/loss")
"""One of them is in every line of a training step; lines of a validation have neither."""
_LINE = re.compile(r"(?:^|\s)step:(\d+) - (\S.*)$")
_NUMPY = re.compile(r"^np\.\w+\((.*)\)$")


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The steps in what a process has printed; Ray puts the name of its task before each line."""
    for line in lines:
        match = _LINE.search(line.rstrip())
        if match is None:
            continue
        pairs = (part.rpartition(":") for part in match[2].split(" - "))
        values = {name: number for name, _, text in pairs if name and (number := _number(text)) is not None}
        yield from _step(int(match[1]), values)


def file_steps(path: Path) -> Iterator[LoggedStep]:
    """The steps of a file of JSON lines; the last line may be half written."""
    for entry in objects_in(path):
        try:
            step, data = int(entry["step"]), dict(entry["data"])
        except (ValueError, KeyError, TypeError):
            continue
        values = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
        yield from _step(step, values)


def _step(step: int, values: Mapping[str, float]) -> Iterator[LoggedStep]:
    if step < 1 or not any(name in values for name in _TRAINS):
        return
    tokens = next((values[name] for name in _TOKENS if name in values), None)
    yield LoggedStep(
        step=step,
        metrics={NAMES.get(name, name): value for name, value in values.items()},
        tokens=None if tokens is None else round(tokens),
        seconds=next((values[name] for name in _SECONDS if name in values), None),
    )


def _number(text: str) -> float | None:
    inner = _NUMPY.match(text)
    try:
        return float(inner[1] if inner else text)
    except ValueError:
        return None


LOG = LogReader(console=console_steps, json_lines=file_steps)


TAKEN, RESUME, MERGED = "taken", "resume", "merged"
"""Below the work directory: the newest checkpoint that Charter has; what verl goes on from; the final weights."""
TRACKER = "latest_checkpointed_iteration.txt"
ACTOR, CRITIC = "actor", "critic"
PPO_FILE, SFT_FILE = "ppo.yaml", "sft.yaml"
_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C, an eighth of the time, where PyYAML was built with it: settings are read at every look."""


@dataclass(frozen=True)
class VerlAdapter(EngineAdapter):
    """verl's trainers as one stage; `python` is the interpreter that has verl."""

    python: str = "python"
    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

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
        weights = converted_weights(merge_command(self.python, newest.path, merged), "verl.model_merger", merged)
        if (merged / "lora_adapter").exists():
            raise StageError(f"{merged} holds an adapter beside its base; merge them with peft before it is used")
        write_model(weights, merged, Path(handover.paths.trained), target)
        return {"converted_by": "verl.model_merger merge --backend fsdp", "step": newest.step}

    def prompt_row(
        self, turns: Sequence[Turn], *, kind: str, index: int, carried: str | None = None
    ) -> Mapping[str, object]:
        """Return a prompt whose answers a model scores, or with what functions read as its ground truth.

        Read in verl 0.9.1: utils/dataset/rl_dataset.py and experimental/reward_loop/reward_manager/naive.py (`prompt`,
        `data_source`, `reward_model`, `extra_info`); utils/dataset/multiturn_sft_dataset.py has `messages`.
        """
        return {
            "prompt": messages(turns),
            "data_source": kind,
            "reward_model": {"style": "model" if carried is None else "rule", "ground_truth": carried or ""},
            "extra_info": {"index": index},
        }


def merge_command(python: str, checkpoint: Path, target: Path) -> list[str]:
    """verl's command that joins the shards of FSDP; of PPO the actor's, of SFT the only ones."""
    shards = checkpoint / ACTOR if (checkpoint / ACTOR).is_dir() else checkpoint
    where = ["--local_dir", str(shards), "--target_dir", str(target)]
    return [python, "-m", "verl.model_merger", "merge", "--backend", "fsdp", *where]


def _newest(work: Path, adapter: VerlAdapter) -> EngineCheckpoint | None:
    checkpoints = [*adapter.checkpoints(work), *_whole_ones(work / TAKEN, work), *_whole_ones(work / RESUME, work)]
    return max(checkpoints, key=lambda item: item.step, default=None)


def _whole_ones(directory: Path, work: Path) -> Iterator[EngineCheckpoint]:
    for step, path in numbered_steps(directory, "global_step_"):
        if is_whole(path, work):
            yield EngineCheckpoint(step=step, path=path)


def tracked_step(checkpoints: Path) -> int:
    """The last step that verl has called whole; 0 where there is none, or the file is torn."""
    return read_number(checkpoints / TRACKER)


def is_whole(path: Path, work: Path) -> bool:
    """Return True if every file is there to its end, for the configuration in `work`."""
    try:
        if (work / PPO_FILE).exists():
            roles = [ACTOR, *([CRITIC] if _value(work / PPO_FILE, "critic", "enable") else [])]
            return all(fsdp_ranks(path / role) > 0 for role in roles) and zipfile.is_zipfile(path / "data.pt")
        shared = int(_value(work / SFT_FILE, "engine", "ulysses_sequence_parallel_size") or 1)
        ranks = fsdp_ranks(path)
        loaders = [path / f"data_{rank}.pt" for rank in range(ranks // shared)]
        return bool(loaders) and all(map(zipfile.is_zipfile, loaders))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _value(path: Path, section: str, name: str) -> Any:
    text = path.read_text(encoding="utf-8")
    return yaml.load(text, Loader=_SafeLoader)[section].get(name)
