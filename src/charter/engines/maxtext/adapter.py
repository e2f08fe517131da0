"""MaxText: `checkpoints/9` in Orbax's format, a line per step, weights converted by its own script.

Read at e591f30: src/maxtext/common/checkpointing.py (`maybe_save_checkpoint`: a checkpoint is named by the last step
that it holds, counted from 0; one is forced at the end), checkpoint_conversion/to_huggingface.py. Orbax writes a step
beside its place, as `9.orbax-checkpoint-tmp`, and renames it when all of it is there (orbax-checkpoint,
`CheckpointManager`).

Log: the line that MaxText prints after every step, and the file of its metrics.

Read at e591f30: src/maxtext/common/metric_logger.py (`_log_training_metrics`: parts joined by ", ", the step counted
from 0; `write_metrics_locally`: a JSON object per step where `metrics_file` names a file).
"""

import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from charter.artifacts.durable import objects_in
from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep, LogReader
from charter.engines.common.files import converted_weights, link_tree, numbered_steps, read_log, write_model
from charter.engines.common.request import Handover
from charter.engines.maxtext.mapping import CHECKPOINTS, ITEMS, conversion, model_name
from charter.errors import StageError

NAMES = {
    "loss": "loss",
    "learning/loss": "loss",
    "learning/current_learning_rate": "learning_rate",
    "learning/grad_norm": "gradient_norm",
}
"""Others keep their own names."""
SECONDS, TOKENS = ("seconds", "perf/step_time_seconds"), ("total_weights", "learning/total_weights")
"""Of a step: its duration, and the tokens that its loss counts."""
_LINE = re.compile(r"\bcompleted (?:profiler activation/deactivation )?step: (\d+), (.*)$")
_PAIR = re.compile(r"([\w/]+): ([-+.\w]+)(?=,|$)")
_WHOLE = re.compile(r"\bperplexity: (?:\d+\.\d{3}|inf|nan)(?:,|$)")


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The steps in what it has printed; one whose line is torn is left out."""
    for line in lines:
        match = _LINE.search(line.rstrip())
        if match is not None and _WHOLE.search(match[2]):
            yield _step(int(match[1]), dict(_PAIR.findall(match[2])))


def metrics_steps(path: Path) -> Iterator[LoggedStep]:
    """The steps in its file of metrics, the last word on each; hosts that share a directory all append to it."""
    steps: dict[int, LoggedStep] = {}
    for values in objects_in(path):
        if "learning/loss" in values and isinstance(values.get("step"), int | float):
            steps[int(values["step"])] = _step(int(values["step"]), values)
    yield from (steps[number] for number in sorted(steps))


def _step(number: int, values: dict[str, object]) -> LoggedStep:
    numbers = {name: value for name, text in values.items() if math.isfinite(value := _number(text))}
    seconds = next((numbers[name] for name in SECONDS if name in numbers), None)
    tokens = next((numbers[name] for name in TOKENS if name in numbers), None)
    return LoggedStep(
        step=number + 1,
        metrics={
            NAMES.get(name, name): value for name, value in numbers.items() if name not in (*SECONDS, *TOKENS, "step")
        },
        tokens=None if tokens is None else int(tokens),
        seconds=seconds,
    )


def _number(text: object) -> float:
    try:
        return float(str(text))
    except ValueError:
        return math.nan


LOG = LogReader(console=console_steps, json_lines=metrics_steps)


CONVERTED = "converted"
"""Below the work directory: the final weights as a Hugging Face directory."""


@dataclass(frozen=True)
class MaxTextAdapter(EngineAdapter):
    """MaxText's training loop as one stage; `python` is the interpreter that has MaxText.

    On SIGTERM it ends without saving: Orbax saves then only where Google's service says that a machine is taken back.
    """

    python: str = "python"
    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those that have their final name."""
        steps = numbered_steps(work / CHECKPOINTS, "")
        return [EngineCheckpoint(step=last + 1, path=path) for last, path in steps if (path / ITEMS).is_dir()]

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Nothing: a step is written once, and `place` empties the directory before it could be again."""

    def place(self, saved: Path, step: int, work: Path) -> str:
        """Alone in the engine's directory, under the name of its last step."""
        directory = work / CHECKPOINTS
        shutil.rmtree(directory, ignore_errors=True)
        link_tree(saved, directory / str(step - 1), without=(MANIFEST,))
        return str(directory)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From the lines that every host prints, the last word on each step."""
        steps = {item.step: item for item in read_log(log, console_steps)}
        return [steps[number] for number in sorted(steps)]

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The newest checkpoint through its own script, in the engine's environment, on the host's processors."""
        step = self.final_step(work)
        if step is None:
            raise StageError(f"{work / CHECKPOINTS} has no whole checkpoint of MaxText to take weights from")
        converted, first = work / CONVERTED, handover.paths.models["init"]
        name = model_name(handover.architectures["init"])
        assert name is not None, "it was rendered"
        saved = work / CHECKPOINTS / str(step - 1) / ITEMS
        command = [self.python, *conversion("to_huggingface", name, source=str(saved), target=str(converted), hf=first)]
        weights = converted_weights(command, "MaxText's to_huggingface", converted)
        write_model(weights, converted, Path(first), target)
        return {"converted_by": "maxtext.checkpoint_conversion.to_huggingface", "step": step}
