"""SkyPilot: a header and one task per stage in the order in which they run, on any of the places of the file."""

import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from charter.artifacts import durable
from charter.catalog import accelerators
from charter.catalog.accelerators import CPU
from charter.catalog.price_book import PriceBook
from charter.errors import MissingExtraError, StageError, UsageError
from charter.launch.job import PlainDumper, safe_name, secret_values, secrets_of
from charter.launch.machine import asked_memory
from charter.launch.rendered.task import RenderedTask
from charter.launch.tags import google_labels, kubernetes_labels
from charter.spec.project import Project
from charter.spec.stage_base import Stage
from charter.units import GIB

CLOUDS = frozenset({"aws", "azure", "gcp", "kubernetes", "lambda", "nebius", "runpod", "slurm", "ssh", "verda"})
"""What `infra` may be for SkyPilot 0.14.1, of the places that Charter knows too."""

SKY_ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {
        "V100-SXM2-16GB": "V100",
        "V100-SXM2-32GB": "V100-32GB",
        "P100-SXM2-16GB": "P100",
        "A100-SXM-40GB": "A100",
        "A100-PCIe-40GB": "A100",
        "A100-SXM-80GB": "A100-80GB",
        "A100-PCIe-80GB": "A100-80GB",
        "H100-SXM-80GB": "H100",
        "H100-PCIe-80GB": "H100",
        "H100-NVL-94GB": "H100",
        "H200-SXM-141GB": "H200",
        "B200-SXM-180GB": "B200",
        "B300-SXM-288GB": "B300",
        "GH200-96GB": "GH200",
        "GB200-NVL72-186GB": "GB200",
        "MI300X-192GB": "MI300X",
        "TPU-v5e": "tpu-v5litepod",
        "TPU-v5p": "tpu-v5p",
        "TPU-v6e": "tpu-v6e",
        "TPU-v4": "tpu-v4",
        "TPU-v3": "tpu-v3",
    }
)
"""Catalog name -> SkyPilot's, where they differ; SkyPilot does not tell the boards of one chip apart."""


def sky_accelerator(name: str) -> str:
    """SkyPilot's name of an accelerator.

    >>> sky_accelerator("H100-SXM-80GB"), sky_accelerator("A100-80GB"), sky_accelerator("L4")
    ('H100', 'A100-80GB', 'L4')
    """
    full_name = accelerators.get(name).name
    return SKY_ACCELERATORS.get(full_name, full_name)


def sky_cloud(infra: str) -> str:
    """An `infra` that SkyPilot knows, which is most of those that Charter knows."""
    if infra not in CLOUDS:
        raise UsageError(
            f"SkyPilot does not know the place {infra!r}; of those that Charter plans with it knows "
            f"{', '.join(sorted(CLOUDS))}\n  leave it out of resources.any_of, or run there with charter run"
        )
    return infra


RECOVERY = "EAGER_NEXT_REGION"
"""After a preemption look in the next region at once; SkyPilot's default, written out."""
INTERRUPTED_EXIT = 6
"""`charter run` was stopped at a safe point: to be started again."""
RESTARTS_ON_ERRORS = 0
"""Charter restarts a stage itself, and knows when that is of no use."""
MARKETS: Mapping[object, tuple[bool, ...]] = {False: (False,), True: (True,), "auto": (True, False)}


