"""A probe's edge: a few real steps of every stage in a directory of its own, and the pace that they show.

Nothing of the project's run is read or written but its inputs: no ledger, no run directory, no fingerprint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from charter.artifacts.group import failure_name
from charter.artifacts.job import write_job
from charter.artifacts.record import read_record
from charter.artifacts.stage_dir import METRICS
from charter.artifacts.stage_state import read_progress
from charter.errors import InfeasibleError
from charter.launch.job import module_of, preloaded_modules
from charter.launch.launcher import Launcher, StageStart
from charter.launch.local import local_launcher, stage_environment
from charter.launch.machine import frozen_values, processes_of
from charter.physics.fitted import Bundle, Pace, load, save, seconds_per_step
from charter.plan.knowledge import shipped
from charter.plan.machine import Machine, probe_machine
from charter.plan.plan import Plan
from charter.plan.probe import (
    FEWEST_ROUNDS,
    LayoutProbe,
    StageProbe,
    full_steps,
    micro_batches,
    not_probed,
    paces_of,
    planned_step_seconds,
    probe_steps,
    short_project,
    with_micro_batch,
)
from charter.plan.project_plan import CALIBRATION_FILE, plan_project
from charter.plan.stage_plan import StagePlan
from charter.run.graph import Pipeline, PlannedStage, build_pipeline, job_of
from charter.run.preflight import check_packages
from charter.run.served import accelerators_of_node, stage_pools, steps_at_once
from charter.spec.project import Project
from charter.tracking.base import read_metrics

POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a probe."""

    stage: str
    layout: str
    done: int
    total: int
    """Attempts in all, one per stage and layout."""


@dataclass(frozen=True, kw_only=True)
class ProbeReport:
    """Result of a probe."""

    stages: tuple[StageProbe, ...]
    paces: tuple[Pace, ...]
    calibration: Path


