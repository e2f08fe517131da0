"""OpenRLHF: DeepSpeed's checkpoints `global_stepN`, TensorBoard scalars, weights saved once at the end.

Read in OpenRLHF 0.11.2: utils/deepspeed/deepspeed.py (`save_ckpt`: rotation, DeepSpeed's save, then `metric.json` by
rank 0), trainer/ppo_trainer.py and trainer/ray/ppo_actor.py, ppo_critic.py (`_actor` and `_critic` are saved at the
same time, each with its own `latest`; a start that finds `_actor` without a whole checkpoint ends in a KeyError),
cli/lora_combiner.py; in DeepSpeed 0.19.8 runtime/engine.py `save_checkpoint`: rank 0 writes `latest` before it has
waited for the other ranks, and the barrier comes after. So `latest` says nothing of their files; `metric.json` does.

Log: steps as OpenRLHF logs them: TensorBoard scalars of every program, and the console line of PPO.

Read in OpenRLHF 0.11.2: trainer/sft_trainer.py, rm_trainer.py, dpo_trainer.py (`save_logs_and_checkpoints`:
a scalar below `train` at every optimizer step; on the console only progress bars, which count micro-batches),
trainer/ppo_trainer.py (`Global step N: {...}` after every rollout), utils/logging_utils.py (the format of a line).

Event files are read without TensorBoard. Format: tensorflow/core/lib/io/record_writer.h (length, its checksum, data,
its checksum) and event.proto (1 wall_time, 2 step, 5 summary), summary.proto (1 value: 1 tag, 2 simple_value), as
torch.utils.tensorboard writes `add_scalar`.
"""

import json
import math
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep, LogReader
from charter.engines.common.files import converted_weights, link_tree, write_model
from charter.engines.common.request import Handover
from charter.engines.openrlhf.mapping import ARGUMENTS_FILE
from charter.engines.openrlhf.settings import CHECKPOINTS, LOGS, OUTPUT

_HEADER, _CHECKSUM = struct.Struct("<QI"), 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE, _TAG_FIELD, _SIMPLE_VALUE = 1, 1, 2


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value of one tag."""

    tag: str
    step: int
    value: float
    time: float


def scalars(directory: Path) -> Iterator[Scalar]:
    """Every scalar below a directory, file by file in the order of their names; a torn end is left out."""
    for path in sorted(directory.glob("**/events.out.tfevents.*")):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        for record in _records(data):
            yield from _scalars(record)


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, _ = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if end + _CHECKSUM > len(data):
            return
        yield data[at + _HEADER.size : end]
        at = end + _CHECKSUM


def _scalars(record: bytes) -> Iterator[Scalar]:
    event = dict(_fields(record))
    summary, time, step = event.get(_SUMMARY), event.get(_WALL_TIME), event.get(_STEP, 0)
    if not isinstance(summary, bytes) or not isinstance(time, bytes) or not isinstance(step, int):
        return
    for number, value in _fields(summary):
        entry = dict(_fields(value)) if number == _VALUE and isinstance(value, bytes) else {}
        tag, simple = entry.get(_TAG_FIELD), entry.get(_SIMPLE_VALUE)
        if isinstance(tag, bytes) and isinstance(simple, bytes):
            (wall,), (number_32,) = struct.unpack("<d", time), struct.unpack("<f", simple)
            yield Scalar(tag=tag.decode(), step=step, value=number_32, time=wall)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of each field: a varint as an integer, everything else as its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None:
            return
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at


NAMES = {
    "loss_mean": "loss",
    "acc_mean": "accuracy",
    "lr": "learning_rate",
    "grad_norm": "gradient_norm",
    "reject_reward": "rejected_reward",
    "actor_lr": "learning_rate",
    "actor_grad_norm": "gradient_norm",
    "critic_loss": "value_loss",
    "critic_lr": "value_learning_rate",
    "critic_grad_norm": "value_gradient_norm",
    "ppo_clip_ratio": "clip_fraction",
    "entropy_loss": "entropy",
    "kl": "kl_per_token",
    "rollout/reward_mean": "reward",
    "reward": "reward_of_updates",
}
"""Others keep their own names. Its `kl` is the mean of an answer's tokens, where Charter's is their sum; its `loss` and
`acc` are of the last micro-batch of one rank, their means of the whole step."""
_OF_LAST_MICRO_BATCH = ("loss", "gpt_loss", "acc")
_SECONDS = "timing/step_total"
_TRAIN = "train/"
_LINE = re.compile(r"Global step (\d+): (\{.*\})\s*$")
_PAIR = re.compile(r"'([^']+)': (-?(?:[0-9.]+(?:e[+-]?[0-9]+)?|inf|nan))(?=[,}])")


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The rollouts in what PPO has printed; Ray puts the name and the process of an actor before each line."""
    for line in lines:
        match = _LINE.search(line)
        if match is not None:
            yield _step(int(match[1]), {name: float(text) for name, text in _PAIR.findall(match[2])}, time=None)


def event_steps(directory: Path) -> Iterator[LoggedStep]:
    """The steps in its TensorBoard directory, in order; one that was made again counts as it was logged last."""
    values: dict[int, dict[str, float]] = {}
    times: dict[int, float] = {}
    for scalar in scalars(directory):
        if scalar.tag.startswith(_TRAIN):
            values.setdefault(scalar.step, {})[scalar.tag.removeprefix(_TRAIN)] = scalar.value
            times[scalar.step] = scalar.time
    for step in sorted(values):
        yield _step(step, values[step], time=times[step])


def _step(step: int, values: dict[str, float], *, time: float | None) -> LoggedStep:
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    metrics = {NAMES.get(name, name): value for name, value in finite.items() if name not in _OF_LAST_MICRO_BATCH}
    return LoggedStep(step=step, metrics=metrics, seconds=finite.get(_SECONDS), time=time)


LOG = LogReader(console=console_steps, events=event_steps)


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
        # Nothing in `work` says yet what the engine will be told: the checkpoint says what it consists of.
        for role in [role for role in (ACTOR, CRITIC) if (saved / role).is_dir()] or [""]:
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
        command = merge_command(self.python, first, output, merged)
        write_model(converted_weights(command, "openrlhf.cli.lora_combiner", merged), merged, first, target)
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
