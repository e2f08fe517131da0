"""Steps as OpenRLHF logs them: TensorBoard scalars of every program, and the console line of PPO.

Read in OpenRLHF 0.11.2: trainer/sft_trainer.py, rm_trainer.py, dpo_trainer.py (`save_logs_and_checkpoints`:
a scalar below `train` at every optimizer step; on the console only progress bars, which count micro-batches),
trainer/ppo_trainer.py (`Global step N: {...}` after every rollout), utils/logging_utils.py (the format of a line).
"""

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from charter.engines.common.events import scalars
from charter.engines.common.logged import LoggedStep, LogReader

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
