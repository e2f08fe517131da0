"""Print how far a quantity of the planner is from measurements, each source left out of its own fit.

.venv/bin/python tools/score_planner.py training_time:TRAINING_TIME FILE.csv [--rows 5] [--worst 20] [--in-sample]

The first argument is a module of `charter.validation.quantities` and a name in it. For work on the physics; users
have `charter validate`, which reads the shipped constants instead of fitting.
"""

import argparse
import importlib
import time
from collections.abc import Callable
from pathlib import Path

from charter.physics.fitted import Fitted
from charter.validation.rows.measurement import read_measurements
from charter.validation.score import ScoredRow, by, cases_of, fitted_to, leave_source_out, scored, summary

KEYS: dict[str, Callable[[ScoredRow], str]] = {
    "kind": lambda item: item.row.kind,
    "source": lambda item: f"{item.row.prefix} {item.row.kind} {item.row.metric}",
    "stack": lambda item: item.stack,
}


def main() -> None:
    """Fit, leave out, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("quantity")
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=0, help="calibrate on so many rows of each source")
    parser.add_argument("--worst", type=int, default=0, help="list the worst rows")
    parser.add_argument("--kind", default="", help="only these kinds, with commas between")
    parser.add_argument("--in-sample", action="store_true")
    parser.add_argument("--unfitted", action="store_true", help="the priors alone")
    options = parser.parse_args()
    module, _, name = options.quantity.removeprefix("charter.validation.quantities.").partition(":")
    quantity = getattr(importlib.import_module(f"charter.validation.quantities.{module}"), name)
    cases, refused = cases_of(quantity, read_measurements(options.file))
    if options.kind:
        cases = [case for case in cases if case.row.kind in options.kind.split(",")]
    print(f"{len(cases)} cases, {len(refused)} refused")
    for reason in sorted({reason for _, reason in refused}):
        print("  refused:", sum(1 for _, other in refused if other == reason), reason)
    began = time.perf_counter()
    fitted = Fitted() if options.unfitted else fitted_to(quantity, cases)
    alone = options.unfitted or options.in_sample
    rows = scored(quantity, cases, fitted) if alone else leave_source_out(quantity, cases, rows=options.rows)
    print(f"{time.perf_counter() - began:.1f} s")
    print_constants(fitted)
    for label, key in KEYS.items():
        print_groups(rows, label, key)
    for item in sorted(rows, key=lambda item: -abs(item.log_error))[: options.worst]:
        print_row(item)


def print_constants(fitted: Fitted) -> None:
    """Shifts of the logarithms, shared and per stack."""
    for name, value in fitted.shared.items():
        moved = {stack: shift.get(name, 0.0) for stack, shift in fitted.stacks.items()}
        own = "  ".join(f"{stack} {shift:+.2f}" for stack, shift in moved.items() if abs(shift) > 0.02)
        print(f"  {name:32} {value:+.3f}   {own}")


def print_groups(rows: list[ScoredRow], label: str, key: Callable[[ScoredRow], str]) -> None:
    """Errors of every group, and the mean of their medians."""
    print(f"-- by {label}")
    summaries = {group: summary(items) for group, items in by(rows, key).items()}
    for group, total in summaries.items():
        errors = f"median {total.median_error:6.1%} p90 {total.p90_error:6.1%} bias {total.bias:+6.1%}"
        print(f"  {group:44} n={total.configurations:4} {errors}")
    mean = sum(total.median_error for total in summaries.values()) / max(1, len(summaries))
    print(f"  {'mean of medians':44} {mean:.1%}")


def print_row(item: ScoredRow) -> None:
    """One row: what was run, what was measured, what was predicted."""
    r = item.row
    layout = f"tp{r.tp} pp{r.pp} vpp{r.vpp} cp{r.cp} ep{r.ep} dp{r.dp} {r.shard} mbs{r.mbs} gbs{r.gbs} seq{r.seq}"
    run = f"{r.id} {r.model} {r.gpu} x{r.gpus} {r.dtype} {layout} {r.recompute}"
    print(f"  {item.error:+7.1%} {run} {r.metric} {r.value:g} -> {item.predicted:g}")


if __name__ == "__main__":
    main()
