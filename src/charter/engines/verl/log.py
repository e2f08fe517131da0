"""Steps as verl logs them: the console line of its LocalLogger, and the JSON lines of its FileLogger.

Read in verl 0.9.1: utils/logger/aggregate_logger.py (`concat_dict_to_str`: `step:N - key:value - key:value`, values as
`pprint` prints them, so NumPy's come as `np.float64(0.5)`), utils/tracking.py (`{"step": N, "data": {...}}`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from charter.engines.common.logged import LoggedStep, LogReader
from charter.errors import loads_json

NAMES = {
    "train/loss": "loss",
    "train/lr": "learning_rate",
    "train/grad_norm": "gradient_norm",
    "actor/pg_loss": "loss",
    "actor/lr": "learning_rate",
    "actor/grad_norm": "gradient_norm",
    "critic/score/mean": "reward",
    "critic/vf_loss": "value_loss",
    "actor/entropy": "entropy",
}
"""Others keep their own names. `actor/reward_kl_penalty` is nats per token, where Charter's `kl` is per answer."""
_TOKENS = ("perf/total_num_tokens", "train/global_tokens")
_SECONDS = ("perf/time_per_step", "timing_s/step")
_TRAINS = ("training/global_step", "train/loss")
"""One of them is in every line of a training step; lines of a validation have neither."""
_LINE = re.compile(r"(?:^|\s)step:(\d+) - (\S.*)$")
_NUMPY = re.compile(r"^np\.\w+\((.*)\)$")


def console_steps(lines: Iterable[str]) -> Iterator[LoggedStep]:
    """The steps in what a process has printed; Ray puts the name of its task before each line."""
    for line in lines:
        match = _LINE.search(line.rstrip())
        if match is None:
            continue
        pairs = (part.rpartition(":") for part in match[2].split(" - "))
        values = {name: number for name, _, text in pairs if name and (number := _number(text)) is not None}
        yield from _step(int(match[1]), values)


def file_steps(path: Path) -> Iterator[LoggedStep]:
    """The steps of a file of JSON lines; the last line may be half written."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = loads_json(line)
            step, data = int(entry["step"]), dict(entry["data"])
        except (ValueError, KeyError, TypeError):
            continue
        values = {name: float(value) for name, value in data.items() if isinstance(value, int | float)}
        yield from _step(step, values)


def _step(step: int, values: Mapping[str, float]) -> Iterator[LoggedStep]:
    if step < 1 or not any(name in values for name in _TRAINS):
        return
    tokens = next((values[name] for name in _TOKENS if name in values), None)
    yield LoggedStep(
        step=step,
        metrics={NAMES.get(name, name): value for name, value in values.items()},
        tokens=None if tokens is None else round(tokens),
        seconds=next((values[name] for name in _SECONDS if name in values), None),
    )


def _number(text: str) -> float | None:
    inner = _NUMPY.match(text)
    try:
        return float(inner[1] if inner else text)
    except ValueError:
        return None


LOG = LogReader(console=console_steps, json_lines=file_steps)
