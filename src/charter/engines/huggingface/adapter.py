"""TRL, accelerate and DeepSpeed: all three run TRL's scripts, whose Trainer writes `output/checkpoint-N`.

Read in transformers 5.23.0: `trainer.py` (`_save_checkpoint`: weights, optimizer, scheduler, generators, last
`trainer_state.json`; every rank writes its generators by itself), `trainer_jit_checkpoint.py` (SIGTERM),
`trainer_callback.py` (`PrinterCallback`, one line per logged step; at the last step a checkpoint), TRL 1.16.0
`scripts/*.py` (the final weights go straight into `output`, whatever step they belong to).

A checkpoint is whole when every file is there that its order of writing promises. `trainer_state.json` is written last
by rank 0; the generators of the other ranks may come later still, so they are counted. Weights have headers that fit
their files; what torch saves is a ZIP file, whose directory is at its end.

Log: `trainer_state.json` of transformers and TRL: the log of a run, as its trainer keeps it inside every checkpoint.

Sources: transformers 5.23.0, TrainerState and the Trainer's `log`; TRL 1.16.0, its trainers (`num_tokens`,
`step_time`). `training_args.bin` beside it is a pickle and is never opened.

A line is logged every `logging_steps` steps; its `tokens` are those since the line before, its `seconds` of one step.
"""

import ast
import filecmp
import json
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from charter.artifacts.job import Job
from charter.artifacts.safetensors_file import read_header
from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep
from charter.engines.common.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    link_tree,
    move_to,
    numbered_steps,
    processes_in,
    write_model,
)
from charter.engines.common.request import Handover
from charter.errors import DataError, loads_json
from charter.spec.ppo_stage import PpoStage

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
_LOG_COUNTERS = ("step", _TOKENS_OF_PROCESS, _TOKENS_OF_RUN)


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
    steps = [(_step_of_path(path), path.parent == directory, path) for path in states if path.is_file()]
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
        if name not in _LOG_COUNTERS and isinstance(value, int | float) and math.isfinite(value)
    }


def _without_repeats(steps: list[LoggedStep]) -> tuple[LoggedStep, ...]:
    """A step that is there twice counts as it was logged last."""
    return tuple({step.step: step for step in steps}.values())


def _step_of_path(path: Path) -> int:
    """The step of a state, -1 of one that cannot be read."""
    try:
        step = loads_json(path.read_text(encoding="utf-8")).get("global_step")
    except (OSError, ValueError, AttributeError):
        return -1
    return step if isinstance(step, int) else -1


STATE, UNFINISHED = "trainer_state.json", "checkpoint-is-incomplete.txt"
_TORCH_FILES = frozenset({".pt", ".pth", ".bin"})


def is_whole(path: Path, step: int, work: Path) -> bool:
    """Return True if nothing of a checkpoint is missing or torn; False also if it vanishes or is written again."""
    try:
        return _is_whole(path, step, processes_in(work))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_whole(path: Path, step: int, processes: int) -> bool:
    if (path / UNFINISHED).exists() or _step_of(path / STATE) != step:
        return False
    names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    if not all((path / name).is_file() for name in names):
        return False
    files = [item for item in path.rglob("*") if item.is_file()]
    return _has_weights(path) and all(_is_readable(item) for item in files)


def _has_weights(path: Path) -> bool:
    """Whole weights with the names that an index gives, an adapter's, or the parts that FSDP and DeepSpeed write."""
    adapter = [(path / name).is_file() for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)]
    if any(adapter) and not all(adapter):
        return False
    for index in path.glob("*.safetensors.index.json"):
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if not all((path / name).is_file() for name in named):
            return False
    if (path / "latest").is_file():
        return (path / (path / "latest").read_text(encoding="utf-8").strip()).is_dir()
    sharded = [part for part in path.glob("pytorch_model_fsdp_*") if part.is_dir()]
    optimizer = list(path.glob("optimizer*"))
    if sharded:
        return all(
            (part / ".metadata").is_file() for part in [*sharded, *(item for item in optimizer if item.is_dir())]
        )
    return bool(list(path.glob("*.safetensors"))) and bool(optimizer)


def _is_readable(path: Path) -> bool:
    if path.suffix == ".safetensors":
        try:
            read_header(path)
        except DataError:
            return False
    return zipfile.is_zipfile(path) if path.suffix in _TORCH_FILES else True


