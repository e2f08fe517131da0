"""OpenRLHF: DeepSpeed's checkpoints `global_stepN`, TensorBoard scalars, weights saved once at the end.

Read in OpenRLHF 0.11.2: utils/deepspeed/deepspeed.py (`save_ckpt`: rotation, DeepSpeed's save, then `metric.json` by
rank 0), trainer/ppo_trainer.py and trainer/ray/ppo_actor.py, ppo_critic.py (`_actor` and `_critic` are saved at the
same time, each with its own `latest`; a start that finds `_actor` without a whole checkpoint ends in a KeyError),
cli/lora_combiner.py; in DeepSpeed 0.19.8 runtime/engine.py `save_checkpoint`: rank 0 writes `latest` before it has
waited for the other ranks, and the barrier comes after. So `latest` says nothing of their files; `metric.json` does.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint
from charter.engines.common.files import link_tree, write_model
from charter.engines.common.logged import LoggedStep
from charter.engines.common.request import Handover
from charter.engines.openrlhf.log import event_steps
from charter.engines.openrlhf.mapping import ARGUMENTS_FILE
from charter.engines.openrlhf.settings import CHECKPOINTS, LOGS, OUTPUT
from charter.errors import StageError

ACTOR, CRITIC = "_actor", "_critic"
LATEST, SAVED = "latest", "metric.json"
TOGETHER, MERGED = "whole", "merged"
"""Below the work directory: policy and value model of one step in one place; an adapter merged into its model."""
ADAPTER_CONFIG, LAST_WRITTEN = "adapter_config.json", "tokenizer_config.json"
_TAG = re.compile(r"global_step(\d+)")


@dataclass(frozen=True)
class OpenRlhfAdapter(EngineAdapter):
    """Its programs as one stage; `python` is the interpreter that has OpenRLHF."""

    python: str = "python"
    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """The newest that is whole: older ones may be half removed, since the engine keeps only so many."""
        roles = _roles(work)
        steps = set.intersection(*(_saved_steps(work / CHECKPOINTS / role) for role in roles))
        if not steps:
            return ()
        newest = max(steps)
        if roles == ("",):
            return (EngineCheckpoint(step=newest, path=work / CHECKPOINTS / f"global_step{newest}"),)
        path = _together(work, roles, newest)
        return () if path is None else (EngineCheckpoint(step=newest, path=path),)

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Nothing: a tag is written once, and `place` empties the directory before it could be again."""

    def place(self, saved: Path, step: int, work: Path) -> str:
        """Alone in the engine's directory, named by `latest`; what stood there and was not verified is removed."""
        for name in (CHECKPOINTS, TOGETHER, OUTPUT, LOGS):
            shutil.rmtree(work / name, ignore_errors=True)
        for role in _roles(work):
            target = work / CHECKPOINTS / role
            link_tree(saved / role, target / f"global_step{step}", without=(MANIFEST,))
            (target / LATEST).write_text(f"global_step{step}", encoding="utf-8")
        return str(work / CHECKPOINTS)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From its TensorBoard scalars: the console has bars of micro-batches."""
        return event_steps(work / LOGS)

    def final_step(self, work: Path) -> int | None:
        """The last step that was logged, or that it went on from, once the weights and the tokenizer are written."""
        output = work / OUTPUT
        if not (output / LAST_WRITTEN).is_file() or not _weights(output):
            return None
        logged = max((item.step for item in event_steps(work / LOGS)), default=0)
        return max(logged, *(max(_saved_steps(work / CHECKPOINTS / role), default=0) for role in _roles(work)))

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The final weights as they are; of an adapter, merged by OpenRLHF's own command."""
        output, first = work / OUTPUT, Path(handover.paths.trained)
        if not (output / ADAPTER_CONFIG).exists():
            write_model(_weights(output), output, first, target)
            return {}
        merged = work / MERGED
        shutil.rmtree(merged, ignore_errors=True)
        command = merge_command(self.python, first, output, merged)
        ended = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise StageError(f"openrlhf.cli.lora_combiner ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
        write_model(_weights(merged), merged, first, target)
        return {"converted_by": "openrlhf.cli.lora_combiner"}


def merge_command(python: str, model: Path, adapter: Path, target: Path) -> list[str]:
    """OpenRLHF's command that merges an adapter into its model."""
    places = ["--model_path", str(model), "--lora_path", str(adapter), "--output_path", str(target)]
    return [python, "-m", "openrlhf.cli.lora_combiner", *places]


def _roles(work: Path) -> tuple[str, ...]:
    """Directories that a checkpoint consists of, by what the engine was told."""
    try:
        arguments = json.loads((work / ARGUMENTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ("",)
    if not arguments["module"].endswith("train_ppo_ray"):
        return ("",)
    return (ACTOR, CRITIC) if "--critic.model_name_or_path" in arguments["options"] else (ACTOR,)


def _saved_steps(directory: Path) -> set[int]:
    """Steps whose checkpoint all ranks have written to its end."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return set()
    tags = ((int(tag[1]), directory / tag[0] / SAVED) for name in names if (tag := _TAG.fullmatch(name)))
    return {step for step, path in tags if _is_json(path)}


def _is_json(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        return False


def _together(work: Path, roles: Sequence[str], step: int) -> Path | None:
    """One directory with the files of every role under a second name; None where one vanished meanwhile."""
    target = work / TOGETHER / f"global_step{step}"
    if target.is_dir():
        return target
    shutil.rmtree(work / TOGETHER, ignore_errors=True)
    unfinished = work / TOGETHER / "unfinished"
    try:
        for role in roles:
            link_tree(work / CHECKPOINTS / role / f"global_step{step}", unfinished / role)
    except FileNotFoundError:
        return None
    return unfinished.rename(target)


def _weights(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.safetensors"))
