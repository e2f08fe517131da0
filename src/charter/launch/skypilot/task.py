"""A pipeline as SkyPilot's YAML: a header and one task per stage, in the order in which they run. Pure."""

import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from charter import __version__
from charter.artifacts import durable
from charter.catalog import accelerators
from charter.catalog.accelerators import CPU
from charter.catalog.price_book import PriceBook
from charter.errors import MissingExtraError, StageError, UsageError
from charter.launch.job import safe_name
from charter.launch.secret_values import secret_values
from charter.launch.submission import secrets_of
from charter.launch.tags import google_labels, kubernetes_labels, tags_of
from charter.spec.graph import execution_order
from charter.spec.project import Project
from charter.spec.stage import Stage
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
    known = accelerators.get(name).name
    return SKY_ACCELERATORS.get(known, known)


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


def sky_resources(project: Project, name: str) -> dict[str, Any]:
    """The candidates of a stage, in the order of the file; what they share stands once."""
    stage = project.pipeline[name]
    candidates = list(_candidates(project, stage))
    shared: dict[str, Any] = {**_host(project, stage), **_recovery(), "labels": _labels(project, name)}
    if len(candidates) == 1:
        return {**candidates[0], **shared}
    return {**shared, "any_of": candidates}


def check_nodes(project: Project, name: str) -> None:
    """Refuse a stage of several nodes: they would need a disk that all of them see."""
    stage = project.pipeline[name]
    own = stage.resources.num_nodes if stage.resources else None
    nodes = own or project.resources.num_nodes or 1
    if nodes > 1:
        raise UsageError(
            f"stage {name} asks for {nodes} nodes; on SkyPilot a stage runs on one: machines that it rents share "
            "no disk, which the processes of a stage need\n"
            "  set num_nodes: 1, or run on slurm, ray or kubernetes, which give the nodes one file system"
        )


def _candidates(project: Project, stage: Stage) -> Iterable[dict[str, Any]]:
    asked = project.resources
    own = stage.resources.accelerators if stage.resources else None
    own_spot = stage.resources.use_spot if stage.resources else None
    spot = asked.use_spot if own_spot is None else own_spot
    seen = set()
    for infra, kinds in _places(project):
        named = (own,) if own else kinds or asked.accelerators or (CPU,)
        for kind, use_spot in product(named, MARKETS[spot]):
            found = {**infra, **_accelerator(kind), "use_spot": use_spot}
            if (key := tuple(found.items())) not in seen:
                seen.add(key)
                yield found


def _places(project: Project) -> Iterable[tuple[dict[str, str], tuple[str, ...]]]:
    """Where the file lets the project run, and with which accelerators there; an empty place is anywhere."""
    asked = project.resources
    places = [place for place in asked.any_of if not asked.clouds or place.infra in asked.clouds]
    clouds = asked.clouds or ((asked.infra,) if asked.infra and asked.infra != "skypilot" else ())
    if not places and not clouds:
        yield {}, ()
    for place in places:
        for region in (place.region,) if place.region else _regions(project, place.infra):
            yield _infra(place.infra, region), place.accelerators
    for cloud in clouds if not places else ():
        for region in _regions(project, cloud):
            yield _infra(cloud, region), ()


def _regions(project: Project, cloud: str) -> tuple[str | None, ...]:
    """Those of the file that the price book knows of a cloud; any where there are none."""
    known = {offer.region for offer in PriceBook.bundled().offers(cloud=cloud)}
    return tuple(region for region in project.resources.regions if region in known) or (None,)


def _infra(cloud: str, region: str | None) -> dict[str, str]:
    return {"infra": f"{sky_cloud(cloud)}/{region}" if region else sky_cloud(cloud)}


def _accelerator(asked: str) -> dict[str, str]:
    name, _, count = asked.partition(":")
    return {} if name == CPU else {"accelerators": f"{sky_accelerator(name)}:{count or 1}"}


def _host(project: Project, stage: Stage) -> dict[str, Any]:
    own = stage.resources.cpus if stage.resources else None
    cpus, memory, cost = own or project.resources.cpus, project.resources.memory, project.resources.max_hourly_cost
    return {
        **({"cpus": f"{cpus}+"} if cpus else {}),
        **({"memory": f"{memory / GIB:g}+"} if memory else {}),
        **({"max_hourly_cost": cost} if cost else {}),
    }


def _recovery() -> dict[str, Any]:
    return {
        "job_recovery": {
            "strategy": RECOVERY,
            "max_restarts_on_errors": RESTARTS_ON_ERRORS,
            "recover_on_exit_codes": [INTERRUPTED_EXIT],
        }
    }


def _labels(project: Project, name: str) -> dict[str, str]:
    """Tags in the spelling that all clouds take, since the cloud is not known yet."""
    return google_labels(kubernetes_labels(tags_of(project, run=project.name, stage=name), prefix=""))


