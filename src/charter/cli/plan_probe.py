"""`charter plan --probe N`: a few real steps of every stage on this machine; what they say beside the plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from charter.pipeline.probe import ProbeReport
    from charter.spec.project import Project


def probe_first(
    project: "Project", root: Path, layouts: int | None, *, calibration: Path | None, as_json: bool
) -> dict[str, object]:
    """Probe where it is asked for, before the plan is made; what the plan's JSON gains by it."""
    from charter.errors import UsageError

    if layouts is None:
        return {}
    if calibration is not None:
        raise UsageError("--probe writes the project's calibration.json, which --calibration would replace; give one")
    report = run_probe(project, root, layouts)
    if not as_json:
        print_probe(report)
    return {"probe": probe_json(report)}


def run_probe(project: "Project", root: Path, layouts: int) -> "ProbeReport":
    """Probe with a progress bar on stderr."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from charter.errors import UsageError
    from charter.pipeline.probe import Progress as Step
    from charter.pipeline.probe import probe_project

    if layouts < 1:
        raise UsageError(f"--probe {layouts}: give how many layouts of each stage are run, 1 or more")
    columns = (TextColumn("probing {task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(step: Step) -> None:
            bar.update(task, description=f"{step.stage} {step.layout}", completed=step.done, total=step.total)

        return probe_project(project, root, layouts=layouts, tell=tell)


def probe_json(report: "ProbeReport") -> dict[str, Any]:
    """A probe as JSON, beside the plan."""
    return {
        "calibration": str(report.calibration),
        "paces": [pace.to_json() for pace in report.paces],
        "stages": [
            {
                "name": probe.name,
                "kind": probe.kind,
                "full_steps": probe.full_steps,
                "why": probe.why or None,
                "fastest": probe.measured[0].label if probe.measured else None,
                "layouts": [
                    {
                        "layout": item.label,
                        "micro_batch": item.micro_batch or None,
                        "planned_seconds_per_step": item.planned_seconds,
                        "measured_seconds_per_step": item.measured_seconds,
                        "steps": item.steps,
                        "why": item.why or None,
                    }
                    for item in probe.layouts
                ],
            }
            for probe in report.stages
        ],
    }


def print_probe(report: "ProbeReport") -> None:
    """Planned beside measured for every layout, fastest first; then what was not measured, and why."""
    from charter.cli.tables import console, plain_table

    out = console()
    seconds = ("planned s/step", "right"), ("measured s/step", "right"), ("measured / planned", "right")
    table = plain_table(("stage", "left"), ("layout", "left"), *seconds, ("", "left"))
    for probe in report.stages:
        for rank, item in enumerate(probe.measured):
            ratio = (item.measured_seconds or 0.0) / item.planned_seconds if item.planned_seconds else None
            table.add_row(
                probe.name if rank == 0 else "",
                item.label,
                f"{item.planned_seconds:.4g}",
                f"{item.measured_seconds:.4g}",
                "-" if ratio is None else f"{ratio:.2f}",
                "planned" if item is probe.layouts[0] else "faster" if item in probe.faster else "",
            )
    out.print(table)
    for probe in report.stages:
        for item in probe.faster[:1]:
            asked = f"pipeline.{probe.name}.resources.micro_batch: {probe.sequences(item)}"
            out.print(f"faster: {probe.name} {item.label}; a run takes it where charter.yaml says {asked}")
    for probe in report.stages:
        for label, why in [("", probe.why), *((f" {item.label}", item.why) for item in probe.layouts)]:
            if why:
                out.print(f"not measured: {probe.name}{label}: {why}")
    out.print(
        f"written: {report.calibration} ({len(report.paces)} paces); the plan below uses it, and so will later ones\n"
    )
