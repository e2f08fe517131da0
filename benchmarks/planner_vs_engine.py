"""The planner beside the native engine on this machine: bytes by part and time by phase of 42 configurations.

    .venv/bin/python benchmarks/planner_vs_engine.py

Every configuration is planned as a project of one stage, then the stage's own module runs a few steps, once for time
and once for bytes, in processes of their own. Time is CPU seconds of one thread, since wall time on a shared machine
measures its neighbours. A pace per kind of stage, as `charter validate calibrate -C` and `charter plan --probe`
store it, is the geometric mean over the other configurations of the kind: each is judged by a pace that has not seen
it. The last line is one JSON object.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import exp, log
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from planned_against.cases import Case, cases  # noqa: E402
from planned_against.data import write_data  # noqa: E402
from planned_against.processes import in_child  # noqa: E402

from charter.plan.knowledge import shipped  # noqa: E402
from charter.plan.machine import Machine, probe_machine  # noqa: E402
from charter.plan.project_plan import plan_project  # noqa: E402
from charter.run.planned import planned_step  # noqa: E402

PHASES = ("generate", "score", "update")
WORTH_SECONDS = 2.0
"""CPU seconds that the measured steps of a case should take; at least 5 steps, at most 20."""
MEMORY_ALLOWED, TIME_ALLOWED = 0.05, 0.15
PARTS = {"weights": "parameters", "gradients": "gradients", "optimizer": "optimizer"}


def planned(case: Case, machine: Machine) -> dict[str, Any]:
    """Seconds of a step by phase and bytes by part, with the constants as shipped."""
    steps = 1000
    with tempfile.TemporaryDirectory() as place:
        write_data(Path(place), case.seq)
        project = case.project(steps)
        plan = plan_project(project, Path(place), machine=machine, knowledge=shipped())
    stage = plan.stage("measured")
    assert stage is not None
    step = planned_step(project.pipeline["measured"], stage)
    assert step is not None
    return {
        "seconds": {phase: step.seconds_by_phase.get(phase, 0.0) for phase in PHASES} | {"step": step.seconds_per_step},
        "bytes": step.peak_bytes,
        "parts": dict(step.bytes_by_part),
        "moment": stage.option.peak.moment,
        "terms": {term.name: term.value / steps for term in stage.option.time_terms},
    }


def measure(case: Case, machine: Machine, measured: Sequence[str]) -> dict[str, Any]:
    """One configuration: planned, measured, and what went wrong."""
    row: dict[str, Any] = {"case": case.label, "kind": case.kind, "planned": planned(case, machine)}
    row["machine"] = asdict(machine)
    wanted = WORTH_SECONDS / max(row["planned"]["seconds"]["step"], 1e-3)
    for what in measured:
        answer = in_child(case, what, max(5, min(20, round(wanted))))
        row[what if isinstance(answer, dict) else "failed"] = answer
    return row


def with_paces(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """For each configuration the pace of its kind from the others of that kind; those alone in their kind have none."""
    ratios = {row["case"]: (row["kind"], row["seconds"]["step"] / row["planned"]["seconds"]["step"]) for row in rows}
    paces = {}
    for label, (kind, _) in ratios.items():
        others = [log(ratio) for other, (same, ratio) in ratios.items() if same == kind and other != label]
        if others:
            paces[label] = exp(statistics.fmean(others))
    return paces


def errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Planned over measured, less one: of bytes, and of time before and after the paces."""
    timed, weighed = [row for row in rows if "seconds" in row], [row for row in rows if "bytes" in row]
    paces = with_paces(timed)
    figures: dict[str, list[tuple[float, str]]] = {"bytes": [], "time as shipped": [], "time after calibration": []}
    for row in weighed:
        figures["bytes"].append((row["planned"]["bytes"] / row["bytes"]["total"] - 1, row["case"]))
        for part, name in PARTS.items():
            if row["bytes"]["most"].get(part):
                off = row["planned"]["parts"].get(name, 0.0) / row["bytes"]["most"][part] - 1
                figures.setdefault(f"bytes of {part}", []).append((off, row["case"]))
    for row in timed:
        for phase in ("step", *PHASES):
            measured, said = row["seconds"][phase], row["planned"]["seconds"][phase]
            if (phase != "step" and row["kind"] != "ppo") or measured <= 0 or said <= 0:
                continue
            suffix = "" if phase == "step" else f", ppo {phase}"
            figures.setdefault(f"time as shipped{suffix}", []).append((said / measured - 1, row["case"]))
            if row["case"] in paces:
                off = said * paces[row["case"]] / measured - 1
                figures.setdefault(f"time after calibration{suffix}", []).append((off, row["case"]))
    return {name: summary(items) for name, items in figures.items() if items}


