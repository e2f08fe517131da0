"""Errors on stacks that were left out of the fit, printed as the column of the accuracy issue's table.

    nice .venv/bin/python benchmarks/leave_stack_out.py FILE.csv [--draws 20]

Nested: the constants that predict a stack are fitted without its rows, and so are the widths of its intervals, which
come from errors of the other stacks, each predicted without itself and without the first. One stack has one vote (the
median over its configurations); stacks with fewer than 8 configurations are pooled into one. The last line is JSON.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from charter.physics.fitted import Fitted  # noqa: E402
from charter.validation.intervals import group_of, spreads  # noqa: E402
from charter.validation.quantities.memory import out_of_memory  # noqa: E402
from charter.validation.quantity import (  # noqa: E402
    QUANTITIES,
    Quantity,
    quantity_of,
)
from charter.validation.rows.measurement import Measurement, Refusal, read_measurements  # noqa: E402
from charter.validation.score import Case, Scored, calibrated, fitted_to, predict  # noqa: E402
from charter.validation.validate import safe_cases  # noqa: E402

FEWEST = 8
"""Configurations of a stack that has a vote of its own; from the issue."""
MISS = 10.0
"""Penalty on what an 80 % interval misses, in logarithms: 2 / (1 - 0.8), the interval score of Gneiting and Raftery
(2007)."""
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


def votes(items: Sequence[Scored]) -> list[float]:
    """|predicted / measured - 1| of each configuration that did not calibrate."""
    used = {key_of(item.row) for item in items if item.used}
    groups: dict[str, list[float]] = {}
    for item in items:
        if key_of(item.row) not in used:
            groups.setdefault(key_of(item.row), []).append(abs(item.error))
    return [median(group) for group in groups.values()]


def over_stacks(items: Sequence[tuple[str, Scored]]) -> tuple[float | None, int, int]:
    """Mean over stacks of medians, the number of stacks that vote and of configurations."""
    stacks: dict[str, list[Scored]] = {}
    for stack, item in items:
        stacks.setdefault(stack, []).append(item)
    errors = {stack: votes(members) for stack, members in stacks.items()}
    pooled = [error for found in errors.values() if len(found) < FEWEST for error in found]
    medians = [median(found) for found in errors.values() if len(found) >= FEWEST]
    if pooled:
        medians.append(median(pooled))
    count = sum(map(len, errors.values()))
    return (mean(medians) if medians else None), len(medians), count


class Stacks:
    """The cases of one quantity, with a cache of constants fitted without some stacks."""

    def __init__(self, quantity: Quantity, rows: Sequence[Measurement]) -> None:
        self.quantity = quantity
        mine = [row for row in rows if quantity_of(row) is quantity and row.metric != "oom"]
        self.cases, self.refused = safe_cases(quantity, mine)
        self.names = sorted({stack_of(case.row) for case in self.cases})
        self._fits: dict[frozenset[str], Fitted] = {}

    def own(self, stack: str) -> list[Case]:
        """The cases of a stack."""
        return [case for case in self.cases if stack_of(case.row) == stack]

    def without(self, *absent: str) -> Fitted:
        """Constants fitted to all other stacks."""
        key = frozenset(absent)
        if key not in self._fits:
            others = [case for case in self.cases if stack_of(case.row) not in key]
            self._fits[key] = fitted_to(self.quantity, others)
        return self._fits[key]

    def scored(self, stack: str, fitted: Fitted, used: frozenset[int] = frozenset()) -> list[Scored]:
        """The cases of a stack predicted, after calibration on those of some indices."""
        own = self.own(stack)
        if used:
            fitted = calibrated(self.quantity, [own[index] for index in sorted(used)], fitted)
        values = predict(self.quantity, own, fitted)
        return [
            Scored(row=case.row, stack=case.stack, predicted=float(value), used=index in used)
            for index, (case, value) in enumerate(zip(own, values, strict=True))
        ]

    def widths(self, stack: str) -> Callable[[str], float]:
        """Half-width by group for a stack that nobody measured, from the errors of the others."""
        inner = [
            replace(item, stack=other)
            for other in self.names
            if other != stack
            for item in self.scored(other, self.without(stack, other))
        ]
        spread = spreads({"unseen": inner})
        return lambda group: spread.half_width(group, "unseen")


def draws_of(stacks: Stacks, stack: str, rows: int, draws: int) -> list[list[Scored]]:
    """A stack predicted after calibration on a few of its configurations, drawn at random."""
    own = stacks.own(stack)
    first: dict[str, int] = {}
    for index, case in enumerate(own):
        first.setdefault(key_of(case.row), index)
    if len(first) <= rows:
        return []
    generator = random.Random(f"{stacks.quantity.name} {stack}")
    choices = [frozenset(generator.sample(sorted(first.values()), rows)) for _ in range(draws)]
    return [stacks.scored(stack, stacks.without(stack), choice) for choice in choices]


def interval_score(error: float, half_width: float) -> float:
    """Width and 10 x miss of an 80 % interval, in logarithms."""
    return 2 * half_width + MISS * max(0.0, abs(error) - half_width)


def interval_line(items: Sequence[tuple[str, Scored, float]]) -> dict[str, object]:
    """Coverage and mean interval score over stacks, beside the best constant half-width."""
    stacks: dict[str, list[tuple[float, float]]] = {}
    for stack, item, width in items:
        stacks.setdefault(stack, []).append((item.log_error, width))

    def over(width_of: Callable[[float], float]) -> float:
        return mean(mean(interval_score(error, width_of(width)) for error, width in rows) for rows in stacks.values())

    best = min(over(lambda _, constant=step / 100: constant) for step in range(2, 150))  # type: ignore[misc]
    inside = mean(mean(abs(error) <= width for error, width in rows) for rows in stacks.values())
    return {"coverage": inside, "score": over(lambda width: width), "best_constant": best}


def fits(rows: Sequence[Measurement]) -> dict[str, object]:
    """Brier score of P(fits), runs that ran out of memory and runs that ran weighing the same."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        if row.metric != "oom" and not (row.metric.startswith("peak_mem") and row.kind != "inference"):
            continue
        if row.metric.endswith(("_upper", "_total")):
            continue
        ran = row.metric != "oom" or not row.value
        try:
            found[ran].append(out_of_memory(row).fits_probability)
        except Refusal:
            continue
    brier = {ran: mean((value - ran) ** 2 for value in values) for ran, values in found.items() if values}
    return {
        "oom_rows": len(found[False]),
        "ran_rows": len(found[True]),
        "brier": mean(brier.values()) if brier else None,
        "oom_above_half": sum(value > 0.5 for value in found[False]),
        "ran_below_fifth": mean(value < 0.2 for value in found[True]) if found[True] else None,
    }


