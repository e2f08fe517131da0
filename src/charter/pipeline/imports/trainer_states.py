"""Runs of transformers and TRL, from their `trainer_state.json`."""

from pathlib import Path

from charter.artifacts.file_facts import sha256_file
from charter.errors import DataError
from charter.hosted.logs.huggingface import STATE_FILE, TrainerLog, find_state, read_state
from charter.pipeline.imports.found import FoundAttempt, FoundRun, summed_seconds

TRL_FIGURES = frozenset({"token_accuracy", "accuracy", "reward", "reward_margin", "kl", "entropy"})
"""Figures that TRL's trainers log and the plain Trainer does not."""


def is_trainer_state(path: Path) -> bool:
    """Whether a path is a state (of any name in `.json`), or an output directory that holds one."""
    return path.suffix == Path(STATE_FILE).suffix if path.is_file() else path.is_dir() and find_state(path) is not None


def read_trainer_run(path: Path) -> FoundRun:
    """The run that a state, or the newest state of an output directory, tells of."""
    state = path if path.is_file() else find_state(path)
    if state is None:
        raise DataError(f"{path} holds no {STATE_FILE}, nor does a checkpoint-* below it; name the file itself")
    log = read_state(state)
    if not log.steps:
        raise DataError(f"{state} has logged no training step; a run with `logging_steps: 1` tells the most")
    trl = any(name in TRL_FIGURES for step in log.steps for name in step.metrics)
    return FoundRun(
        format="trl" if trl else "transformers",
        source=str(state),
        content=sha256_file(state),
        attempts=_attempts(log),
        target_step=log.target_step,
        facts={} if log.micro_batch is None else {"mbs": str(log.micro_batch)},
    )


def _attempts(log: TrainerLog) -> tuple[FoundAttempt, ...]:
    """One for every process; the runtime that the state holds is that of the last one."""
    ends = (*log.starts[1:], log.last_step)
    found = []
    for number, (start, end) in enumerate(zip(log.starts, ends, strict=True)):
        steps = tuple(step for step in log.steps if start < step.step <= end)
        last = number == len(log.starts) - 1
        seconds = log.runtime_seconds if last else None
        if seconds is None:
            seconds = summed_seconds(start, steps)
        found.append(FoundAttempt(first_step=start, steps=steps, seconds=seconds))
    return tuple(found)
