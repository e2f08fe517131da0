"""The line that MaxText prints after every step, and the file of its metrics.

Read at e591f30: src/maxtext/common/metric_logger.py (`_log_training_metrics`: parts joined by ", ", the step counted
from 0; `write_metrics_locally`: a JSON object per step where `metrics_file` names a file).
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from charter.engines.common.logged import LoggedStep, LogReader

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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict) and "learning/loss" in values and isinstance(values.get("step"), int | float):
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