def summary(items: list[tuple[float, str]]) -> dict[str, Any]:
    """Median and worst of the absolute errors, the signed median, and where the worst is."""
    worst = max(items, key=lambda item: abs(item[0]))
    return {
        "configurations": len(items),
        "median": round(statistics.median(abs(value) for value, _ in items), 4),
        "bias": round(statistics.median(value for value, _ in items), 4),
        "worst": round(worst[0], 4),
        "worst_case": worst[1],
    }


def shown(row: Mapping[str, Any]) -> str:
    """One line."""
    said = row["planned"]
    parts = [f"{row['case']:48}"]
    if "seconds" in row:
        pairs = [
            f"{phase} {1e3 * said['seconds'][phase]:.1f}/{1e3 * row['seconds'][phase]:.1f}"
            for phase in ("step", *PHASES)
            if row["seconds"][phase] > 0
        ]
        parts.append("ms planned/measured " + ", ".join(pairs[: None if row["kind"] == "ppo" else 1]))
    if "bytes" in row:
        total = row["bytes"]["total"]
        parts.append(f"MB {said['bytes'] / 1e6:.2f}/{total / 1e6:.2f} ({said['bytes'] / total - 1:+.1%})")
    return "  ".join([*parts, *([f"FAILED {row['failed']}"] if "failed" in row else [])])


def main() -> int:
    """Measure every case; 1 when a required figure is missed or a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose label contains this")
    parser.add_argument("--rows", type=Path, help="write every row here")
    parser.add_argument("--what", choices=("seconds", "bytes", "both"), default="both")
    parser.add_argument(
        "--again", type=Path, nargs="*", default=[], help="plan anew, but take what was measured from these rows"
    )
    options = parser.parse_args()
    machine = replace(probe_machine(), busy_cores=0.0)  # CPU seconds are planned, whoever else is at work
    chosen = [case for case in cases() if options.only in case.label]
    rows = []
    measured = ("seconds", "bytes") if options.what == "both" else (options.what,)
    earlier: dict[str, dict[str, Any]] = {}
    for row in (row for file in options.again for row in json.loads(file.read_text())):
        if "failed" not in row:
            earlier[row["case"]] = earlier.get(row["case"], {}) | row
    for case in chosen:
        row = earlier.get(case.label, {})
        if all(name in row for name in measured):
            rows.append(row | {"planned": planned(case, Machine(**row["machine"]))})
        else:
            rows.append(measure(case, machine, measured))
        print(shown(rows[-1]), flush=True)
        if options.rows:
            options.rows.write_text(json.dumps(rows))
    figures = errors(rows)
    for name, values in figures.items():
        print(f"{name:40} median {values['median']:.1%}  worst {values['worst']:+.1%}  ({values['worst_case']})")
    failed = [row["case"] for row in rows if "failed" in row]
    within = {
        "memory": abs(figures["bytes"]["worst"]) <= MEMORY_ALLOWED if "bytes" in figures else False,
        "time": abs(figures.get("time after calibration", {"worst": 1.0})["worst"]) <= TIME_ALLOWED,
    }
    print(
        json.dumps(
            {
                "configurations": len(rows),
                "failed": failed,
                "errors": figures,
                "within_required": within,
                "time_unit": "CPU seconds of one thread",
                "machine": {"name": machine.name, "cores": machine.cores, "load": os.getloadavg()[0]},
            }
        )
    )
    return 0 if all(within.values()) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
