"""Checks of a launcher, and of the plan beside it: nodes that stages are planned on, engines that are installed."""

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from charter.engines import handover_engine
from charter.engines.installed import ABSENT, engines_at, interpreter_of, versions_at
from charter.errors import CharterError, MissingExtraError, how_to_install
from charter.launch.machine import asked_memory, gpus_here, installed_version
from charter.launch.node_checks import read_bad_nodes
from charter.plan.machine import usable_memory_bytes
from charter.run.graph import build_pipeline
from charter.run.paths import run_dir
from charter.run.planned import executions_for, plan_of_run
from charter.spec.execution import Execution
from charter.spec.project import Project
from charter.spec.stage import is_hosted
from charter.units import format_bytes, format_machines

COMMAND_SECONDS = 20.0
"""Longest wait for a command of a launcher; a controller that is down may take this long to say so."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at, and how to mend it."""

    name: str
    ok: bool
    """Not known to be wrong."""
    found: str
    advice: str = ""
    is_known: bool = True
    """False where nobody could say."""
    group: str = "machine"
    """machine, packages, drivers, launcher, plan, network, credentials or disk."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """Output of a command, and whether it succeeded."""

    ok: bool
    text: str


def ask(command: Sequence[str], *, seconds: float = COMMAND_SECONDS) -> Said:
    """Run a command that only looks; one that is missing, fails or hangs is told, never raised."""
    ok, lines = _answer(command, seconds)
    # What went wrong is told last, after what it led to.
    return Said(ok=ok, text=lines[0 if ok else -1][:200] if lines else "")


def _answer(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> tuple[bool, list[str]]:
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=seconds, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return False, [f"{command[0]} is not installed here"]
    except subprocess.TimeoutExpired:
        return False, [f"{command[0]} did not answer within {seconds:g} s"]
    except OSError as error:
        return False, [f"{command[0]}: {error.strerror}"]
    text = done.stdout if done.returncode == 0 else done.stderr or done.stdout
    return done.returncode == 0, text.strip().splitlines()


class Look(Protocol):
    """Looks at one launcher."""

    def __call__(self, project: Project) -> tuple[Check, ...]:
        """Return the checks of a launcher."""


def examine_launcher(project: Project, root: Path, launcher: str) -> tuple[Check, ...]:
    """The launcher's own checks, and the nodes that the run leaves out."""
    look = LOOKS.get(launcher)
    checks = look(project) if look else ()
    left_out = read_bad_nodes(run_dir(root))
    if not left_out:
        return checks
    bad = Check(
        group="launcher",
        name="nodes",
        ok=False,
        found="left out: " + ", ".join(f"{node} ({why})" for node, why in sorted(left_out.items())),
        advice=f"mend them, then take their lines out of {run_dir(root) / 'bad_nodes.json'}",
    )
    return (*checks, bad)


def _slurm(project: Project) -> tuple[Check, ...]:
    settings = project.launch.slurm
    if shutil.which("sbatch") is None:
        advice = "run charter on a login node of the cluster, or install slurm-client with the cluster's slurm.conf"
        return (Check(group="launcher", name="slurm", ok=False, found="sbatch is not on the path", advice=advice),)
    version = ask(["sbatch", "--version"])
    if not version.ok:
        advice = "put the cluster's slurm.conf where this machine looks for it, or name it in SLURM_CONF"
        return (Check(group="launcher", name="slurm", ok=False, found=version.text, advice=advice),)
    controller = ask(["scontrol", "ping"])
    up = controller.ok and "DOWN" not in controller.text
    checks = [
        Check(group="launcher", name="slurm", ok=True, found=version.text),
        Check(group="launcher", name="controller", ok=up, found=controller.text, advice="start slurmctld; see its log"),
    ]
    if not up:
        return tuple(checks)
    if settings.partition is not None:
        answer = ask(["sinfo", "-h", "-p", settings.partition, "-o", "%D nodes, %a"])
        exists = answer.ok and bool(answer.text)
        said = answer.text or f"no partition is called {settings.partition}"
        names = ask(["sinfo", "-h", "-o", "%R"]).text
        advice = f"set launch.slurm.partition; there is {names}"
        checks.append(
            Check(group="launcher", name=f"partition {settings.partition}", ok=exists, found=said, advice=advice)
        )
    accounting = ask(["sacct", "-n", "-X", "--starttime", "now-1minutes"])
    said = "slurmdbd answers" if accounting.ok else f"{accounting.text}; costs then come from Charter's own clock"
    return (*checks, Check(group="launcher", name="accounting", ok=True, found=said))


