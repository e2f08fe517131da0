"""`trainer_state.json` of transformers and TRL: the log of a run, as its trainer keeps it inside every checkpoint.

Sources: transformers 5.23.0, TrainerState and the Trainer's `log`; TRL 1.16.0, its trainers (`num_tokens`,
`step_time`). `training_args.bin` beside it is a pickle and is never opened.

A line is logged every `logging_steps` steps; its `tokens` are those since the line before, its `seconds` of one step.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from charter.engines.common.logged import LoggedStep
from charter.errors import DataError, loads_json

STATE_FILE = "trainer_state.json"
CHECKPOINT = "checkpoint-"
RUNTIME = "train_runtime"
NAMES: Mapping[str, str] = {
    "grad_norm": "gradient_norm",
    "rewards/accuracies": "accuracy",
    "mean_token_accuracy": "token_accuracy",
    "rewards/margins": "reward_margin",
    "rewards/chosen": "chosen_reward",
    "rewards/rejected": "rejected_reward",
    "objective/kl": "kl",
}
"""TRL's names of figures that Charter's own stages report under others (docs/guides/metering.md)."""
_TOKENS_OF_PROCESS, _TOKENS_OF_RUN = "num_tokens", "num_input_tokens_seen"
_COUNTERS = ("step", _TOKENS_OF_PROCESS, _TOKENS_OF_RUN)


@dataclass(frozen=True, kw_only=True)
class TrainerLog:
    """Run as one `trainer_state.json` tells it."""

    steps: tuple[LoggedStep, ...]
    starts: tuple[int, ...]
    """Logged step after which each process went on: 0, then one for every resume that left a trace."""
    last_step: int
    target_step: int | None
    runtime_seconds: float | None
    """Of the last process alone, once it has ended."""
    micro_batch: int | None
    """Sequences of one device, where the trainer has written it (`train_batch_size`)."""


def find_state(directory: Path) -> Path | None:
    """The newest state below an output directory: its own, or that of its last checkpoint."""
    states = [directory / STATE_FILE, *directory.glob(f"{CHECKPOINT}*/{STATE_FILE}")]
    steps = [(_step_of(path), path.parent == directory, path) for path in states if path.is_file()]
    return max(steps)[2] if steps else None


def read_state(path: Path) -> TrainerLog:
    """Read a state; a DataError says all that is wrong with it at once."""
    try:
        content = loads_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is not whole JSON ({error}); take the state of an earlier checkpoint") from None
    problems = list(_problems(content))
    if problems:
        raise DataError("\n".join(f"{path}: {problem}" for problem in problems))
    steps, starts = _steps(content["log_history"])
    return TrainerLog(
        steps=steps,
        starts=starts,
        last_step=content["global_step"],
        target_step=content.get("max_steps") or None,
        runtime_seconds=next((float(line[RUNTIME]) for line in content["log_history"][::-1] if RUNTIME in line), None),
        micro_batch=content.get("train_batch_size"),
    )


def _problems(content: Any) -> Iterator[str]:
    if not isinstance(content, dict):
        yield "expected the object that a Trainer writes"
        return
    step, history = content.get("global_step"), content.get("log_history")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        yield f"`global_step` must be a whole number, found {step!r}"
    if not isinstance(history, list):
        yield f"`log_history` must be a list of logged lines, found {type(history).__name__}"
        return
    for index, line in enumerate(history):
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            yield f"`log_history[{index}]` must be an object with a whole `step`"


def _steps(history: list[dict[str, Any]]) -> tuple[tuple[LoggedStep, ...], tuple[int, ...]]:
    """Training lines in order, what was evaluated at the same step beside them; and where processes began."""
    trained = [line for line in history if _is_training(line)]
    evaluated = {line["step"]: _metrics(line) for line in history if any(name.startswith("eval_") for name in line)}
    starts, logged = [0], []
    for before, line in pairwise([{"step": 0}, *trained]):
        tokens = _tokens(before, line)
        if line.get(_TOKENS_OF_PROCESS, 0) < before.get(_TOKENS_OF_PROCESS, 0):
            starts.append(before["step"])
            tokens = int(line[_TOKENS_OF_PROCESS])
        logged.append(
            LoggedStep(
                step=line["step"],
                metrics={**_metrics(line), **evaluated.get(line["step"], {})},
                tokens=tokens,
                seconds=line.get("step_time"),
            )
        )
    return _without_repeats(logged), tuple(starts)


def _is_training(line: Mapping[str, Any]) -> bool:
    """Lines of evaluations and the summary at the end are of no step of their own."""
    return RUNTIME not in line and not any(name.startswith("eval_") for name in line) and len(line) > 1


def _tokens(before: Mapping[str, Any], line: Mapping[str, Any]) -> int | None:
    """Tokens since the line before: both counters count up, one since the process began, one over the run."""
    for name in (_TOKENS_OF_RUN, _TOKENS_OF_PROCESS):
        if name in line:
            return int(line[name] - before.get(name, 0))
    return None


def _metrics(line: Mapping[str, Any]) -> dict[str, float]:
    """Finite figures under Charter's names."""
    return {
        NAMES.get(name, name): float(value)
        for name, value in line.items()
        if name not in _COUNTERS and isinstance(value, int | float) and math.isfinite(value)
    }


def _without_repeats(steps: list[LoggedStep]) -> tuple[LoggedStep, ...]:
    """A step that is there twice counts as it was logged last."""
    return tuple({step.step: step for step in steps}.values())


def _step_of(path: Path) -> int:
    """The step of a state, -1 of one that cannot be read."""
    try:
        step = loads_json(path.read_text(encoding="utf-8")).get("global_step")
    except (OSError, ValueError, AttributeError):
        return -1
    return step if isinstance(step, int) else -1
