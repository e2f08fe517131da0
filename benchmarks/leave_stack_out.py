"""Errors on stacks that were left out of the fit, printed as the column of the accuracy issue's table.

    nice .venv/bin/python benchmarks/leave_stack_out.py FILE.csv [--draws 20] [--processes 2]

Nested: the constants that predict a stack are fitted without its rows, and so are the widths of its intervals, which
come from errors of the other stacks, each predicted without itself and without the first. One stack has one vote (the
median over its configurations); stacks with fewer than 8 configurations are pooled into one. Five rows calibrate stacks
that have more, and what is left of them is counted before and after. A source is made worse where the median error of
its rows, after 5 of them calibrated and averaged over the draws, is above that of the same rows before. Anchor: the
smallest job of a ladder (one model, batch and recipe on several numbers of accelerators) was measured, the larger ones
are predicted: by its pace, as `charter plan --probe` does, and by constants calibrated on that row. Rows that cannot be
true (`charter validate` raises an alarm) are fitted and counted nowhere. The last line is JSON.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median, stdev
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from charter.physics.fitted import WIDEST, Fitted, Knowledge, Spread  # noqa: E402
from charter.physics.terms import enough_memory  # noqa: E402
from charter.validation.alarms import alarms_of  # noqa: E402
from charter.validation.intervals import beside_device, group_of, scatter_factor, spreads  # noqa: E402
from charter.validation.quantities.memory import MEMORY_NAMES, out_of_memory  # noqa: E402
from charter.validation.rows.accelerator import device_family  # noqa: E402
from charter.validation.rows.measurement import Measurement, Refusal, read_measurements  # noqa: E402
from charter.validation.score import (  # noqa: E402
    QUANTITIES,
    Case,
    Quantity,
    ScoredRow,
    calibrated,
    fitted_to,
    predict,
    prepared_once,
    quantity_of,
    spread_over,
)
from charter.validation.validate import safe_cases  # noqa: E402

FEWEST = 8
"""Configurations of a stack that has a vote of its own; from the issue."""
FEW = 5
"""Rows of a stack or source that calibrate."""
MISS = 10.0
"""Penalty on what an 80 % interval misses, in logarithms: 2 / (1 - 0.8), the interval score of Gneiting and Raftery
(2007)."""
LADDERS = ("FND", "IEV", "BSC", "TTN", "NTR")
"""Sources that measured one job on several numbers of accelerators; from the issue."""
WIDTH = 120
"""Of printed text, which docs/concepts/accuracy.md holds as it is."""
WIDTHS = tuple(step / 100 for step in range(2, 150))
"""Half-widths that are tried with the errors in sight."""
WHOLE_STEPS = ("step_time_s", "ppo_step_time_s")


def stack_of(row: Measurement) -> str:
    """The stack of a row as typed, else as printed."""
    return row.stack or row.framework.casefold()


def kind_of(row: Measurement) -> str:
    """The line of the table to which a row belongs."""
    group = group_of(row)
    if group in ("training memory", "adapter memory"):
        named = row.memory_probe not in ("", "unknown")
        return "training memory, probe named" if named else "training memory, others"
    if group == "training moe" or row.n_experts:
        return "mixture of experts, time" if "memory" not in group else group
    if group in ("training dense", "training adapter"):
        return "SFT and LoRA time" if row.kind in ("sft", "lora", "rm") else "dense training time"
    if group == "rl time":
        return "RL step" if row.metric in WHOLE_STEPS else "phases of an RL step"
    return "run hours" if group == "totals" else group


def key_of(row: Measurement) -> str:
    """One configuration and what was measured of it."""
    return f"{row.config_id or row.id} {row.metric}"


def votes(items: Sequence[ScoredRow]) -> list[float]:
    """|predicted / measured - 1| of each configuration that did not calibrate."""
    used = {key_of(item.row) for item in items if item.used}
    groups: dict[str, list[float]] = {}
    for item in items:
        if key_of(item.row) not in used:
            groups.setdefault(key_of(item.row), []).append(abs(item.error))
    return [median(group) for group in groups.values()]


def over_stacks(items: Sequence[tuple[str, ScoredRow]]) -> tuple[float | None, int, int]:
    """Mean over stacks of medians, the number of stacks that vote and of configurations."""
    stacks: dict[str, list[ScoredRow]] = {}
    for stack, item in items:
        stacks.setdefault(stack, []).append(item)
    errors = {stack: votes(members) for stack, members in stacks.items()}
    pooled = [error for values in errors.values() if len(values) < FEWEST for error in values]
    medians = [median(values) for values in errors.values() if len(values) >= FEWEST]
    if pooled:
        medians.append(median(pooled))
    count = sum(map(len, errors.values()))
    return (mean(medians) if medians else None), len(medians), count


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Half-widths of intervals around rows of one stack, by what is known of it."""

    spread: Spread
    devices: frozenset[str]
    of_memory: bool

    def unseen(self, row: Measurement) -> float:
        """The half-width of a stack that nobody measured."""
        plain = self.spread.half_width(group_of(row), "unseen")
        wider = beside_device(plain, plain, measured=self.of_memory or device_family(row) in self.devices)
        return min(wider, WIDEST)

    def planned(self, items: Sequence[ScoredRow]) -> list[ScoredRow]:
        """Rows with the figure that a user plans with: of the memory of training a quantile above the estimate.

        Rows that calibrated narrow or widen the interval of all, as `charter validate --calibrate-rows` has it.
        """
        knowledge: Knowledge = "calibrated" if any(item.used for item in items) else "unseen"
        planned = []
        for item in items:
            group = group_of(item.row)
            factor = scatter_factor(items, self.spread.half_width(group, knowledge))
            interval = self.spread.interval(item.predicted, group, knowledge, factor=factor)
            planned.append(replace(item, predicted=enough_memory(interval, group)))
        return planned