RESULTS = "/charter-results"
"""Where the bucket is mounted on every machine."""
SETUP = 'pip install "charter-plan[run]=={version}"'
_HEADER = """\
# A SkyPilot pipeline: submit it with  {command}
# Every stage is a task on a machine of its own. It brings back what earlier stages have put into the second place, runs
# its own stage there, and goes on from the last checkpoint when it is started again after a preemption.
"""
_RUN = """\
set -e
charter ckpt restore{place}
exec charter run --on local --only {stage} --yes{place}
"""


class _Dumper(yaml.SafeDumper):
    """Scripts line by line, and nothing by reference."""

    def ignore_aliases(self, data: object) -> bool:
        """Write a value that stands twice twice."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def render_pipeline(project: Project, stages: Sequence[str] = ()) -> str:
    """The whole pipeline, or some of its stages, as the text that `sky jobs launch` takes."""
    documents = [{"name": pipeline_name(project)}, *(task_of(project, name) for name in chosen(project, stages))]
    header = _HEADER.format(command=" ".join(launch_command(project, "pipeline.yaml", stages)))
    return header + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)


def task_of(project: Project, name: str) -> dict[str, Any]:
    """One stage as a task. Secrets are named and have no value: the command asks for them where it is given."""
    check_nodes(project, name)
    settings = project.launch.skypilot
    bucket, artifacts = settings.bucket, project.storage.artifacts
    if not bucket and not (artifacts and "://" in artifacts):
        raise UsageError(
            "a machine that SkyPilot rents takes its disk along when it goes\n"
            "  set launch.skypilot.bucket (s3://bucket/path), or storage.artifacts to a bucket"
        )
    place = f" --set storage.artifacts={RESULTS}" if bucket else ""
    secrets = {variable: None for variable, _ in secrets_of(project)}
    mounts = {RESULTS: {"source": bucket, "mode": "MOUNT_CACHED"}} if bucket else {}
    return {
        "name": task_name(name),
        "workdir": ".",
        "num_nodes": 1,
        "resources": sky_resources(project, name),
        **({"envs": dict(project.launch.environment)} if project.launch.environment else {}),
        **({"secrets": secrets} if secrets else {}),
        **({"file_mounts": mounts} if mounts else {}),
        "setup": settings.setup or SETUP.format(version=__version__),
        "run": _RUN.format(stage=shlex.quote(name), place=place),
    }


def launch_command(project: Project, file: str, stages: Sequence[str] = ()) -> list[str]:
    """The command that submits the rendered text; secrets by name, taken from the environment of whoever runs it."""
    managed = project.launch.skypilot.managed
    names = chosen(project, stages)
    if not managed and len(names) > 1:
        raise UsageError(
            f"sky launch takes one task, and this is a pipeline of {len(names)}\n"
            "  set launch.skypilot.managed: true (sky jobs launch), or name one stage"
        )
    secrets = [word for variable, _ in secrets_of(project) for word in ("--secret", variable)]
    detach = ["--async"] if managed else ["--async", "--cluster", pipeline_name(project), "--down"]
    return ["sky", *(["jobs"] if managed else []), "launch", "--yes", *detach, *secrets, file]


def chosen(project: Project, stages: Sequence[str] = ()) -> tuple[str, ...]:
    """Stages in the order in which they run."""
    order = execution_order(project)
    if unknown := [name for name in stages if name not in order]:
        raise UsageError(f"the project has no stage {', '.join(unknown)}; it has {', '.join(order)}")
    return tuple(name for name in order if not stages or name in stages)


def pipeline_name(project: Project) -> str:
    """What the pipeline is called in SkyPilot."""
    return safe_name(f"charter-{project.name}", longest=40)


def task_name(stage: str) -> str:
    """What a stage's task is called.

    >>> task_name("sl_cai")
    'sl-cai'
    """
    return safe_name(stage, longest=40)


FILE = "skypilot.yaml"


def submit(project: Project, root: Path, stages: Sequence[str] = ()) -> str:
    """Write the pipeline beside the run and launch it; returns what `sky` printed."""
    if shutil.which("sky") is None:
        raise MissingExtraError(
            "the command sky is not on the path here\n"
            '  pip install "skypilot[aws,gcp,lambda]" in an environment of its own; or --print, and submit it'
        )
    secret_values(dict(secrets_of(project)))
    file = root / "run" / FILE
    durable.make_dir(file.parent)
    durable.write_file(file, render_pipeline(project, stages))
    done = subprocess.run(
        launch_command(project, str(file), stages), cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise StageError(f"sky did not take the pipeline (exit code {done.returncode}):\n  {said}\n  it lies in {file}")
    return done.stdout
