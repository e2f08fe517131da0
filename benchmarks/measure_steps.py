"""Times and peak memory of real training, PPO and sampling steps on this machine, as rows to calibrate on.

    .venv/bin/python benchmarks/measure_steps.py --grid standard --output own.csv --budget-seconds 1500
    charter validate own.csv && charter validate calibrate own.csv

On a CUDA device models of 0.1-8B are built from their configuration, with random weights; nothing is downloaded.
Without one tiny models run on the processors: that tests the script, its rows are no calibration. Every case runs in a
process of its own; one that does not fit becomes an `oom` row. The file is written again after every case, so what was
measured stays when the time is up. The last line is one JSON object.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from measured_steps.grid import GRIDS, Case, grid  # noqa: E402
from measured_steps.processes import in_child  # noqa: E402
from measured_steps.rows import Machine, rows_of, write_rows  # noqa: E402

LONGEST_CASE = 300.0
"""Seconds after which a case is given up."""
START_SECONDS = 120.0
"""For the first import of torch."""


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", choices=GRIDS, default="smoke")
    parser.add_argument("--output", "-o", type=Path, default=Path("measured_steps.csv"))
    parser.add_argument("--budget-seconds", type=float, default=1500.0, help="stop before this, with what there is")
    parser.add_argument("--prefix", default="OWN", help="three letters that begin every id: the name of this source")
    parser.add_argument("--steps", type=int, default=8, help="measured steps of a case (ppo at most 4, inference 3)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them (ppo and inference 1)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads of a case")
    parser.add_argument("--kinds", default="", help="only these, such as sft,ppo")
    parser.add_argument("--models", default="", help="only these")
    parser.add_argument("--cpu", action="store_true", help="the processors, even where there is an accelerator")
    parser.add_argument("--list", action="store_true", help="print the cases, measure nothing")
    return parser.parse_args()


def main() -> int:
    """Measure case after case until the grid or the time is used up; 1 when nothing was measured."""
    given, started = options(), time.monotonic()
    facts = in_child(None, given.cpu, timeout=START_SECONDS)
    if facts.pop("status") != "ok":
        print(f"cannot start: {facts['detail']}", file=sys.stderr)
        return 1
    machine = Machine(**facts)
    cases = chosen(given, machine)
    if given.list:
        print("\n".join(case.label for case in cases))
        return 0
    figures = measure_all(cases, given, machine, deadline=started + given.budget_seconds)
    figures["seconds"] = round(time.monotonic() - started, 1)
    print(
        json.dumps(
            {
                "figures": figures,
                "command": shlex.join(["python", *sys.argv]),
                "machine": vars(machine) | {"cpus": os.cpu_count(), "architecture": platform.machine()},
            }
        )
    )
    return 0 if figures["rows"] else 1


def chosen(asked: argparse.Namespace, machine: Machine) -> list[Case]:
    """The cases of the grid that were asked for."""
    kinds, models = (set(filter(None, text.split(","))) for text in (asked.kinds, asked.models))
    return [
        case
        for case in grid(asked.grid, on_cpu=machine.device == "cpu")
        if (not kinds or case.kind in kinds) and (not models or case.model in models)
    ]


def measure_all(cases: list[Case], asked: argparse.Namespace, machine: Machine, *, deadline: float) -> dict[str, Any]:
    """Run the cases, write the rows; the figures of the last line."""
    rows: list[dict[str, str]] = []
    ended: dict[str, list[str]] = {"ok": [], "oom": [], "failed": [], "late": [], "not needed": [], "no time": []}
    memory: dict[str, Any] = {}
    too_large: list[Case] = []
    for case in cases:
        left = deadline - time.monotonic()
        if any(case.needs_no_less_than(other) for other in too_large):
            ended["not needed"].append(case.label)
            continue
        if left <= 0:
            ended["no time"].append(case.label)
            continue
        settings = (machine.device, asked.threads, asked.steps, asked.warmup)
        measured = in_child(case, *settings, timeout=min(left, LONGEST_CASE))
        if measured["status"] == "late" and left < LONGEST_CASE:
            measured["status"] = "no time"
        print(f"{measured['status']:>7}  {case.label}  {shown(measured)}", file=sys.stderr, flush=True)
        ended[measured["status"]].append(
            case.label if "detail" not in measured else f"{case.label}: {measured['detail']}"
        )
        if measured["status"] == "oom":
            too_large.append(case)
        if measured["status"] in ("ok", "oom"):
            rows += rows_of(case, measured, machine)
            write_rows(asked.output, rows, asked.prefix)
        if measured["status"] == "ok":
            memory[case.label] = {
                name: {key: round(value, 3) for key, value in measured[name].items()}
                for name in ("resident_gib", "phase_peak_gib")
                if name in measured
            }
    counts = {status.replace(" ", "_"): len(labels) for status, labels in ended.items()}
    problems = {status.replace(" ", "_"): ended[status] for status in ("failed", "late") if ended[status]}
    return {"rows": len(rows), "output": str(asked.output), **counts, "told": problems, "memory_by_role": memory}


def shown(found: dict[str, Any]) -> str:
    """The figures of a case on one line."""
    if found["status"] != "ok":
        return str(found.get("detail", ""))
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in found["metrics"].items())
    return f"{metrics}, peak {found['peak_gib']:.3f} GiB"


if __name__ == "__main__":
    sys.exit(main())
