"""Finished training runs, read from a CSV: what a scaling law is fitted to."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charter.errors import DataError
from charter.physics.scaling.laws import FLOPS_PER_PARAMETER_AND_TOKEN, effective_tokens

NEEDED = ("parameters", "tokens", "loss")
OPTIONAL = ("flops", "learning_rate", "batch_tokens", "epochs", "unique_tokens")
FEWEST_RUNS = 6
"""Five constants need more than five runs."""
FEWEST_SIZES = 3


@dataclass(frozen=True, kw_only=True)
class SmallRun:
    """One finished run: its size, its tokens, its final loss in nats per token."""

    num_parameters: float
    num_tokens: float
    loss: float
    flops: float | None = None
    learning_rate: float | None = None
    batch_tokens: float | None = None
    unique_tokens: float | None = None
    """Tokens that differ; None when every token was seen once."""

    @property
    def compute_flops(self) -> float:
        """Operations of the run: as given, else `6 N D`."""
        return self.flops or FLOPS_PER_PARAMETER_AND_TOKEN * self.num_parameters * self.num_tokens

    @property
    def worth_tokens(self) -> float:
        """Tokens after discounting repeats (`laws.effective_tokens`)."""
        return self.num_tokens if self.unique_tokens is None else effective_tokens(self.num_tokens, self.unique_tokens)


def read_runs(text: str, file: str) -> tuple[SmallRun, ...]:
    """Runs of a CSV with the columns `parameters, tokens, loss` and any of `OPTIONAL`.

    DataError holds every problem of the file at once, each with its line.

    >>> read_runs("parameters,tokens,loss,epochs\\n1e8,2e9,3.1,2\\n", "runs.csv")[0].unique_tokens
    1000000000.0
    """
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), skipinitialspace=True)
    heading = [(name or "").strip() for name in reader.fieldnames or ()]
    reader.fieldnames = heading
    if missing := [name for name in NEEDED if name not in heading]:
        raise DataError(
            f"{file}:1: no column {', '.join(missing)}; found {', '.join(heading) or 'nothing'}\n"
            f"  give the columns {', '.join(NEEDED)}, and any of {', '.join(OPTIONAL)}"
        )
    problems: list[str] = []
    runs = []
    for row in reader:
        if not any((value or "").strip() for value in row.values() if isinstance(value, str)):
            continue
        run = _run(row, f"{file}:{reader.line_num}", problems)
        if run is not None:
            runs.append(run)
    if problems:
        raise DataError("\n".join(problems))
    return tuple(runs)


def check_runs(runs: Sequence[SmallRun]) -> None:
    """Raise, with every reason at once, when the runs cannot tell the terms of a law apart."""
    problems = []
    if len(runs) < FEWEST_RUNS:
        noun = "run" if len(runs) == 1 else "runs"
        problems.append(f"{len(runs)} {noun} cannot fit five constants; give at least {FEWEST_RUNS}")
    if len({run.num_parameters for run in runs}) < FEWEST_SIZES or len({run.num_tokens for run in runs}) < FEWEST_SIZES:
        problems.append("the runs need at least 3 sizes and 3 numbers of tokens, else the two terms are one")
    elif len({round(math.log(run.num_tokens / run.num_parameters), 3) for run in runs}) == 1:
        problems.append("all runs have the same tokens per parameter: size and tokens cannot be told apart")
    if problems:
        raise DataError("\n  ".join(problems))


def _run(row: Mapping[str, str | None], where: str, problems: list[str]) -> SmallRun | None:
    before = len(problems)
    values = {name: _number(row, name, where, problems) for name in (*NEEDED, *OPTIONAL)}
    for name in NEEDED:
        if values[name] is None and not (row.get(name) or "").strip():
            problems.append(f"{where}: {name} is empty; every run needs it")
    if len(problems) > before:
        return None
    parameters, tokens, loss = (values[name] or 0.0 for name in NEEDED)
    unique, epochs = values["unique_tokens"], values["epochs"]
    if unique is None and epochs is not None:
        unique = tokens / max(epochs, 1.0)
    return SmallRun(
        num_parameters=parameters,
        num_tokens=tokens,
        loss=loss,
        flops=values["flops"],
        learning_rate=values["learning_rate"],
        batch_tokens=values["batch_tokens"],
        unique_tokens=None if unique is None or unique >= tokens else unique,
    )


def _number(row: Mapping[str, str | None], name: str, where: str, problems: list[str]) -> float | None:
    text = (row.get(name) or "").strip().replace("_", "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        problems.append(f"{where}: {name} {text!r} is not a number; write it like 1.3e9")
        return None
    if not (math.isfinite(value) and value > 0):
        problems.append(f"{where}: {name} {text} must be a number above zero")
        return None
    return value