class Stacks:
    """The cases of one quantity, with a cache of constants fitted without some stacks."""

    def __init__(self, quantity: Quantity, rows: Sequence[Measurement]) -> None:
        mine = [row for row in rows if quantity_of(row) is quantity and row.metric != "oom"]
        sound = [row for row in mine if not alarms_of(row)]
        self.flagged = len(mine) - len(sound)
        self.cases, self.refused = safe_cases(quantity, sound)
        self.quantity = prepared_once(quantity, self.cases)
        self.names = sorted({stack_of(case.row) for case in self.cases})
        self._fits: dict[frozenset[str], Fitted] = {}

    def own(self, stack: str) -> list[Case]:
        """The cases of a stack."""
        return [case for case in self.cases if stack_of(case.row) == stack]

    def without(self, *absent: str) -> Fitted:
        """Constants fitted to all other stacks and sources."""
        key = frozenset(absent)
        if key not in self._fits:
            others = [case for case in self.cases if not key & {stack_of(case.row), case.row.prefix}]
            self._fits[key] = fitted_to(self.quantity, others)
        return self._fits[key]

    def source(self, prefix: str) -> list[Case]:
        """The cases of a source."""
        return [case for case in self.cases if case.row.prefix == prefix]

    def scored(self, own: Sequence[Case], fitted: Fitted, used: frozenset[int] = frozenset()) -> list[ScoredRow]:
        """Cases predicted, after calibration on those of some indices."""
        if used:
            fitted = calibrated(self.quantity, [own[index] for index in sorted(used)], fitted)
        values = predict(self.quantity, own, fitted)
        return [
            ScoredRow(row=case.row, stack=case.stack, predicted=float(value), used=index in used)
            for index, (case, value) in enumerate(zip(own, values, strict=True))
        ]

    def _by_source(self, stack: str) -> dict[Knowledge, list[ScoredRow]]:
        """Rows of other stacks predicted without their source: where another has the stack's profile, and after a few.

        As `fit_quantity` does for the widths that `charter validate` uses.
        """
        others = [case for case in self.cases if stack_of(case.row) != stack]
        profiles: dict[str, set[str]] = {}
        for case in others:
            profiles.setdefault(case.stack, set()).add(case.row.prefix)
        seen, later = [], []
        for prefix in sorted({case.row.prefix for case in others}):
            own, fitted = [case for case in others if case.row.prefix == prefix], self.without(stack, prefix)
            seen += [item for item in self.scored(own, fitted) if len(profiles[item.stack]) > 1]
            if len(own) > 2 * FEW:
                later += self.scored(own, fitted, frozenset(spread_over(own, FEW)))
        return {"seen": seen, "calibrated": later}

    def widths(self, stack: str) -> "Widths":
        """Half-widths of a stack that nobody measured, and after a few of its rows, from the errors of the others."""
        inner = [
            replace(item, stack=other)
            for other in self.names
            if other != stack
            for item in self.scored(self.own(other), self.without(stack, other))
        ]
        elsewhere = self._by_source(stack) if self.quantity.name in MEMORY_NAMES else {}
        return Widths(
            spread=spreads({"unseen": inner} | elsewhere),
            devices=frozenset(device_family(item.row) for item in inner),
            of_memory=self.quantity.name in MEMORY_NAMES,
        )


