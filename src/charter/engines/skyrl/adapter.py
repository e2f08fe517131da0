"""SkyRL: `checkpoints/global_step_N`, its console, the file of metrics of an export, weights that it saves at the end.

Read in skyrl 0.3.0: train/trainer.py (`save_checkpoints`: policy, `data.pt`, `trainer_state.pt`, then
`latest_ckpt_global_step.txt`; `save_models`: below the export path, at the last step), and
backends/skyrl_train/distributed/fsdp_strategy.py (three files of every rank; the tokenizer comes after the
weights).

Log: train/utils/tracking.py (`Step N: ` and on the next lines a dictionary as pprint prints it, its fractions as text
of four decimals, each line with the name of Ray's task before it), and the lines that run_skyrl.py writes.
"""

import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from charter.artifacts.durable import objects_in
from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep, LogReader
from charter.engines.common.files import (
    fsdp_ranks,
    link_tree,
    move_to,
    numbered_steps,
    read_number,
    without_colours,
    write_saved_model,
)
from charter.engines.common.request import Handover
from charter.engines.skyrl.mapping import CHECKPOINTS, EXPORT, METRICS
from charter.errors import StageError

NAMES = {
    "policy/final_loss": "loss",
    "policy/policy_lr": "learning_rate",
    "policy/grad_norm": "gradient_norm",
    "policy/policy_entropy": "entropy",
    "reward/avg_raw_reward": "reward",
    "policy/loss_metrics/clip_ratio": "clip_fraction",
}
"""Others keep their own names. `policy/policy_kl` is nats per token, where Charter's `kl` is per answer."""
_TRAINED, _SECONDS, _RATE = "trainer/global_step", "timing/step", "policy/policy_lr"
_RAY = re.compile(r"^\([^()]*pid=[^()]*\) ")
_BEGINS = re.compile(r"\bStep (\d+): *$")
_ENTRY = re.compile(r"'([^']+)': (?:np\.\w+\()?'?(-?[\d.]+(?:e[+-]?\d+)?|nan|-?inf)['\)]?(?=[,}])")


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The steps in what SkyRL has printed; four decimals of a learning rate say nothing, so it is left out."""
    step, values = 0, dict[str, float]()
    for line in lines:
        text = _RAY.sub("", without_colours(line).rstrip())
        if begins := _BEGINS.search(text):
            step, values = int(begins[1]), {}
        elif step:
            values |= {name: float(number) for name, number in _ENTRY.findall(text) if name != _RATE}
            if text.endswith("}"):
                yield from _step(step, values)
                step = 0


def file_steps(path: Path) -> Iterator[LoggedStep]:
    """The steps of an export's file of metrics; the last line may be half written."""
    for entry in objects_in(path):
        try:
            step, time, data = int(entry["step"]), float(entry["time"]), dict(entry["data"])
        except (ValueError, KeyError, TypeError):
            continue
        values = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
        yield from _step(step, values, time)


def _step(step: int, values: Mapping[str, float], time: float | None = None) -> Iterator[LoggedStep]:
    if _TRAINED in values:  # an evaluation has none
        metrics = {NAMES.get(name, name): value for name, value in values.items()}
        yield LoggedStep(step=step, metrics=metrics, seconds=values.get(_SECONDS), time=time)


LOG = LogReader(console=console_steps, json_lines=file_steps)


TAKEN, RESUME = "taken", "resume"
"""Below the work directory: the newest checkpoint that Charter has; what SkyRL goes on from."""
TRACKER, POLICY, STATES = "latest_ckpt_global_step.txt", "policy", ("data.pt", "trainer_state.pt")
_LAST = "tokenizer_config.json"
"""Of a saved model, what is written after its weights."""


class SkyRlAdapter(EngineAdapter):
    """SkyRL's trainer as one stage."""

    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those that SkyRL has called whole and whose files are all there."""
        last = read_number(work / CHECKPOINTS / TRACKER)
        steps = numbered_steps(work / CHECKPOINTS, "global_step_")
        return [EngineCheckpoint(step=step, path=path) for step, path in steps if step <= last and _is_whole(path)]

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Move it away: after a resume from before it, SkyRL would write into its very files."""
        move_to(work / TAKEN, checkpoint.path)

    def place(self, saved: Path, step: int, work: Path) -> str:
        """Beside SkyRL's own directory, which is emptied: its later steps would be called whole while rewritten."""
        target = work / RESUME / f"global_step_{step}"
        for name in (RESUME, TAKEN, CHECKPOINTS):
            shutil.rmtree(work / name, ignore_errors=True)
        (work / METRICS).unlink(missing_ok=True)
        link_tree(saved, target, without=(MANIFEST,))
        return str(target)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From the file of metrics, whose numbers have all their digits."""
        return file_steps(work / METRICS)

    def final_step(self, work: Path) -> int | None:
        """The step of the weights that SkyRL saves at the end."""
        steps = numbered_steps(work / EXPORT, "global_step_")
        return max((step for step, path in steps if (path / POLICY / _LAST).exists()), default=None)

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The weights as SkyRL saved them."""
        step = self.final_step(work)
        if step is None:
            raise StageError(f"{work / EXPORT} has no whole weights of SkyRL")
        directory = work / EXPORT / f"global_step_{step}" / POLICY
        write_saved_model(directory, Path(handover.paths.trained), target)
        return {"converted_by": "weights that SkyRL saved with its last step", "step": step}


def _is_whole(path: Path) -> bool:
    """Return True if every file is there to its end."""
    try:
        return fsdp_ranks(path / POLICY) > 0 and all(zipfile.is_zipfile(path / name) for name in STATES)
    except (OSError, ValueError, KeyError, TypeError):
        return False
