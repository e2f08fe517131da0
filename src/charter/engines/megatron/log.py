"""The line that Megatron-LM prints after every iteration.

Read at d98e8a6: megatron/training/training.py (`training_log`: the last rank prints it, values in its own formats;
the loss is left out where it is negative or not a number). Its time of day has no zone, so it is not told.
"""

import math
import re
from collections.abc import Iterable, Iterator

from charter.engines.common.logged import LoggedStep, LogReader

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