def _resources(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return the candidates of a stage, in the order of the file; what they share stands once."""
    stage = project.pipeline[task.stage]
    candidates = _candidates(project, stage)
    recovery = {
        "strategy": RECOVERY,
        "max_restarts_on_errors": RESTARTS_ON_ERRORS,
        "recover_on_exit_codes": [INTERRUPTED_EXIT],
    }
    # Labels are in the spelling that all clouds take, since the cloud is not known yet.
    labels = google_labels(kubernetes_labels(task.tags, prefix=""))
    shared: dict[str, Any] = {**_host(project, stage), "job_recovery": recovery, "labels": labels}
    if len(candidates) == 1:
        return {**candidates[0], **shared}
    return {**shared, "any_of": candidates}


def _candidates(project: Project, stage: Stage) -> list[dict[str, Any]]:
    """Return every place with every accelerator that the file lets it have, in each market, each once."""
    resources, own = project.resources, stage.resources
    spot = resources.use_spot if own is None or own.use_spot is None else own.use_spot
    candidates = []
    for infra, kinds in _places(project):
        named = (own.accelerators,) if own and own.accelerators else kinds or resources.accelerators or (CPU,)
        for kind, use_spot in product(named, MARKETS[spot]):
            name, _, count = kind.partition(":")
            devices = {} if name == CPU else {"accelerators": f"{sky_accelerator(name)}:{count or 1}"}
            candidate = {**({"infra": infra} if infra else {}), **devices, "use_spot": use_spot}
            if candidate not in candidates:
                candidates.append(candidate)
    return candidates


def _places(project: Project) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Yield where the file lets the project run, and with which accelerators there; an empty place is anywhere."""
    resources = project.resources
    rows = [
        (place.infra, place.region, place.accelerators)
        for place in resources.any_of
        if not resources.clouds or place.infra in resources.clouds
    ]
    if not rows:
        own = resources.infra if resources.infra != "skypilot" else None
        rows = [(cloud, None, ()) for cloud in resources.clouds or ((own,) if own else ())]
    if not rows:
        yield "", ()
    for infra, region, kinds in rows:
        for each in (region,) if region else _regions(project, infra):
            yield f"{sky_cloud(infra)}/{each}" if each else sky_cloud(infra), kinds


def _regions(project: Project, cloud: str) -> tuple[str | None, ...]:
    """Return those of the file that the price book knows of a cloud; any where there are none."""
    sold = {offer.region for offer in PriceBook.bundled().offers(cloud=cloud)}
    return tuple(region for region in project.resources.regions if region in sold) or (None,)


def _host(project: Project, stage: Stage) -> dict[str, Any]:
    own = stage.resources.cpus if stage.resources else None
    cpus, memory = own or project.resources.cpus, asked_memory(project, stage)
    cost = project.resources.max_hourly_cost
    return {
        **({"cpus": f"{cpus}+"} if cpus else {}),
        **({"memory": f"{memory / GIB:g}+"} if memory else {}),
        **({"max_hourly_cost": cost} if cost else {}),
    }


PIPELINE, SUBMITTED = "pipeline.yaml", "skypilot.yaml"
"""The text as people take it, and as Charter hands it over itself, in the directory `run`."""
RESULTS = "/charter-results"
"""Where the bucket is mounted on every machine."""
_HEADER = """\
# A SkyPilot pipeline: submit it with  {command}
# Every stage is a task on a machine of its own. It brings back what earlier stages have put into the second place, runs
# its own stage there, and goes on from the last checkpoint when it is started again after a preemption.
"""
_RUN = """\
set -e
charter artifacts checkpoints restore{place}
exec {command}{place}
"""


class _Dumper(PlainDumper):
    """Scripts line by line."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def pipeline(project: Project, tasks: Sequence[RenderedTask]) -> dict[str, str]:
    """Return the pipeline as the one text that `sky jobs launch` takes."""
    documents = [{"name": pipeline_name(project)}, *(sky_task(project, task) for task in tasks)]
    if not project.launch.skypilot.managed and len(tasks) > 1:
        raise UsageError(
            f"sky launch takes one task, and this is a pipeline of {len(tasks)}\n"
            "  set launch.skypilot.managed: true (sky jobs launch), or name one stage"
        )
    header = _HEADER.format(command=" ".join(launch_command(project, PIPELINE)))
    return {PIPELINE: header + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)}


def sky_task(project: Project, task: RenderedTask) -> dict[str, Any]:
    """Return one stage's task. Secrets are named and have no value: the command asks for them where it is given."""
    settings = project.launch.skypilot
    bucket, artifacts = settings.bucket, project.storage.artifacts
    if not bucket and not (artifacts and "://" in artifacts):
        raise UsageError(
            "a machine that SkyPilot rents takes its disk along when it goes\n"
            "  set launch.skypilot.bucket (s3://bucket/path), or storage.artifacts to a bucket"
        )
    if not settings.setup:
        raise UsageError(
            "a rented machine starts without Charter, which no package index has yet\n"
            '  set launch.skypilot.setup to what installs it there, like  pip install "./WHEEL[run]"  with the wheel '
            "in the project's directory, which SkyPilot copies"
        )
    place = f" --set storage.artifacts={RESULTS}" if bucket else ""
    secrets = {variable: None for variable, _ in secrets_of(project)}
    mounts = {RESULTS: {"source": bucket, "mode": "MOUNT_CACHED"}} if bucket else {}
    return {
        "name": task_name(task.stage),
        "workdir": ".",
        "num_nodes": 1,
        "resources": _resources(project, task),
        **({"envs": dict(task.environment)} if task.environment else {}),
        **({"secrets": secrets} if secrets else {}),
        **({"file_mounts": mounts} if mounts else {}),
        "setup": settings.setup,
        "run": _RUN.format(command=shlex.join(task.command("--on", "local")), place=place),
    }


def launch_command(project: Project, file: str) -> list[str]:
    """Return the command that submits the text; secrets by name, taken from the environment of whoever runs it."""
    managed = project.launch.skypilot.managed
    secrets = [word for variable, _ in secrets_of(project) for word in ("--secret", variable)]
    detach = ["--async"] if managed else ["--async", "--cluster", pipeline_name(project), "--down"]
    return ["sky", *(["jobs"] if managed else []), "launch", "--yes", *detach, *secrets, file]


def pipeline_name(project: Project) -> str:
    """Return the pipeline's name in SkyPilot."""
    return safe_name(f"charter-{project.name}", longest=40)


def task_name(stage: str) -> str:
    """Return the name of a stage's task.

    >>> task_name("sl_cai")
    'sl-cai'
    """
    return safe_name(stage, longest=40)


def submit(project: Project, root: Path, texts: Mapping[str, str]) -> str:
    """Write the pipeline beside the run and launch it; returns what `sky` printed."""
    if shutil.which("sky") is None:
        raise MissingExtraError(
            "the command sky is not on the path here\n"
            '  pip install "skypilot[aws,gcp,lambda]" in an environment of its own; or --print, and submit it'
        )
    secret_values(dict(secrets_of(project)))
    file = root / "run" / SUBMITTED
    durable.make_dir(file.parent)
    durable.write_file(file, texts[PIPELINE])
    done = subprocess.run(launch_command(project, str(file)), cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        answer = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise StageError(
            f"sky did not take the pipeline (exit code {done.returncode}):\n  {answer}\n  it lies in {file}"
        )
    return done.stdout