def draws_of(stacks: Stacks, name: str, own: Sequence[Case], fitted: Fitted, draws: int) -> list[list[ScoredRow]]:
    """Cases predicted after calibration on a few of their configurations, drawn at random."""
    first: dict[str, int] = {}
    for index, case in enumerate(own):
        first.setdefault(key_of(case.row), index)
    if len(first) <= FEW:
        return []
    generator = random.Random(f"{stacks.quantity.name} {name}")
    choices = [frozenset(generator.sample(sorted(first.values()), FEW)) for _ in range(draws)]
    return [stacks.scored(own, fitted, choice) for choice in choices]


def before_and_after(items: Sequence[ScoredRow], trials: Sequence[Sequence[ScoredRow]]) -> tuple[float, float, float]:
    """Mean over draws of the median error of the rows that did not calibrate, before the calibration and after, and
    the standard error of their difference: what of it is chance of the draws.
    """
    rows = [[replace(a, used=b.used) for a, b in zip(items, trial, strict=True)] for trial in trials]
    before, after = [median(votes(each)) for each in rows], [median(votes(trial)) for trial in trials]
    gains = [late - early for early, late in zip(before, after, strict=True)]
    return mean(before), mean(after), stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.inf


def sources_moved(stacks: Stacks, draws: int) -> dict[str, tuple[float, float, float]]:
    """Errors of each source before and after a few of its rows, from constants that saw none of its stacks."""
    moved = {}
    for prefix in sorted({case.row.prefix for case in stacks.cases}):
        own = stacks.source(prefix)
        fitted = stacks.without(*sorted({stack_of(case.row) for case in own}))
        trials = draws_of(stacks, prefix, own, fitted, draws)
        if trials:
            moved[f"{prefix} {stacks.quantity.name}"] = before_and_after(stacks.scored(own, fitted), trials)
    return moved


def ladder_of(row: Measurement) -> tuple[object, ...]:
    """The key that stays the same along a ladder; the recipe of a size may differ (NTR prints the best of a sweep)."""
    recipe = () if row.prefix == "NTR" else (row.shard_kind, row.mbs if row.prefix == "FND" else None)
    return (row.prefix, row.model, row.seq, row.accelerator, row.compute_dtype, row.recompute_kind, row.metric, *recipe)