def probe_project(
    project: Project,
    root: Path,
    *,
    layouts: int,
    machine: Machine | None = None,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> ProbeReport:
    """Run the best `layouts` layouts of every stage for a few steps, and store the measured paces with the project.

    The estimate they are compared with uses the shipped constants, as `validate calibrate -C` does, so that probing
    twice changes nothing. Raises MissingExtraError without the engine, InfeasibleError when no stage could be probed.
    """
    check_packages()
    root = root.resolve()
    machine = replace(machine or probe_machine(), busy_cores=0.0)  # a pace stands for other programs too
    plan = plan_project(project, root, machine=machine, knowledge=shipped())
    with TemporaryDirectory(prefix="charter-probe-") as place:
        probes = _run(_bench(project, root, Path(place).resolve(), plan, machine, layouts), tell)
    if not any(probe.measured for probe in probes):
        reasons = "\n".join(f"  {probe.name}: {probe.why or _why(probe)}" for probe in probes)
        raise InfeasibleError(f"no stage of {project.name} could be probed on this machine\n{reasons}")
    path = root / CALIBRATION_FILE
    return ProbeReport(stages=probes, paces=_store(probes, path, project.name), calibration=path)


def _why(probe: StageProbe) -> str:
    return next((item.why for item in probe.layouts if item.why), "not measured")


def _store(probes: tuple[StageProbe, ...], path: Path, name: str) -> tuple[Pace, ...]:
    """Write the paces beside the constants and other paces that the file holds already."""
    stored = load(path) if path.is_file() else Bundle(quantities={}, source="", as_of="", sha256="")
    paces = paces_of(probes, stored.paces)
    today = date.today().isoformat()
    save(replace(stored, paces=paces, source=f"probe of {name}", as_of=today), path)
    return paces


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """A project and its cut copy, ready to be probed."""

    project: Project
    plan: Plan
    pipeline: Pipeline
    """Of the copy; its stage directories lie in the temporary directory."""
    place: Path
    tried: Mapping[str, tuple[int, ...]]
    """Micro-batches of every stage, the planned one first."""
    planned: Mapping[tuple[str, int], float]
    at_once: Mapping[str, int]
    """Steps of every stage that are under way together."""
    reasons: Mapping[str, str]
    """Why a stage is not measured; empty where it is."""

    def micros(self, name: str) -> tuple[int, ...]:
        """Layouts to run; one of a stage that is run only because others read from it."""
        return self.tried[name][:1] if self.reasons[name] else self.tried[name]

    def probe(self, name: str, measured: Sequence[LayoutProbe], why: str) -> StageProbe:
        """Return the probe of one stage."""
        stage_plan = _stage(self.plan, name)
        return StageProbe(
            name=name,
            kind=stage_plan.kind,
            accelerator=stage_plan.option.place.accelerator.name,
            full_steps=full_steps(self.project.pipeline[name], stage_plan),
            layouts=() if why else tuple(measured),
            why=why,
        )


def _bench(project: Project, root: Path, place: Path, plan: Plan, machine: Machine, layouts: int) -> _Bench:
    seconds = {name: planned_step_seconds(stage, plan, name) for name, stage in project.pipeline.items()}
    uncut = build_pipeline(short_project(project, root, steps={}), place)
    at_once = {name: steps_at_once(project, stage) for name, stage in uncut.stages.items()}
    steps = {name: max(probe_steps(planned), FEWEST_ROUNDS * at_once[name]) for name, planned in seconds.items()}
    pipeline = build_pipeline(short_project(project, root, steps=steps), place)
    tried = {name: micro_batches(project.pipeline[name], _stage(plan, name), layouts) for name in pipeline.stages}
    return _Bench(
        project=project,
        plan=plan,
        pipeline=pipeline,
        place=place,
        tried=tried,
        planned=_planned(project, root, plan, machine, tried),
        at_once=at_once,
        reasons={name: _reason(project, plan, pipeline, stage) for name, stage in pipeline.stages.items()},
    )


def _run(bench: _Bench, tell: Callable[[Progress], None]) -> tuple[StageProbe, ...]:
    """Every stage in order, as far as what it reads could be made."""
    wanted = _needed(bench.pipeline, {name for name, why in bench.reasons.items() if not why})
    total, done = sum(len(bench.micros(name)) for name in wanted), 0
    probes: list[StageProbe] = []
    failed: dict[str, str] = {}
    with _launcher(bench.pipeline, bench.place, wanted) as launcher:
        for name, stage in bench.pipeline.stages.items():
            lacking = next((item for item in stage.stage_inputs if item in failed), None)
            if name not in wanted or lacking is not None:
                failed[name] = bench.reasons[name] or f"needs {lacking}: {failed.get(lacking or '', '')}"
                probes.append(bench.probe(name, (), failed[name]))
                continue
            measured: list[LayoutProbe] = []
            for micro in bench.micros(name):
                label = _label(bench.project, name, micro)
                tell(Progress(stage=name, layout=label, done=done, total=total))
                directory = stage.directory if not measured else bench.place / "layouts" / f"{name}-{micro}"
                why = _attempt(launcher, bench.pipeline, stage, directory, micro)
                done += 1
                measured.append(_measured(directory, label, bench, name, micro, why))
                if len(measured) == 1 and why:
                    failed[name] = why
            probes.append(bench.probe(name, measured, bench.reasons[name]))
    tell(Progress(stage="", layout="", done=total, total=total))
    return tuple(probes)


def _stage(plan: Plan, name: str) -> StagePlan:
    planned = plan.stage(name)
    assert planned is not None
    return planned


def _planned(
    project: Project, root: Path, plan: Plan, machine: Machine, tried: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, int], float]:
    """Planned seconds of a step of every stage and layout: the plan itself, and one for every further layout."""
    seconds = {}
    for index in range(max(len(micros) for micros in tried.values())):
        chosen = {name: micros[index] for name, micros in tried.items() if index < len(micros)}
        given = {name: micro for name, micro in chosen.items() if micro}
        variant = plan
        if index:
            variant = plan_project(with_micro_batch(project, given), root, machine=machine, knowledge=shipped())
        for name, micro in chosen.items():
            seconds[name, micro] = planned_step_seconds(project.pipeline[name], variant, name)
    return seconds


