"""prime-rl: `run/checkpoints/step_N` of trainer and orchestrator, its file of metrics, weights as vLLM gets them.

Read in prime-rl 559b447: trainer/ckpt.py (torch's distributed checkpoint, whose `.metadata` comes last),
orchestrator/ckpt.py (`progress.pt`, renamed into its place before the trainer's step has ended), utils/pathing.py,
transports/weights/filesystem.py (`broadcasts/step_N` in the form of a hub, `STABLE` last), trainer/utils.py (of these
it keeps the last two, and those of checkpoints).

Log: steps as prime-rl logs them: lines of its trainer and of its orchestrator, and their common file of metrics.

Read in prime-rl 559b447: trainer/rl/train.py and orchestrator/orchestrator.py (`Step 3 | 12.3s | Loss 0.0123 | ...` in
trainer.log, `Step 3 | 12.3s | Reward 0.5000 | ...` in orchestrator.log, both with colours), utils/logger.py (form of a
duration), monitors/file.py (`metrics.jsonl`: several rows a step, each `{"step": N, "time": T, ...}`).
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from charter.artifacts.durable import objects_in
from charter.artifacts.whole_dir import MANIFEST
from charter.engines.common.adapter import EngineAdapter, EngineCheckpoint, LoggedStep, LogReader
from charter.engines.common.files import link_tree, move_to, numbered_steps, without_colours, write_saved_model
from charter.engines.common.request import Handover
from charter.engines.prime_rl.mapping import RUN
from charter.errors import StageError

NAMES = {
    "Loss": "loss",
    "Grad. Norm": "gradient_norm",
    "LR": "learning_rate",
    "Entropy": "entropy",
    "Mismatch KL": "mismatch_kl",
    "Reward": "reward",
    "Max Off-Policy": "age_max",
    "loss/mean": "loss",
    "optim/grad_norm": "gradient_norm",
    "optim/lr": "learning_rate",
    "entropy/all/mean": "entropy",
    "mismatch_kl/all/mean": "mismatch_kl",
    "off_policy/mean": "age_mean",
    "off_policy/max": "age_max",
}
"""Others of the file keep their own names, and others of a line are left out."""
_REWARD = re.compile(r"train/agg/effective/[^/]*/reward/mean")
_TRAINED, _SECONDS, _TOKENS = "optim/lr", "time/step", "progress/tokens"
"""`optim/lr` is in a row of a finished update; `time/step` is the trainer's beside `time/forward_backward`."""
_OWN_TIME = "time/forward_backward"
_LINE = re.compile(r"SUCCESS\s+Step (\d+) \|\s*([\dhmsd. ]+) \| ((?:Loss|Reward) .*)$")
_PART = re.compile(r"^(\D+?) (-?[\d.]+(?:e[+-]?\d+)?|nan|-?inf)\b")
_SIZES = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The steps in what the trainer has printed, or the orchestrator."""
    for line in lines:
        match = _LINE.search(without_colours(line).rstrip())
        if match is None:
            continue
        parts = (_PART.match(part.strip()) for part in match[3].split("|"))
        values = {NAMES[part[1]]: float(part[2]) for part in parts if part is not None and part[1] in NAMES}
        yield LoggedStep(step=int(match[1]), metrics=values, seconds=_duration(match[2]))


def _duration(text: str) -> float:
    """Seconds.

    >>> _duration("12.5s"), _duration("2m 3s"), _duration("1h 4m"), _duration("250ms")
    (12.5, 123.0, 3840.0, 0.25)
    """
    return sum(float(number) * _SIZES[unit] for number, unit in re.findall(r"([\d.]+)(ms|[dhms])", text))


def file_steps(path: Path) -> Iterator[LoggedStep]:
    """The updates in the file of metrics, in order; the last line may be half written.

    A resumed run repeats steps: the trainer's row of a step that does not follow begins a new one.
    """
    rows: dict[int, dict[str, float]] = {}
    for entry in objects_in(path):
        try:
            step = int(entry["step"])
        except (ValueError, KeyError, TypeError):
            continue
        values = {name: float(value) for name, value in entry.items() if isinstance(value, int | float)}
        row = rows.setdefault(step, {})
        row |= {name: value for name, value in values.items() if name not in (_SECONDS, "step", "time")}
        if _OWN_TIME in values and _TRAINED in row:
            yield _step(step, row | {_SECONDS: values[_SECONDS]}, values["time"])
            del rows[step]


def _step(step: int, row: dict[str, float], time: float) -> LoggedStep:
    seconds = row.pop(_SECONDS, None)
    tokens = row.get(_TOKENS)
    metrics = {"reward" if _REWARD.fullmatch(name) else NAMES.get(name, name): value for name, value in row.items()}
    return LoggedStep(
        step=step,
        metrics=metrics,
        tokens=None if tokens is None else round(tokens),
        seconds=seconds,
        time=time,
    )


LOG = LogReader(console=console_steps, json_lines=file_steps)


CHECKPOINTS, WEIGHTS, METRICS = f"{RUN}/checkpoints", f"{RUN}/broadcasts", f"{RUN}/metrics.jsonl"
TAKEN = "taken"
"""Below the work directory: the newest checkpoint that Charter has."""


class PrimeRlAdapter(EngineAdapter):
    """prime-rl's `rl` as one stage."""

    saves_on_sigterm: ClassVar[bool] = False
    adapter_output: ClassVar[None] = None

    def checkpoints(self, work: Path) -> Sequence[EngineCheckpoint]:
        """Those whose trainer and orchestrator have both written theirs."""
        steps = numbered_steps(work / CHECKPOINTS, "step_")
        return [EngineCheckpoint(step=step, path=path) for step, path in steps if _is_whole(path)]

    def taken(self, checkpoint: EngineCheckpoint, work: Path) -> None:
        """Move it away: a start takes the newest, so only what Charter has placed may lie there."""
        move_to(work / TAKEN, checkpoint.path)

    def place(self, saved: Path, step: int, work: Path) -> str:
        """The only one in its directory, where run_rl.py looks for the newest."""
        for name in (TAKEN, CHECKPOINTS):
            shutil.rmtree(work / name, ignore_errors=True)
        (work / METRICS).unlink(missing_ok=True)
        target = work / CHECKPOINTS / f"step_{step}"
        link_tree(saved, target, without=(MANIFEST,))
        return str(target)

    def steps(self, work: Path, log: Path) -> Iterable[LoggedStep]:
        """From the file that trainer and orchestrator write: `rl` prints nothing of a step."""
        return file_steps(work / METRICS)

    def final_step(self, work: Path) -> int | None:
        """The step of the newest whole weights, which are written after every step."""
        steps = numbered_steps(work / WEIGHTS, "step_")
        return max((step for step, path in steps if (path / "STABLE").exists()), default=None)

    def convert(self, work: Path, handover: Handover, target: Path) -> Mapping[str, object]:
        """The weights that vLLM was given last."""
        step = self.final_step(work)
        if step is None:
            raise StageError(f"{work / WEIGHTS} has no whole weights of prime-rl")
        write_saved_model(work / WEIGHTS / f"step_{step}", Path(handover.paths.trained), target)
        return {"converted_by": "weights that prime-rl's trainer wrote for vLLM", "step": step}


def _is_whole(path: Path) -> bool:
    try:
        parts = (path / "trainer" / ".metadata", path / "orchestrator" / "progress.pt")
        return all(part.stat().st_size > 0 for part in parts) and any((path / "trainer").glob("*.distcp"))
    except OSError:
        return False