def column(rows: Sequence[Measurement], draws: int) -> dict[str, object]:
    """Every figure of the table."""
    zero: dict[str, list[tuple[str, Scored]]] = {}
    after: dict[str, list[float]] = {}
    widths: dict[str, list[tuple[str, Scored, float]]] = {}
    refused, worse, compared = 0, 0, 0
    for quantity in QUANTITIES:
        print(quantity.name, file=sys.stderr)
        stacks = Stacks(quantity, rows)
        refused += len(stacks.refused)
        drawn: list[dict[str, list[tuple[str, Scored]]]] = [{} for _ in range(draws)]
        for stack in stacks.names:
            items = stacks.scored(stack, stacks.without(stack))
            width = stacks.widths(stack)
            for item in items:
                zero.setdefault(kind_of(item.row), []).append((stack, item))
                widths.setdefault(group_of(item.row), []).append((stack, item, width(group_of(item.row))))
            trials = draws_of(stacks, stack, 5, draws)
            for trial, table in zip(trials, drawn, strict=False):
                for item in trial:
                    table.setdefault(kind_of(item.row), []).append((stack, item))
            if trials:
                compared += 1
                used_free = [votes([replace(a, used=b.used) for a, b in zip(items, t, strict=True)]) for t in trials]
                worse += mean(median(votes(t)) for t in trials) > mean(median(found) for found in used_free)
        for table in drawn:
            for kind, found in table.items():
                error = over_stacks(found)[0]
                if error is not None:
                    after.setdefault(kind, []).append(error)
    lines = {}
    for kind in sorted(zero):
        error, voting, configurations = over_stacks(zero[kind])
        under = mean(item.predicted < 0.95 * item.row.value for _, item in zero[kind])
        lines[kind] = {
            "stacks": voting,
            "configurations": configurations,
            "zero_shot": error,
            "after_5": mean(after[kind]) if kind in after else None,
            "under_by_5_percent": under,
        }
    return {
        "lines": lines,
        "intervals": {group: interval_line(items) for group, items in sorted(widths.items())},
        "fits": fits(rows),
        "refused": refused / len(rows),
        "made_worse_by_5": [worse, compared],
        "rows": len(rows),
    }


def percent(value: object) -> str:
    """A share as text."""
    return "-" if value is None else f"{float(value):.1%}"  # type: ignore[arg-type]


def table(figures: dict[str, object]) -> str:
    """The column as Markdown."""
    lines = ["| quantity | stacks, configurations | zero-shot | after 5 rows | under by > 5 % |", "| --- " * 5 + "|"]
    for name, item in figures["lines"].items():  # type: ignore[attr-defined]
        cells = [percent(item[key]) for key in ("zero_shot", "after_5", "under_by_5_percent")]
        lines.append(f"| {name} | {item['stacks']}, {item['configurations']} | {' | '.join(cells)} |")
    lines += ["", "| 80 % interval, zero-shot | inside | score | best constant | ratio |", "| --- " * 5 + "|"]
    for name, item in figures["intervals"].items():  # type: ignore[attr-defined]
        score, best = item["score"], item["best_constant"]
        lines.append(f"| {name} | {percent(item['coverage'])} | {score:.2f} | {best:.2f} | {score / best:.2f} |")
    judged = figures["fits"]
    worse, compared = figures["made_worse_by_5"]  # type: ignore[misc]
    brier = "-" if judged["brier"] is None else f"{judged['brier']:.3f}"  # type: ignore[index]
    lines += [
        "",
        f"fits_probability: Brier {brier} ({judged['oom_rows']} rows out of memory, {judged['ran_rows']} that ran); "  # type: ignore[index]
        f"out of memory above 0.5: {judged['oom_above_half']}; ran below 0.2: {percent(judged['ran_below_fifth'])}",  # type: ignore[index]
        f"refused: {percent(figures['refused'])} of {figures['rows']} rows; "
        f"made worse by 5 rows: {worse} of {compared} stacks and quantities",
    ]
    return "\n".join(line.replace("%", " %").replace("  %", " %") for line in lines)


def main() -> None:
    """Predict, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    figures = column(read_measurements(options.file), options.draws)
    assert all(math.isfinite(item["zero_shot"]) for item in figures["lines"].values())  # type: ignore[attr-defined]
    print(table(figures))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