def _ray(project: Project) -> tuple[Check, ...]:
    version = installed_version("ray")
    if version == "absent":
        return (_missing("ray", how_to_install("ray")),)
    address = project.launch.ray.address
    answer = ask(["ray", "status", *(["--address", address] if address != "auto" else [])], seconds=60.0)
    said = f"Ray {version}; " + ("the cluster answers" if answer.ok else answer.text or "no cluster answers")
    advice = "start one (ray start --head), or set launch.ray.address or RAY_ADDRESS"
    return (Check(group="launcher", name="ray", ok=answer.ok, found=said, advice=advice),)


def _kubernetes(project: Project) -> tuple[Check, ...]:
    settings = project.launch.kubernetes
    if shutil.which("kubectl") is None:
        return (_missing("kubectl", "install kubectl of the cluster's version, with a kubeconfig"),)
    context = ["--context", settings.context] if settings.context else []
    allowed = ask(["kubectl", *context, "-n", settings.namespace, "auth", "can-i", "create", "jobs"])
    may = allowed.ok and allowed.text.startswith("yes")
    advice = f"ask for a role that may create jobs in {settings.namespace}, or set launch.kubernetes.namespace"
    checks = [Check(group="launcher", name="kubernetes", ok=may, found=allowed.text or "no answer", advice=advice)]
    for name, value, why in (
        ("image", settings.image, "pods need an image with Charter in it"),
        ("volume_claim", settings.volume_claim, "every pod must see the project directory"),
    ):
        said = str(value) if value else f"not set; {why}"
        checks.append(
            Check(group="launcher", name=name, ok=value is not None, found=said, advice=f"set launch.kubernetes.{name}")
        )
    return tuple(checks)


def _skypilot(project: Project) -> tuple[Check, ...]:
    if shutil.which("sky") is None:
        return (_missing("sky", "pip install skypilot, in an environment of its own, and run sky check"),)
    return (Check(group="launcher", name="skypilot", ok=True, found=ask(["sky", "--version"], seconds=60.0).text),)


def _missing(what: str, advice: str) -> Check:
    return Check(group="launcher", name=what, ok=False, found="is not installed here", advice=advice)


LOOKS: Mapping[str, Look] = MappingProxyType(
    {"slurm": _slurm, "ray": _ray, "kubernetes": _kubernetes, "skypilot": _skypilot}
)


# -------- The plan beside what is there.

GPU_OF_GRES = re.compile(r"\bgpu(?::[^:,()]+)?:(\d+)")
GPUS_OF_RAY = re.compile(r"[\d.]+/([\d.]+) GPU")
REPLAN = "plan on what is there (resources.accelerators, num_nodes, max_nodes), or add nodes"
MORE_MEMORY = "use nodes with more memory, or ask for less: resources.memory of the stage or the project"


@dataclass(frozen=True, kw_only=True)
class NodeRoom:
    """Accelerators and memory of one node, or of all nodes of Ray together."""

    accelerators: int
    memory_bytes: float | None = None
    """System memory; None where the launcher does not say."""

    def holds(self, accelerators: int, memory_bytes: float) -> bool:
        """Return True if a job that asks for so much fits on it, as far as is known."""
        return self.accelerators >= accelerators and (self.memory_bytes is None or self.memory_bytes >= memory_bytes)


def room_of_nodes(project: Project, launcher: str) -> list[NodeRoom] | None:
    """Return what every node of a launcher has, or all of Ray's have together; None where it does not say."""
    if launcher == "local":
        return [NodeRoom(accelerators=gpus_here(), memory_bytes=usable_memory_bytes())]
    if launcher == "slurm":
        partition = project.launch.slurm.partition
        ok, lines = _answer(["sinfo", "-h", "-N", *(["-p", partition] if partition else []), "-o", "%N %m %G"])
        # A node stands there once for each partition that it is in.
        return [_of_slurm(line) for line in sorted(set(lines))] if ok else None
    if launcher == "kubernetes":
        settings = project.launch.kubernetes
        context = ["--context", settings.context] if settings.context else []
        resource = settings.accelerator_resource.replace(".", "\\.")
        fields = f"{{.status.allocatable.{resource}}} {{.status.allocatable.memory}}"
        each = f'jsonpath={{range .items[*]}}{fields}{{"\\n"}}{{end}}'
        ok, lines = _answer(["kubectl", *context, "get", "nodes", "-o", each])
        return [_of_kubernetes(line) for line in lines] if ok else None
    if launcher == "ray":
        address = project.launch.ray.address
        ok, lines = _answer(["ray", "status", *(["--address", address] if address != "auto" else [])], 60.0)
        counts = [int(float(count)) for line in lines for count in GPUS_OF_RAY.findall(line)]
        return [NodeRoom(accelerators=count) for count in counts] if ok else None
    return None


def _of_slurm(line: str) -> NodeRoom:
    """Read a node's name, memory and GRES; its memory is 1 (MiB) where slurm.conf does not name it."""
    memory = re.match(r"\S+ (\d+)", line)
    mebibytes = int(memory[1]) if memory else 0
    return NodeRoom(
        accelerators=sum(map(int, GPU_OF_GRES.findall(line))),
        memory_bytes=mebibytes * 2**20 if mebibytes > 1 else None,
    )


