"""Megatron-LM: `iter_0000010` in the format torch_dist, a line per iteration, weights converted by Megatron Bridge.

Read at d98e8a6: megatron/training/checkpointing.py (`iter_finalize_fn` writes `latest_checkpointed_iteration.txt` when
all is written; nothing is removed), megatron/core/dist_checkpointing/serialization.py `save` (all ranks' files, then
`.metadata`, then `metadata.json`, which alone makes it a checkpoint), megatron/training/training.py (a checkpoint at
the end of training); Megatron Bridge 0.3.1 models/conversion/auto_bridge.py `export_ckpt`.

Log: the line that Megatron-LM prints after every iteration.

Read at d98e8a6: megatron/training/training.py (`training_log`: the last rank prints it, values in its own formats;
the loss is left out where it is negative or not a number). Its time of day has no zone, so it is not told.
"""

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep, LogReader
from charter.engines.common.files import converted_weights, link_tree, numbered_steps, read_log, write_model
from charter.engines.common.request import Handover
from charter.engines.megatron.mapping import CHECKPOINTS
from charter.errors import StageError

NAMES = {"lm loss": "loss", "learning rate": "learning_rate", "grad norm": "gradient_norm"}
"""Others keep their own names."""
_LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+\] iteration\s+(\d+)/\s*\d+ \|(.*)$")
_PAIR = re.compile(r"([^|:]+): *([^|:]+?) *\|")
_LAST = "number of nan iterations:"
_MILLISECONDS = "elapsed time per iteration (ms)"
_COUNTERS = ("consumed samples", "skipped samples", "global batch size")


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The iterations in what it has printed; an iteration whose line is torn is left out."""
    for line in lines:
        match = _LINE.search(line.rstrip())
        if match is None or _LAST not in match[2] or not match[2].endswith("|"):
            continue
        pairs = ((name.strip(), _number(text)) for name, text in _PAIR.findall(match[2]))
        values = {name: number for name, number in pairs if math.isfinite(number)}
        others = (item for item in values.items() if item[0] not in (_MILLISECONDS, *_COUNTERS))
        milliseconds = values.get(_MILLISECONDS)
        yield LoggedStep(
            step=int(match[1]),
            metrics={NAMES.get(name, name): value for name, value in others},
            seconds=None if milliseconds is None else milliseconds / 1000,
        )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


LOG = LogReader(console=console_steps)


TRACKER, CONFIG, INDEX = "latest_checkpointed_iteration.txt", "metadata.json", ".metadata"
CONVERTED = "converted"
"""Below the work directory: the final weights as a Hugging Face directory."""
EXPORT = """\
import sys
from megatron.bridge import AutoBridge
AutoBridge.from_hf_pretrained(sys.argv[1]).export_ckpt(sys.argv[2], sys.argv[3])
"""


@dataclass(frozen=True)
class MegatronAdapter(EngineAdapter):
    """`pretrain_gpt.py` as one stage; `python` is the interpreter that has Megatron Bridge.

    It saves on SIGTERM, but torchrun gives its processes half a minute for that, which large models do not keep.
    """

    python: str = "python"
    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those that are whole; Megatron-LM removes none."""
        steps = numbered_steps(work / CHECKPOINTS, "iter_")
        return [EngineCheckpoint(step=step, path=path) for step, path in steps if _is_whole(path)]

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Nothing: an iteration is written once, and `place` empties the directory before it could be again."""

    def place(self, saved: Path, step: int, work: Path) -> str:
        """Alone in the engine's directory, named by its tracker file."""
        directory = work / CHECKPOINTS
        shutil.rmtree(directory, ignore_errors=True)
        link_tree(saved, directory / f"iter_{step:07d}", without=(MANIFEST,))
        (directory / TRACKER).write_text(str(step), encoding="utf-8")
        return str(directory)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From the lines of its last rank."""
        return read_log(log, console_steps)

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The newest checkpoint through Megatron Bridge, in the engine's environment."""
        step = self.final_step(work)
        if step is None:
            raise StageError(f"{work / CHECKPOINTS} has no whole checkpoint of Megatron-LM to take weights from")
        converted, first = work / CONVERTED, handover.paths.models["init"]
        command = convert_command(self.python, first, work / CHECKPOINTS / f"iter_{step:07d}", converted)
        weights = converted_weights(command, "the export of Megatron Bridge", converted)
        write_model(weights, converted, Path(first), target)
        return {"converted_by": "megatron.bridge AutoBridge.export_ckpt", "step": step}


def convert_command(python: str, first: str, checkpoint: Path, target: Path) -> list[str]:
    """Megatron Bridge as a command: the model that training began with tells it the architecture."""
    return [python, "-c", EXPORT, first, str(checkpoint), str(target)]


def _is_whole(path: Path) -> bool:
    """`metadata.json` is written last, and complete or not at all there."""
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        return isinstance(config, dict) and (path / INDEX).stat().st_size > 0
    except (OSError, ValueError):
        return False