def _reason(project: Project, plan: Plan, pipeline: Pipeline, stage: PlannedStage) -> str:
    why = not_probed(project.pipeline[stage.name], _stage(plan, stage.name), project)
    tokenizers = [item.name for item in stage.inputs.get("tokenizer", ())]
    problems = pipeline.inputs.problems_of([*stage.outside_inputs, *tokenizers])
    return why or (problems[0].message if problems else "")


def _needed(pipeline: Pipeline, wanted: set[str]) -> set[str]:
    """The stages to be measured and what they read."""
    names = set(wanted)
    for name in reversed(tuple(pipeline.stages)):
        if name in names:
            names.update(pipeline.stages[name].stage_inputs)
    return names


@contextmanager
def _launcher(pipeline: Pipeline, place: Path, wanted: set[str]) -> Iterator[Launcher]:
    specs = [pipeline.stages[name].spec for name in sorted(wanted)]
    modules = preloaded_modules(module_of(spec) for spec in specs)
    threads = max((int(frozen_values(pipeline.project, spec)["threads"]) for spec in specs), default=1)
    launcher = local_launcher(
        preload=modules, server_log=place / "stage_server.log", environment=stage_environment(threads=threads)
    )
    try:
        yield launcher
    finally:
        launcher.close()


def _attempt(launcher: Launcher, pipeline: Pipeline, stage: PlannedStage, directory: Path, micro_batch: int) -> str:
    """Run one stage process to its end; why it failed, empty when it is done."""
    directory.mkdir(parents=True, exist_ok=True)
    frozen = dict(frozen_values(pipeline.project, stage.spec))
    if micro_batch:
        frozen["micro_batch"] = micro_batch
    write_job(directory, job_of(stage, pipeline.project, frozen))
    module = module_of(stage.spec)
    processes = processes_of(frozen)
    pools = stage_pools(pipeline.project, stage)
    handle = launcher.start(
        StageStart(
            stage=stage.name,
            module=module,
            stage_dir=directory,
            attempt=1,
            processes=processes,
            pools=pools,
            accelerators=accelerators_of_node(pipeline.project, stage) if pools else 0,
        )
    )
    while (code := handle.poll()) is None:
        time.sleep(POLL_SECONDS)
    if code == 0 and read_record(directory) is not None:
        return ""
    failure = directory / failure_name(handle.failed_rank)
    report = failure.read_text(encoding="utf-8") if failure.is_file() else ""
    return _message(report) or f"its process ended with {code}"


def _message(failure: str) -> str:
    try:
        return str(json.loads(failure).get("message", "")).splitlines()[0]
    except (ValueError, IndexError, AttributeError):
        return ""


def _measured(directory: Path, label: str, bench: _Bench, name: str, micro: int, why: str) -> LayoutProbe:
    points = [(point.step, point.time) for point in read_metrics(directory / METRICS)]
    timed = [(step, clock) for step, clock in points if clock is not None]
    pace, planned = seconds_per_step(timed, at_once=bench.at_once[name]), bench.planned[name, micro]
    if pace is None:
        reached = read_progress(directory).get("step") or len(points)
        why = why or f"{reached} steps are too few to measure"
        return LayoutProbe(label=label, micro_batch=micro, planned_seconds=planned, measured_seconds=None, why=why)
    seconds, steps = pace
    return LayoutProbe(
        label=label, micro_batch=micro, planned_seconds=planned, measured_seconds=seconds, steps=steps, why=why
    )


def _label(project: Project, name: str, micro: int) -> str:
    stage = project.pipeline[name]
    if not micro:
        return "as it is"
    rest = -(-int(getattr(stage, "global_batch", micro)) // micro)
    return f"mb{micro}" + (f" ga{rest}" if rest > 1 else "")
