"""Shows what a run would send to a scheduler, sends the supervisor itself, and asks SkyPilot about a pipeline, dry."""

import csv
import io
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from charter.artifacts import durable
from charter.catalog.accelerators import get
from charter.catalog.offer import PART_ONLY, Market, Offer
from charter.catalog.price_book import PriceBook
from charter.errors import InfeasibleError, StageError, UsageError
from charter.launch import rendered
from charter.launch.job import StageJob, module_of
from charter.launch.launcher import RUNS, launcher_name, open_scheduler
from charter.launch.machine import asked_layout
from charter.launch.rendered import TARGETS, chosen, printed, texts_for
from charter.launch.rendered.skypilot import CLOUDS, PIPELINE, sky_accelerator, task_name
from charter.launch.sent_supervisor import send_supervisor
from charter.launch.servers import pools_of
from charter.launch.submission import SUPERVISOR, TOKEN, preview_job, run_words, supervisor_job
from charter.plan.plan import Plan
from charter.plan.project_plan import plan_project, price_book
from charter.run.graph import build_pipeline, with_project
from charter.run.planned import keep_plan, plan_of_run, resolved_project
from charter.run.preflight import check_nodes, check_one_kind
from charter.run.runner import RunOptions, find_work, plan_work, refuse_overflow
from charter.run.served import stage_pools
from charter.spec.execution import CLIENT, TRAINER, Execution
from charter.spec.project import Project
from charter.spec.stage import TRAINS
from charter.units import GIB


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Jobs that would be sent to a scheduler, by the plan."""

    texts: str
    """Scripts and manifests as the scheduler gets them, without values of secrets."""
    jobs: tuple[Mapping[str, Any], ...]
    """One entry per stage and role, and one for the supervisor."""
    problem: str = ""
    """Why there is no plan, so that the file alone decides; empty where there is one."""
    refused: tuple[str, ...] = ()
    """Why `charter submit` and `charter run` would not send some of them as they are shown."""

    def to_json(self) -> dict[str, Any]:
        """The object that `charter submit --print --json` prints."""
        return {"jobs": list(self.jobs), "problem": self.problem, "refused": list(self.refused)}


def preview(
    project: Project,
    root: Path,
    wanted: str | None,
    stages: Sequence[str],
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    anyway: bool = False,
    replan: bool = False,
) -> Preview:
    """Return what would be sent for all stages, or for these; needs no scheduler and changes nothing.

    Variables that hold secrets are shown without their values, which only a job that is sent has.
    Raises the plan's own error when a stage cannot fit, unless `anyway`.
    """
    name = scheduler_of(project, wanted)
    project = replace(project, launch=project.launch.as_shown())
    check_stages(project, stages)
    pipeline = build_pipeline(project, root)
    planned = plan_of_run(pipeline, replan=replan)
    if planned.overflow is not None and not anyway and planned.overflow.stage in (stages or pipeline.stages):
        raise planned.overflow
    project, executions = resolved_project(pipeline, planned, name)
    pipeline = with_project(pipeline, project)
    jobs = {
        stage: preview_job(
            project,
            stage,
            pipeline.stages[stage].directory,
            scheduler=name,
            module=module_of(project.pipeline[stage]),
            pools=stage_pools(project, pipeline.stages[stage]),
        )
        for stage in stages or pipeline.stages
    }
    entries = [
        entry for stage, job in jobs.items() for entry in _entries(project, stage, job, executions.get(stage), name)
    ]
    beside = {stage: planned.executions[stage] for stage in jobs if stage in planned.executions.keys() - executions}
    entries += [
        entry for stage, here in beside.items() for entry in _servers_beside(stage, jobs[stage], here, launcher=name)
    ]
    words = run_words(overrides, anyway=anyway)
    own = supervisor_job(project, path or root, root=root, scheduler=name, only=stages, words=words, token=TOKEN)
    entries.append(_entry(own, None, SUPERVISOR, name, market="owned"))
    specs = [(stage, project.pipeline[stage]) for stage in jobs]
    refused = [str(one) for stage, spec in specs for one in check_nodes(project, stage, spec)]
    refused += [str(one) for stage, spec in specs for one in check_one_kind(stage, spec, executions.get(stage))]
    texts = _texts(project, name, stages, jobs, words=words)
    return Preview(texts=texts, jobs=tuple(entries), problem=planned.problem, refused=tuple(refused))


def _texts(
    project: Project, name: str, stages: Sequence[str], jobs: Mapping[str, StageJob], *, words: tuple[str, ...]
) -> str:
    if target := TARGETS.get(name):
        texts = texts_for(project, name, stages, words=words)
        # What Charter sends itself is one file, and is shown as it is sent: it begins with the command that sends it.
        return "".join(texts.values()) if target.submit else printed(texts)
    scheduler = open_scheduler(project, name)
    try:
        return printed({stage: scheduler.render(job) for stage, job in jobs.items()})
    finally:
        scheduler.close()


def _entries(
    project: Project, stage: str, job: StageJob, execution: Execution | None, launcher: str
) -> Iterator[dict[str, Any]]:
    """One entry for each role of a stage; all roles of a stage are one job, whose command starts them."""
    if execution is None:
        role = TRAINER if job.kind in TRAINS else CLIENT
        layout = asked_layout(project, project.pipeline[stage], gpus=job.accelerators_per_node)
        market = "spot" if job.use_spot else "owned"
        yield {**_entry(job, stage, role, launcher, market=market), "layout": layout}
        return
    for name, part in execution.roles.items():
        entry = _entry(job, stage, name, launcher, market=execution.market)
        yield {
            **entry,
            "nodes": part.nodes,
            "accelerator": part.accelerator,
            "accelerators_per_node": part.accelerators_per_node,
            "ranks": part.layout.ranks,
            "layout": asdict(part.layout),
            "shares": part.shares or None,
        }


def _servers_beside(stage: str, job: StageJob, planned: Execution, *, launcher: str) -> Iterator[dict[str, Any]]:
    """One entry for each role that servers on processors play: the file describes them, whatever the plan says."""
    sent = {pool.model: pool for pool in pools_of(str(dict(pairwise(job.command)).get("--pools", "[]")))}
    for name, role in planned.pools.items():
        for model in role.models:
            pool = sent[model]
            layout = replace(role.layout, data=pool.replicas, tensor=pool.tensor, micro_batch=pool.max_num_seqs or 0)
            entry = _entry(job, stage, name, launcher, market="owned")
            yield {**entry, "ranks": layout.ranks, "layout": asdict(layout)}


def _entry(job: StageJob, stage: str | None, role: str, launcher: str, *, market: str) -> dict[str, Any]:
    return {
        "stage": stage,
        "role": role,
        "job": job.name,
        "launcher": launcher,
        "nodes": job.nodes,
        "accelerator": job.accelerator,
        "accelerators_per_node": job.accelerators_per_node,
        "memory_bytes_per_node": job.memory_bytes_per_node,
        "market": market,
        "ranks": job.nodes * job.processes_per_node * job.shards,
        "layout": {},
        "command": list(job.command),
        "reuses": None,
        "shares": None,
    }


def submit_supervisor(
    project: Project,
    root: Path,
    wanted: str | None,
    stages: Sequence[str],
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    anyway: bool = False,
    replan: bool = False,
) -> tuple[str, str]:
    """Send the supervisor to a scheduler, which runs the stages from there; its name and the number of its job.

    It reads the project from `path` (a directory, or another file than its charter.yaml), with the same `overrides`.
    Raises the plan's own error when a stage cannot fit, unless `anyway`.
    """
    name = scheduler_of(project, wanted)
    check_stages(project, stages)
    target = TARGETS.get(name)
    if target and not target.submit:
        raise UsageError(
            f"Charter does not submit to {target.title} itself: `charter submit --on {name} --print` makes the texts"
        )
    options = RunOptions(only=tuple(stages), launcher=wanted, anyway=anyway, replan=replan)
    ready = plan_work(find_work(project, root, options, keep_hashes=True), options)
    if ready.planned.overflow is not None:
        refuse_overflow(ready.planned.overflow, ready.work, options)
    keep_plan(ready.planned, root.resolve())
    project = ready.work.pipeline.project
    words = run_words(overrides, anyway=anyway)
    if target and target.submit:
        return name, target.submit(project, root, texts_for(project, name, stages, words=words))
    scheduler = open_scheduler(project, name)
    try:
        return name, send_supervisor(project, path or root, root, scheduler, only=stages, words=words)
    finally:
        scheduler.close()


def skypilot_choice(
    project: Project, root: Path, wanted: str | None, stages: Sequence[str], *, python: Path
) -> dict[str, Any]:
    """Return what SkyPilot's own optimizer chooses on the plan's times and the prices here; no cloud is asked."""
    if (name := scheduler_of(project, wanted)) != "skypilot":
        raise UsageError(f"--optimizer is SkyPilot's: give --on skypilot, not {name}")
    check_stages(project, stages)
    with TemporaryDirectory(prefix="charter-skypilot-") as place:
        write_dry_run(project, plan_project(project, root), price_book(root, None), Path(place), stages)
        target: Literal["cost", "time"] = "time" if project.objective == "fastest" else "cost"
        return run_optimizer(Path(place), python, target=target)


def scheduler_of(project: Project, wanted: str | None) -> str:
    """Return the scheduler that something is submitted to; a UsageError where that is this machine."""
    name = launcher_name(project, wanted)
    if name not in (*RUNS, *TARGETS):
        raise UsageError(
            "nothing is submitted to this machine: say where with --on, or with resources.infra in charter.yaml\n"
            f"  schedulers: {', '.join((*RUNS, *TARGETS))}; `charter run` runs the project here"
        )
    return name


def check_stages(project: Project, stages: Sequence[str]) -> None:
    """Raise where a stage is named that is not in the file."""
    for stage in stages:
        if stage not in project.pipeline:
            raise UsageError(f"no stage is called {stage!r}; the stages are {', '.join(project.pipeline)}")


# -------- A pipeline before SkyPilot's own optimizer, with our prices and times.

CATALOG_VERSION = "v8"
"""Of the catalogs that SkyPilot 0.14.1 reads."""
COLUMNS = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "vCPUs",
    "MemoryGiB",
    "Price",
    "SpotPrice",
    "Region",
    "AvailabilityZone",
    "GpuInfo",
)
SPELLED = {"lambda": "Lambda", "aws": "AWS", "gcp": "GCP", "runpod": "RunPod"}
"""Names in `accelerators.csv` that are not merely capitalised."""
ZONED = frozenset({"aws", "gcp"})
"""Clouds whose machines stand in zones; our offers are of regions, so one zone stands for all."""


def catalog_files(book: PriceBook) -> dict[str, str]:
    """File name -> text, for every cloud that the book has offers of."""
    files: dict[str, str] = {}
    sold_by: dict[str, set[str]] = {}
    for cloud in sorted(CLOUDS):
        offers = [offer for offer in book.offers(cloud=cloud) if _is_whole(offer)]
        rows = [row for offer in offers for row in _rows(offer)]
        if rows:
            files[f"{cloud}/vms.csv"] = _text(COLUMNS, rows)
            for offer in offers:
                sold_by.setdefault(sky_accelerator(offer.accelerator), set()).add(SPELLED.get(cloud, cloud.title()))
    names = [{"AcceleratorName": name, "Clouds": str(sorted(sold_by[name]))} for name in sorted(sold_by)]
    files["common/accelerators.csv"] = _text(("AcceleratorName", "Clouds"), names)
    return files


def _is_whole(offer: Offer) -> bool:
    rents = offer.usd_per_hour(Market.ON_DEMAND), offer.usd_per_hour(Market.SPOT)
    return PART_ONLY not in offer.instance_type and any(price is not None for price in rents)


def _rows(offer: Offer) -> list[dict[str, Any]]:
    """One row; on GCP two, where accelerators have one without a machine: the machine's has the price of both."""
    accelerator = {
        "AcceleratorName": sky_accelerator(offer.accelerator),
        "AcceleratorCount": float(offer.count),
        "GpuInfo": _gpu_info(offer),
    }
    machine = {
        "InstanceType": offer.instance_type,
        "vCPUs": offer.vcpus,
        "MemoryGiB": None if offer.host_memory_bytes is None else round(offer.host_memory_bytes / GIB, 2),
        "Price": offer.usd_per_hour(Market.ON_DEMAND),
        "SpotPrice": offer.usd_per_hour(Market.SPOT),
    }
    where = {"Region": offer.region, "AvailabilityZone": f"{offer.region}-a" if offer.cloud in ZONED else None}
    if offer.cloud == "gcp":
        free = {"Price": 0.0, "SpotPrice": 0.0}
        return [{**where, **machine}, {**where, **accelerator, **free}]
    return [{**where, **machine, **accelerator}]