def anchors(stacks: Stacks) -> dict[str, dict[str, float]]:
    """Errors of the larger jobs of ladders: predicted plainly, with the smallest one's pace, calibrated on it."""
    ladders: dict[tuple[object, ...], list[Case]] = {}
    for case in stacks.cases:
        if case.row.prefix in LADDERS and case.row.gpus:
            ladders.setdefault(ladder_of(case.row), []).append(case)
    errors: dict[str, list[list[float]]] = {}
    for cases in ladders.values():
        least = min(case.row.gpus or 0 for case in cases)
        base = [case for case in cases if case.row.gpus == least]
        rest = [case for case in cases if (case.row.gpus or 0) > least]
        if not rest:
            continue
        fitted = stacks.without(stack_of(base[0].row))
        measured_before = predict(stacks.quantity, base, fitted)
        ratios = [math.log(case.row.value / value) for case, value in zip(base, measured_before, strict=True)]
        plain = predict(stacks.quantity, rest, fitted)
        moved = predict(stacks.quantity, rest, calibrated(stacks.quantity, base, fitted))
        for case, first, last in zip(rest, plain, moved, strict=True):
            guesses = (first, first * math.exp(median(ratios)), last)
            error = [abs(float(guess) / case.row.value - 1) for guess in guesses]
            errors.setdefault(case.row.prefix, []).append(error)
    errors["all"] = [error for rows in errors.values() for error in rows]
    ways = ("zero_shot", "pace", "calibrated")
    return {
        name: {"rows": len(rows)}
        | {f"{way}_median": median(row[at] for row in rows) for at, way in enumerate(ways)}
        | {f"{way}_p90": sorted(row[at] for row in rows)[int(0.9 * (len(rows) - 1))] for at, way in enumerate(ways)}
        for name, rows in errors.items()
    }


def share_errors(items: Sequence[ScoredRow]) -> dict[str, tuple[int, float]]:
    """By source: phases of RL steps, and the median of |predicted share / measured share - 1| of those printed."""
    steps: dict[str, list[ScoredRow]] = {}
    for item in items:
        if item.row.metric.startswith("ppo_") and item.row.metric not in WHOLE_STEPS:
            steps.setdefault(f"{item.row.prefix} {item.row.config_id or item.row.id}", []).append(item)
    errors: dict[str, list[float]] = {}
    for name, phases in steps.items():
        if len(phases) > 1:
            ratio = sum(item.row.value for item in phases) / sum(item.predicted for item in phases)
            errors.setdefault(name.split()[0], []).extend(
                abs(ratio * item.predicted / item.row.value - 1) for item in phases
            )
    return {source: (len(values), median(values)) for source, values in sorted(errors.items())}


def interval_score(error: float, half_width: float) -> float:
    """Width and 10 x miss of an 80 % interval, in logarithms."""
    return 2 * half_width + MISS * max(0.0, abs(error) - half_width)


def quarters(value: float | None) -> int | None:
    """A size in factors of four."""
    return round(math.log2(value) / 2) if value else None


CELLS: Mapping[str, Callable[[Measurement], object]] = {
    "device": device_family,
    "accelerators": lambda row: quarters(row.gpus),
    "parameters": lambda row: quarters(row.params_b),
    "length": lambda row: quarters(row.seq or row.isl),
    "micro-batch": lambda row: quarters(row.mbs),
    "number format": lambda row: row.compute_dtype or row.dtype,
    "recomputation": lambda row: row.recompute_kind,
    "attention": lambda row: row.attention_kernel,
    "sharding": lambda row: row.shard_kind,
}
"""What a row says that a width might follow."""


def best_by_cell(
    items: Sequence[tuple[str, ScoredRow, float]], shares: Mapping[str, float], cell_of: Callable[[Measurement], object]
) -> float:
    """Mean score where each value of a column has the width that suits its own errors best."""
    cells: dict[object, list[tuple[float, float]]] = {}
    for stack, item, _ in items:
        cells.setdefault(cell_of(item.row), []).append((item.log_error, shares[stack]))
    return sum(
        min(sum(share * interval_score(error, width) for error, share in rows) for width in WIDTHS)
        for rows in cells.values()
    )


def interval_line(items: Sequence[tuple[str, ScoredRow, float]]) -> dict[str, object]:
    """Coverage and mean interval score over stacks, beside best half-widths: constant, of each stack, of each cell.

    They are chosen with the errors in sight: what one width can reach, and what knowing the scatter of each stack, or
    of each value of the most telling column, would.
    """
    stacks: dict[str, list[tuple[float, float]]] = {}
    for stack, item, width in items:
        stacks.setdefault(stack, []).append((item.log_error, width))
    fixed = {
        stack: [mean(interval_score(error, width) for error, _ in rows) for width in WIDTHS]
        for stack, rows in stacks.items()
    }
    shares = {stack: 1 / len(stacks) / len(rows) for stack, rows in stacks.items()}
    columns = {name: best_by_cell(items, shares, cell_of) for name, cell_of in CELLS.items()}
    column = min(columns, key=lambda name: columns[name])
    return {
        "best_by_column": columns[column],
        "column": column,
        "coverage": mean(mean(abs(error) <= width for error, width in rows) for rows in stacks.values()),
        "score": mean(mean(interval_score(error, width) for error, width in rows) for rows in stacks.values()),
        "best_constant": min(map(mean, zip(*fixed.values(), strict=True))),
        "best_of_each_stack": mean(map(min, fixed.values())),
    }