def _step_of(path: Path) -> int | None:
    try:
        step = json.loads(path.read_text(encoding="utf-8"))["global_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


OUTPUT, TAKEN, RESUME = "output", "taken", "resume"
"""Below the work directory: what the engine writes; its newest checkpoint that Charter has; what it goes on from."""
_LOGGED = re.compile(r"^\{.*'loss': .*\}$")
_COUNTERS = frozenset({"epoch", "num_tokens", "num_input_tokens_seen"})
_OWN_NAMES = {**NAMES, "grad_norm": "gradient_norm"}


@dataclass(frozen=True, kw_only=True)
class HuggingFaceAdapter(EngineAdapter):
    """The Trainer of transformers as TRL's scripts run it."""

    updates: int = 1
    """Steps of the Trainer in a step of the stage, which is a rollout where answers are sampled."""
    saves_on_sigterm: bool = True
    adapter_output: ClassVar[str] = OUTPUT

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those below `output` that are whole."""
        return self._whole_ones(work / OUTPUT, work)

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Move it away: a SIGTERM at the same step would write into its very files."""
        move_to(work / TAKEN, checkpoint.path)

    def place(self, saved: Path, step: int, work: Path) -> str:
        """Beside the output: the Trainer reads a checkpoint anywhere, and writes none there."""
        target = work / RESUME / f"checkpoint-{step * self.updates}"
        link_tree(saved, target, without=(MANIFEST,))
        return str(target)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """One line of figures per step, with `logging_steps: 1`; its number is that of the line."""
        first = max((step for step, _ in numbered_steps(work / RESUME, CHECKPOINT)), default=0)
        for number, values in enumerate(_lines(log), start=first + 1):
            if number % self.updates == 0:
                yield LoggedStep(step=number // self.updates, metrics=values)

    def final_step(self, work: Path) -> int | None:
        """The step of the newest checkpoint, when the final weights are that checkpoint's to the last byte."""
        final = _weights(work / OUTPUT)
        checkpoints = [
            checkpoint for name in (OUTPUT, TAKEN, RESUME) for checkpoint in self._whole_ones(work / name, work)
        ]
        if not final or not checkpoints:
            return None
        newest = max(checkpoints, key=lambda item: item.step)
        saved = _weights(newest.path)
        if saved and not _are_equal(saved, final):
            return None
        return newest.step

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The final weights with the configuration and the tokenizer that training began with."""
        write_model(_weights(work / OUTPUT), work / OUTPUT, Path(handover.paths.trained), target)
        return {}

    def _whole_ones(self, directory: Path, work: Path) -> list[EngineCheckpoint]:
        """Those at the end of a step of the stage."""
        numbered = [item for item in numbered_steps(directory, CHECKPOINT) if item[0] % self.updates == 0]
        return [
            EngineCheckpoint(step=step // self.updates, path=path)
            for step, path in numbered
            if is_whole(path, step, work)
        ]


def adapter_of(job: Job) -> HuggingFaceAdapter:
    """Return the adapter for a job: a rollout has several optimizer steps of the Trainer, and no save on SIGTERM."""
    spec = job.spec
    if not isinstance(spec, PpoStage):
        return HuggingFaceAdapter()
    updates = max(1, spec.ppo_epochs * spec.rollout_batch // spec.minibatch)
    return HuggingFaceAdapter(updates=updates, saves_on_sigterm=False)


def _weights(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def _are_equal(left: Sequence[Path], right: Sequence[Path]) -> bool:
    names = [path.name for path in left]
    return names == [path.name for path in right] and all(
        filecmp.cmp(one, other, shallow=False) for one, other in zip(left, right, strict=True)
    )


def _lines(log: Path) -> Iterator[dict[str, float]]:
    """The figures of each logged step; transformers prints floats as texts of four digits."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        if _LOGGED.fullmatch(line.strip()) is None:
            continue
        try:
            values = ast.literal_eval(line.strip())
        except (ValueError, SyntaxError):
            continue
        yield {_OWN_NAMES.get(str(name), str(name)): number for name, number in _numbers(values)}


def _numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if name in _COUNTERS:
            continue
        try:
            number = float(json.loads(str(value).lower()))
        except (TypeError, ValueError):
            continue
        if math.isfinite(number):
            yield name, number
