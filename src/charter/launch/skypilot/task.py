"""A pipeline as SkyPilot's YAML: a header and one task per stage, in the order in which they run. Pure."""

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from charter import __version__
from charter.errors import UsageError
from charter.launch.job import safe_name
from charter.launch.skypilot.resources import check_nodes, sky_resources
from charter.launch.submission import secrets_of
from charter.spec.graph import execution_order
from charter.spec.project import Project

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