def fits(rows: Sequence[Measurement]) -> dict[str, object]:
    """Brier score of P(fits), runs that ran out of memory and runs that ran weighing the same.

    A row is judged with constants of memory that were fitted without its stack.
    """
    stacks = {quantity.name: Stacks(quantity, rows) for quantity in QUANTITIES if quantity.name in MEMORY_NAMES}
    chances: dict[bool, list[float]] = {True: [], False: []}
    above: list[str] = []
    for row in rows:
        if row.metric != "oom" and not (row.metric.startswith("peak_mem") and row.kind != "inference"):
            continue
        if row.metric.endswith(("_upper", "_total")):
            continue
        ran = row.metric != "oom" or not row.value
        try:
            constants = {name: each.without(stack_of(row)) for name, each in stacks.items()}
            chances[ran].append(out_of_memory(row, constants).fits_probability)
        except Refusal:
            continue
        if not ran and chances[ran][-1] > 0.5:
            above.append(row.id)
    brier = {ran: mean((value - ran) ** 2 for value in values) for ran, values in chances.items() if values}
    return {
        "oom_rows": len(chances[False]),
        "ran_rows": len(chances[True]),
        "brier": mean(brier.values()) if brier else None,
        "oom_above_half": above,
        "ran_below_fifth": mean(value < 0.2 for value in chances[True]) if chances[True] else None,
    }


