"""Looks at the engine that a run would be sent to."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from charter.launch.node_checks.bad_nodes import read_bad_nodes
from charter.pipeline.doctor.check import Check, ask
from charter.pipeline.paths import run_dir
from charter.spec.project import Project


class Look(Protocol):
    """Looks at one engine."""

    def __call__(self, project: Project) -> tuple[Check, ...]:
        """What is there and what is not."""


def examine_engine(project: Project, root: Path, engine: str) -> tuple[Check, ...]:
    """The engine's own checks, and the nodes that the run leaves out."""
    look = LOOKS.get(engine)
    found = look(project) if look else ()
    left_out = read_bad_nodes(run_dir(root))
    if not left_out:
        return found
    bad = Check(
        group="engine",
        name="nodes",
        ok=False,
        found="left out: " + ", ".join(f"{node} ({why})" for node, why in sorted(left_out.items())),
        advice=f"mend them, then take their lines out of {run_dir(root) / 'bad_nodes.json'}",
    )
    return (*found, bad)


def _slurm(project: Project) -> tuple[Check, ...]:
    settings = project.launch.slurm
    if shutil.which("sbatch") is None:
        advice = "run charter on a login node of the cluster, or install slurm-client with the cluster's slurm.conf"
        return (Check(group="engine", name="slurm", ok=False, found="sbatch is not on the path", advice=advice),)
    version = ask(["sbatch", "--version"])
    if not version.ok:
        advice = "put the cluster's slurm.conf where this machine looks for it, or name it in SLURM_CONF"
        return (Check(group="engine", name="slurm", ok=False, found=version.text, advice=advice),)
    controller = ask(["scontrol", "ping"])
    up = controller.ok and "DOWN" not in controller.text
    checks = [
        Check(group="engine", name="slurm", ok=True, found=version.text),
        Check(group="engine", name="controller", ok=up, found=controller.text, advice="start slurmctld; see its log"),
    ]
    if not up:
        return tuple(checks)
    if settings.partition is not None:
        found = ask(["sinfo", "-h", "-p", settings.partition, "-o", "%D nodes, %a"])
        known = found.ok and bool(found.text)
        said = found.text or f"no partition is called {settings.partition}"
        names = ask(["sinfo", "-h", "-o", "%R"]).text
        advice = f"set launch.slurm.partition; there is {names}"
        checks.append(
            Check(group="engine", name=f"partition {settings.partition}", ok=known, found=said, advice=advice)
        )
    accounting = ask(["sacct", "-n", "-X", "--starttime", "now-1minutes"])
    said = "slurmdbd answers" if accounting.ok else f"{accounting.text}; costs then come from Charter's own clock"
    return (*checks, Check(group="engine", name="accounting", ok=True, found=said))


def _ray(project: Project) -> tuple[Check, ...]:
    from charter.launch.machine import installed_version

    version = installed_version("ray")
    if version == "absent":
        return (_missing("ray", 'pip install "charter-plan[ray]"'),)
    address = project.launch.ray.address
    found = ask(["ray", "status", *(["--address", address] if address != "auto" else [])], seconds=60.0)
    said = f"Ray {version}; " + ("the cluster answers" if found.ok else found.text or "no cluster answers")
    advice = "start one (ray start --head), or set launch.ray.address or RAY_ADDRESS"
    return (Check(group="engine", name="ray", ok=found.ok, found=said, advice=advice),)


def _kubernetes(project: Project) -> tuple[Check, ...]:
    settings = project.launch.kubernetes
    if shutil.which("kubectl") is None:
        return (_missing("kubectl", "install kubectl of the cluster's version, with a kubeconfig"),)
    context = ["--context", settings.context] if settings.context else []
    allowed = ask(["kubectl", *context, "-n", settings.namespace, "auth", "can-i", "create", "jobs"])
    may = allowed.ok and allowed.text.startswith("yes")
    advice = f"ask for a role that may create jobs in {settings.namespace}, or set launch.kubernetes.namespace"
    checks = [Check(group="engine", name="kubernetes", ok=may, found=allowed.text or "no answer", advice=advice)]
    for name, value, why in (
        ("image", settings.image, "pods need an image with Charter in it"),
        ("volume_claim", settings.volume_claim, "every pod must see the project directory"),
    ):
        said = str(value) if value else f"not set; {why}"
        checks.append(
            Check(group="engine", name=name, ok=value is not None, found=said, advice=f"set launch.kubernetes.{name}")
        )
    return tuple(checks)


def _skypilot(project: Project) -> tuple[Check, ...]:
    if shutil.which("sky") is None:
        return (_missing("sky", "pip install skypilot, in an environment of its own, and run sky check"),)
    return (Check(group="engine", name="skypilot", ok=True, found=ask(["sky", "--version"], seconds=60.0).text),)


def _missing(what: str, advice: str) -> Check:
    return Check(group="engine", name=what, ok=False, found="is not installed here", advice=advice)


LOOKS: Mapping[str, Look] = MappingProxyType(
    {"slurm": _slurm, "ray": _ray, "kubernetes": _kubernetes, "skypilot": _skypilot}
)