def _gpu_info(offer: Offer) -> str:
    accelerator = get(offer.accelerator)
    memory_mib = int(accelerator.memory_bytes / 1024**2)
    gpu = {
        "Name": sky_accelerator(offer.accelerator),
        "Manufacturer": accelerator.vendor,
        "Count": float(offer.count),
        "MemoryInfo": {"SizeInMiB": memory_mib},
    }
    return str({"Gpus": [gpu], "TotalGpuMemoryInMiB": memory_mib * offer.count})


def _text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


SECONDS_PER_HOUR = 3600


def time_table(project: Project, plan: Plan, stages: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per stage, cloud, accelerators of a node and market: the median seconds, restarts and waits included.

    Of options that differ in layout only the fastest stands for all; those of several nodes are left out, since tasks
    have one by what their target refuses. True as far as the plan's estimates are.
    """
    rows = []
    for name in chosen(project, stages):
        planned = plan.stage(name)
        fastest: dict[tuple[str, str, int, bool], float] = {}
        for option in planned.options if planned is not None else ():
            place, market = option.place, option.price.market
            if option.num_nodes > 1 or place.infra not in CLOUDS or place.is_cpu:
                continue
            key = (place.infra, sky_accelerator(place.accelerator.name), place.per_node, market == "spot")
            fastest[key] = min(fastest.get(key, float("inf")), option.seconds.p50)
        if not fastest:
            raise InfeasibleError(
                f"stage {name} fits on no single machine of a cloud that SkyPilot knows\n"
                "  charter plan --explain says what it needs; add larger machines to resources, or use slurm or ray"
            )
        rows += [
            {
                "task": task_name(name),
                "infra": infra,
                "accelerator": accelerator,
                "count": count,
                "use_spot": use_spot,
                "seconds": round(seconds),
            }
            for (infra, accelerator, count, use_spot), seconds in sorted(fastest.items())
        ]
    return rows


TIMES, HOME = "times.json", "home"
SCRIPT = Path(rendered.__file__).with_name("skypilot_script.py")
SECONDS = 300.0


def write_dry_run(project: Project, plan: Plan, book: PriceBook, directory: Path, stages: Sequence[str] = ()) -> None:
    """Write the pipeline, the table of times, and the catalog where SkyPilot looks for it below `home`."""
    catalog = directory / HOME / ".sky" / "catalogs" / CATALOG_VERSION
    for name, text in catalog_files(book).items():
        durable.make_dir((catalog / name).parent)
        durable.write_file(catalog / name, text)
    durable.write_file(directory / PIPELINE, texts_for(project, "skypilot", stages)[PIPELINE])
    durable.write_json(directory / TIMES, time_table(project, plan, stages))


def run_optimizer(directory: Path, python: Path, *, target: Literal["cost", "time"]) -> dict[str, Any]:
    """Return what SkyPilot's own optimizer takes for every task; `python` is one that has SkyPilot."""
    if not python.is_file():
        raise UsageError(f"{python} is no file: name a Python that has SkyPilot (pip install skypilot)")
    done = subprocess.run(
        [str(python.absolute()), str(SCRIPT), target],
        cwd=directory,
        env={"HOME": str(directory / HOME), "PATH": "/usr/bin:/bin", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != 0:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise StageError(f"SkyPilot's optimizer did not take the pipeline (exit code {done.returncode}):\n  {said}")
    choices: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return choices