@dataclass(kw_only=True)
class Scores:
    """Scored rows of one quantity."""

    zero: list[tuple[str, ScoredRow, float]] = field(default_factory=list)
    """Stack, row before any calibration, half-width of its interval."""
    planned: list[tuple[str, ScoredRow]] = field(default_factory=list)
    """The same with what a user plans with."""
    drawn: list[list[tuple[str, ScoredRow]]] = field(default_factory=list)
    """Of each draw: stack and row after a calibration, with what a user plans with."""
    undrawn: list[list[tuple[str, ScoredRow]]] = field(default_factory=list)
    """The same rows before it."""
    moved: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Errors of sources before and after, and the standard error of the difference."""
    ladders: dict[str, dict[str, float]] = field(default_factory=dict)
    refused: int = 0
    flagged: int = 0
    worse: int = 0
    compared: int = 0


def scores_of(name: str, rows: Sequence[Measurement], draws: int) -> Scores:
    """Everything that is predicted of one quantity."""
    print(name, file=sys.stderr)
    quantity = next(quantity for quantity in QUANTITIES if quantity.name == name)
    stacks = Stacks(quantity, rows)
    scores = Scores(refused=len(stacks.refused), flagged=stacks.flagged)
    scores.drawn, scores.undrawn = [[] for _ in range(draws)], [[] for _ in range(draws)]
    for stack in stacks.names:
        own, fitted = stacks.own(stack), stacks.without(stack)
        items = stacks.scored(own, fitted)
        widths = stacks.widths(stack)
        scores.zero += [(stack, item, widths.unseen(item.row)) for item in items]
        planned = widths.planned(items)
        scores.planned += [(stack, item) for item in planned]
        trials = draws_of(stacks, stack, own, fitted, draws)
        for trial, drawn, undrawn in zip(trials, scores.drawn, scores.undrawn, strict=False):
            drawn += [(stack, item) for item in widths.planned(trial)]
            undrawn += [(stack, replace(item, used=later.used)) for item, later in zip(planned, trial, strict=True)]
        if trials:
            before, later, _ = before_and_after(items, trials)
            scores.compared += 1
            scores.worse += later > before
    scores.moved = sources_moved(stacks, draws)
    if quantity.name == "training step time":
        scores.ladders = anchors(stacks)
    return scores


def by_kind(items: Iterable[tuple[str, ScoredRow]]) -> dict[str, list[tuple[str, ScoredRow]]]:
    """Scored rows by the line of the table."""
    kinds: dict[str, list[tuple[str, ScoredRow]]] = {}
    for stack, item in items:
        kinds.setdefault(kind_of(item.row), []).append((stack, item))
    return kinds


def over_draws(draws: Sequence[Sequence[tuple[str, ScoredRow]]]) -> dict[str, float]:
    """By line of the table: the mean over draws of the error of rows that did not calibrate."""
    errors: dict[str, list[float]] = {}
    for items in draws:
        for kind, members in by_kind(items).items():
            error = over_stacks(members)[0]
            if error is not None:
                errors.setdefault(kind, []).append(error)
    return {kind: mean(values) for kind, values in errors.items()}


def column(rows: Sequence[Measurement], draws: int, processes: int) -> dict[str, object]:
    """Every figure of the table."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(scores_of, quantity.name, rows, draws) for quantity in QUANTITIES]
        judged = pool.submit(fits, rows)
        quantities = [job.result() for job in jobs]
    zero = by_kind(pair for scores in quantities for pair in scores.planned)
    after = over_draws([[pair for scores in quantities for pair in scores.drawn[draw]] for draw in range(draws)])
    before = over_draws([[pair for scores in quantities for pair in scores.undrawn[draw]] for draw in range(draws)])
    widths: dict[str, list[tuple[str, ScoredRow, float]]] = {}
    for scores in quantities:
        for stack, item, width in scores.zero:
            widths.setdefault(group_of(item.row), []).append((stack, item, width))
    limits: dict[str, list[bool]] = {}
    for stack_rows in widths.values():
        for _, item, width in stack_rows:
            limits.setdefault(kind_of(item.row), []).append(item.log_error + width < math.log(0.95))
    lines = {}
    for kind in sorted(zero):
        error, voting, configurations = over_stacks(zero[kind])
        lines[kind] = {
            "stacks": voting,
            "configurations": configurations,
            "zero_shot": error,
            "before_5": before.get(kind),
            "after_5": after.get(kind),
            "under_by_5_percent": mean(item.error < -0.05 for _, item in zero[kind]),
            "limit_under_by_5_percent": mean(limits[kind]),
        }
    return {
        "lines": lines,
        "intervals": {group: interval_line(items) for group, items in sorted(widths.items())},
        "fits": judged.result(),
        "refused": sum(scores.refused for scores in quantities) / len(rows),
        "flagged": sum(scores.flagged for scores in quantities),
        "made_worse_by_5": [sum(scores.worse for scores in quantities), sum(each.compared for each in quantities)],
        "sources_by_5": {name: pair for scores in quantities for name, pair in scores.moved.items()},
        "anchors": {name: figures for scores in quantities for name, figures in scores.ladders.items()},
        "shares": share_errors([item for scores in quantities for _, item, _ in scores.zero]),
        "rows": len(rows),
        "draws": draws,
    }


def percent(value: object) -> str:
    """A share as text."""
    return "-" if value is None else f"{float(value):.1%}"  # type: ignore[arg-type]


