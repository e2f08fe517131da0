"""Steps as OpenRLHF logs them: TensorBoard scalars of every program, and the console line of PPO.

Read in OpenRLHF 0.11.2: trainer/sft_trainer.py, rm_trainer.py, dpo_trainer.py (`save_logs_and_checkpoints`:
a scalar below `train` at every optimizer step; on the console only progress bars, which count micro-batches),
trainer/ppo_trainer.py (`Global step N: {...}` after every rollout), utils/logging_utils.py (the format of a line).

Event files are read without TensorBoard. Format: tensorflow/core/lib/io/record_writer.h (length, its checksum, data,
its checksum) and event.proto (1 wall_time, 2 step, 5 summary), summary.proto (1 value: 1 tag, 2 simple_value), as
torch.utils.tensorboard writes `add_scalar`.
"""

import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from charter.engines.common.logged import LoggedStep, LogReader

_HEADER, _CHECKSUM = struct.Struct("<QI"), 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2


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
        tag, simple = entry.get(_TAG), entry.get(_SIMPLE_VALUE)
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