def _of_kubernetes(line: str) -> NodeRoom:
    """Read a node's allocatable accelerators (none where it has no such resource) and memory."""
    count, _, memory = line.partition(" ")
    return NodeRoom(accelerators=int(count) if count.isdecimal() else 0, memory_bytes=_quantity(memory.strip()))


def _quantity(text: str) -> float | None:
    """Return the bytes of a quantity as Kubernetes writes memory: 131072Ki, 512Gi, 540e9, 8589934592."""
    number, unit = re.fullmatch(r"([\d.]+(?:e\d+)?)([KMGT]i?|k|m)?", text), {"k": 1e3, "m": 1e-3}
    if number is None:
        return None
    suffix = number[2] or ""
    power = "KMGT".find(suffix[:1]) + 1 if suffix else 0
    factor = unit.get(suffix) or (1024.0 if suffix.endswith("i") else 1000.0) ** power
    return float(number[1]) * factor


def examine_plan(project: Project, root: Path, launcher: str) -> tuple[Check, ...]:
    """Compare what the plan gives to each stage with the nodes of the launcher and the engines that are installed."""
    try:
        planned = plan_of_run(build_pipeline(project, root))
    except CharterError as error:
        return (_no_plan(str(error)),)
    if planned.problem:
        return (_no_plan(planned.problem),)
    executions = executions_for(planned.executions, project, launcher)
    return (*_nodes(executions, project, launcher), *_engines(project, root))


def _no_plan(problem: str) -> Check:
    said = problem.splitlines()[0][:200]
    return Check(group="plan", name="plan", ok=False, found=said, advice="charter plan says what would fit")


def _nodes(executions: Mapping[str, Execution], project: Project, launcher: str) -> Iterator[Check]:
    """One check for every shape of machines that stages are planned on."""
    shapes: dict[tuple[int, int, str], list[str]] = defaultdict(list)
    for name, execution in executions.items():
        if execution.accelerators:
            shapes[execution.nodes, execution.accelerators_per_node, execution.accelerator].append(name)
    rooms = room_of_nodes(project, launcher) if shapes else None
    for (nodes, each, accelerator), names in sorted(shapes.items()):
        label = format_machines(accelerator, each, nodes)
        if rooms is None:
            said = f"for {', '.join(names)}; {launcher} does not say what its nodes have"
            yield Check(group="plan", name=label, ok=True, is_known=False, found=said)
            continue
        if launcher == "ray":
            total = sum(room.accelerators for room in rooms)
            said = f"for {', '.join(names)}; {total} accelerators in all"
            yield Check(group="plan", name=label, ok=total >= nodes * each, found=said, advice=REPLAN)
            continue
        memory = max(_asked_bytes(project, name, executions[name]) for name in names)
        with_devices = sum(room.accelerators >= each for room in rooms)
        fitting = sum(room.holds(each, memory) for room in rooms)
        said = f"for {', '.join(names)}; {with_devices} of {len(rooms)} nodes have {each} or more"
        if fitting < with_devices:
            said += f", {fitting} of them the {format_bytes(memory)} of memory that the job asks for"
        advice = REPLAN if with_devices < nodes else MORE_MEMORY
        yield Check(group="plan", name=label, ok=fitting >= nodes, found=said, advice=advice)


def _asked_bytes(project: Project, name: str, execution: Execution) -> float:
    """Return the system memory that a stage's jobs ask of each node; 0 where they ask for none."""
    return asked_memory(project, project.pipeline[name]) or execution.memory_bytes_per_node


def _engines(project: Project, root: Path) -> Iterator[Check]:
    """One check for every engine that stages name: installed, and of the version that its files are written for."""
    names = {stage.engine for stage in project.pipeline.values() if is_hosted(stage)}
    for name in sorted(names):
        engine, python = handover_engine(name), interpreter_of(engines_at(project.engines, root), name)
        if "/" in engine.package:
            yield Check(group="plan", name=name, ok=True, found=f"a checkout of {engine.package}; not looked at")
            continue
        advice = (
            f"install {engine.package}=={engine.version.split()[0]}, or name its interpreter: engines.{name}.python"
        )
        try:
            version = versions_at(python, (engine.package,))[engine.package]
        except MissingExtraError as error:
            said = str(error).splitlines()[0]
            yield Check(group="plan", name=name, ok=False, found=said, advice=advice)
            continue
        written = f"files are written for {engine.version}"
        said = f"{engine.package} is not installed in {python}" if version == ABSENT else f"{version}; {written}"
        yield Check(group="plan", name=name, ok=version != ABSENT, found=said, advice=advice)