def table(figures: dict[str, object]) -> str:
    """The column as Markdown."""
    drawn = f"stacks of more than 5, before | after 5 rows ({figures['draws']} draws)"
    under = "under by > 5 % | and their 90th percentile"
    lines = [f"| quantity | stacks, configurations | zero-shot | {drawn} | {under} |", "| --- " * 7 + "|"]
    for name, item in figures["lines"].items():  # type: ignore[attr-defined]
        shares = ("under_by_5_percent", "limit_under_by_5_percent")
        cells = [percent(item[key]) for key in ("zero_shot", "before_5", "after_5", *shares)]
        lines.append(f"| {name} | {item['stacks']}, {item['configurations']} | {' | '.join(cells)} |")
    head = "| 80 % interval, zero-shot | inside | score | best constant | ratio | best width of each stack | of each |"
    lines += ["", head, "| --- " * 7 + "|"]
    for name, item in figures["intervals"].items():  # type: ignore[attr-defined]
        score, best = item["score"], item["best_constant"]
        cells = f"{percent(item['coverage'])} | {score:.2f} | {best:.2f} | {score / best:.2f}"
        column = f"{item['column']}: {item['best_by_column']:.2f}"
        lines.append(f"| {name} | {cells} | {item['best_of_each_stack']:.2f} | {column} |")
    judged: Mapping[str, Any] = figures["fits"]  # type: ignore[assignment]
    above = ", ".join(judged["oom_above_half"]) or "none"
    worse, compared = figures["made_worse_by_5"]  # type: ignore[misc]
    brier = "-" if judged["brier"] is None else f"{judged['brier']:.3f}"
    text = [
        f"fits_probability: Brier {brier} ({judged['oom_rows']} rows out of memory, {judged['ran_rows']} that ran); "
        f"out of memory above 0.5: {above}; ran below 0.2: {percent(judged['ran_below_fifth'])}",
        f"refused: {percent(figures['refused'])} of {figures['rows']} rows, {figures['flagged']} flagged; "
        f"made worse by 5 rows: {worse} of {compared} stacks and quantities",
        sources_line(figures["sources_by_5"], int(figures["draws"])),  # type: ignore[arg-type, call-overload]
        shares_line(figures["shares"]),  # type: ignore[arg-type]
    ]
    glued = [spaced(line).replace(" %", "\N{NO-BREAK SPACE}%") for line in text]
    lines += [folded for line in glued for folded in ("", *wrap(line, WIDTH, break_on_hyphens=False))]
    lines += ["", *anchor_lines(figures["anchors"])]  # type: ignore[arg-type]
    return "\n".join(map(spaced, lines)).replace("\N{NO-BREAK SPACE}", "")


def spaced(text: str) -> str:
    """Text with a space before each percent sign."""
    return text.replace("%", " %").replace("  %", " %")


def sources_line(moved: Mapping[str, tuple[float, float, float]], draws: int) -> str:
    """Sources whose rows are predicted worse after five of them, by how much, and which by more than chance."""
    worse = {name: figures for name, figures in moved.items() if figures[1] > figures[0]}
    beyond = {name: later - before > 2 * error for name, (before, later, error) in worse.items()}
    listed = ", ".join(
        f"{name}{'*' * beyond[name]} {before:.1%} to {later:.1%}" for name, (before, later, _) in worse.items()
    )
    clearly = sum(later > 1.05 * before for before, later, _ in worse.values())
    share = percent(len(worse) / len(moved)) if moved else "-"
    return (
        f"sources made worse by 5 rows (mean over {draws} draws): {len(worse)} of {len(moved)} ({share}), "
        f"{clearly} by more than a twentieth, {sum(beyond.values())} by more than twice the standard error over the "
        f"draws (*): {listed or 'none'}"
    )


def shares_line(shares: Mapping[str, tuple[int, float]]) -> str:
    """Errors of the shares of phases in one line."""
    listed = ", ".join(f"{name} {error:.1%} of {count}" for name, (count, error) in shares.items())
    return f"shares of the phases of RL steps, zero-shot, off in the median by: {listed or 'no phases'}"


def anchor_lines(anchors: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The table of ladders."""
    head = "| anchor: larger jobs of a ladder | rows | zero-shot | pace of the smallest | calibrated on it |"
    lines = [head, "| --- " * 5 + "|"]
    for name, item in anchors.items():
        ways = ("zero_shot", "pace", "calibrated")
        cells = [f"{item[f'{way}_median']:.1%}, p90 {item[f'{way}_p90']:.1%}" for way in ways]
        lines.append(f"| {name} | {item['rows']} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Predict, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    figures = column(read_measurements(options.file), options.draws, options.processes)
    assert all(math.isfinite(item["zero_shot"]) for item in figures["lines"].values())  # type: ignore[attr-defined]
    print(table(figures))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
