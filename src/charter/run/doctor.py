"""Looks at the machine, the scheduler and all outside that a project needs; changes nothing but probe files."""

import contextlib
import fcntl
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from charter.artifacts import durable
from charter.artifacts.fingerprint import free_bytes
from charter.artifacts.record import read_record
from charter.data.sandbox import INSTALL, sandbox_problem
from charter.errors import EXTRAS, how_to_install
from charter.inference.openenv import server_problem
from charter.launch.machine import cpu_capability, gpus_here, installed_version
from charter.launch.node_checks import Finding, accelerators, kernel_log, xid_errors
from charter.plan.machine import usable_cores, usable_memory_bytes
from charter.run.cluster_checks import Check, examine_launcher, examine_plan
from charter.run.paths import earlier_stage_dirs
from charter.run.preflight import RUN_PACKAGES, called_functions
from charter.spec.project import Project
from charter.spec.rewards import EXPRESSION, IN_SANDBOX, OPENENV, VERIFIERS
from charter.spec.stage import is_hosted
from charter.units import GIB, format_bytes


def references(project: Project) -> Iterator[tuple[str, str]]:
    """Yield where in the file a secret is referred to, and the reference."""
    for name, serving in project.serving.items():
        if serving.api_key is not None and serving.is_used:
            yield f"serving.{name}.api_key", serving.api_key
    for name in ("webhook", "smtp_password"):
        if (reference := getattr(project.alerts, name)) is not None:
            yield f"alerts.{name}", reference


def examine_credentials(
    project: Project, root: Path, environment: Mapping[str, str] | None = None
) -> tuple[Check, ...]:
    """One check for every reference; a file that others may read is told."""
    variables = os.environ if environment is None else environment
    return tuple(look_up(where, reference, root, variables) for where, reference in references(project))


def look_up(where: str, reference: str, root: Path, environment: Mapping[str, str]) -> Check:
    """Return the check that one secret is where the file says.

    >>> look_up("alerts.webhook", "env:HOOK", Path("."), {"HOOK": "https://..."}).found
    'HOOK is set'
    """
    scheme, _, name = reference.partition(":")
    if scheme == "env":
        is_set = bool(environment.get(name))
        said, advice = f"{name} is {'set' if is_set else 'not set'}", f"export {name}=... before charter run"
        return Check(group="credentials", name=where, ok=is_set, found=said, advice=advice)
    path = (root / Path(name).expanduser()).resolve()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        said, advice = f"{path}: {error.strerror}", "write the secret into that file, readable by you alone"
        return Check(group="credentials", name=where, ok=False, found=said, advice=advice)
    private = not mode & (stat.S_IRWXG | stat.S_IRWXO)
    said = f"{path} is there" + ("" if private else ", and others may read it")
    return Check(group="credentials", name=where, ok=private, found=said, advice=f"chmod 600 {path}")


TORCH_FOR_CUDA = "install a CUDA build of torch: pip install torch (without the CPU index)"


def examine_drivers() -> tuple[Check, ...]:
    """Accelerators, driver, memory errors, and torch's build."""
    count = gpus_here()
    if not count:
        return (Check(group="drivers", name="accelerators", ok=True, found="none; stages run on the processor"),)
    findings = (*accelerators(), xid_errors(kernel_log()))
    return (*_driver(count), *(_of(finding) for finding in findings), torch_build(torch_cuda(), count))


def _of(finding: Finding) -> Check:
    return Check(group="drivers", name=finding.name, ok=finding.ok, found=finding.found, advice=finding.advice)


def _driver(count: int) -> Sequence[Check]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return [
            Check(
                group="drivers", name="driver", ok=False, found=f"{count} GPUs, no NVML", advice=how_to_install("meter")
            )
        ]
    except Exception as error:
        advice = "install or load the NVIDIA driver: nvidia-smi must list the devices"
        return [Check(group="drivers", name="driver", ok=False, found=f"{count} GPUs; {error}", advice=advice)]
    try:
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        memory = pynvml.nvmlDeviceGetMemoryInfo(device).total / GIB
        description = (
            f"{count} x {pynvml.nvmlDeviceGetName(device)}, {memory:.0f} GiB each; driver "
            f"{pynvml.nvmlSystemGetDriverVersion()}, CUDA {cuda // 1000}.{cuda % 1000 // 10}"
        )
        return [Check(group="drivers", name="driver", ok=True, found=description)]
    finally:
        pynvml.nvmlShutdown()


def torch_build(cuda: str | None, count: int) -> Check:
    """Return the check that torch can use the GPUs of this machine.

    >>> torch_build(None, 8).ok, torch_build("12.8", 8).ok
    (False, True)
    """
    build = f"built for CUDA {cuda}" if cuda else f"built for processors only, beside {count} GPUs"
    return Check(group="drivers", name="torch", ok=cuda is not None, found=build, advice=TORCH_FOR_CUDA)


def torch_cuda(facts_file: Path | None = None) -> str | None:
    """The CUDA version that torch was built for, read without importing it; None for a build without."""
    if facts_file is None:
        module_spec = find_spec("torch")
        if module_spec is None or module_spec.origin is None:
            return None
        facts_file = Path(module_spec.origin).with_name("version").with_suffix(".py")
    match = re.search(r"^cuda\b[^=]*= '([\d.]+)'", facts_file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return match[1] if match else None


def examine_extras(project: Project, root: Path, launcher: str) -> tuple[Check, ...]:
    """One check for every extra that the project asks for."""
    checks = []
    for extra, why in sorted(set(needed_extras(project, root, launcher))):
        lacking = [name for name in EXTRAS[extra] if find_spec(name) is None]
        checks.append(
            Check(
                group="packages",
                name=f"extra {extra}",
                ok=not lacking,
                found=f"{why}; {f'{lacking[0]} is not installed' if lacking else 'installed'}",
                advice=how_to_install(extra),
            )
        )
    return (*checks, *_sandbox(project), *_environment_servers(project))


def _sandbox(project: Project) -> Iterator[Check]:
    """Yield the check of the sandbox, where the project runs programs of a model."""
    if not set(IN_SANDBOX) & set(called_functions(project.pipeline)):
        return
    problem = sandbox_problem()
    yield Check(
        group="packages", name="sandbox", ok=not problem, found=problem or "programs run in bubblewrap", advice=INSTALL
    )


def _environment_servers(project: Project) -> Iterator[Check]:
    """Yield a check of each OpenEnv server that a stage plays with, asked from here."""
    for call in called_functions(project.pipeline):
        if call.startswith(OPENENV) and find_spec("aiohttp") is not None:
            problem = server_problem(call.removeprefix(OPENENV))
            outcome = problem or "answers as an OpenEnv server"
            advice = "start it, at an address that the machine of the stage reaches"
            yield Check(group="network", name=call, ok=not problem, found=outcome, advice=advice)


def needed_extras(project: Project, root: Path, launcher: str) -> Iterator[tuple[str, str]]:
    """Extras that a project needs on a launcher, each with the reason."""
    if launcher == "ray":
        yield "ray", "runs on Ray"
    if (project.storage.artifacts or "").startswith("s3://"):
        yield "store", "storage.artifacts is a bucket"
    if (project.storage.ledger or "").startswith("postgresql"):
        yield "postgres", "storage.ledger is a PostgreSQL server"
    if any(getattr(stage, "adapter", None) and not is_hosted(stage) for stage in project.pipeline.values()):
        yield "adapters", "a stage trains an adapter"
    if EXPRESSION in called_functions(project.pipeline):
        yield "math", "a reward compares expressions"
    if any(call.startswith(VERIFIERS) for call in called_functions(project.pipeline)):
        yield "verifiers", "a policy plays a taskset of verifiers"
    if any(item.format in ("parquet", "hf") or item.path.endswith(".parquet") for item in project.data.values()):
        yield "data", "a data set is Parquet or Arrow"
    if project.metering.prometheus_port is not None:
        yield "meter", "metering.prometheus_port is set"
    for entry in project.tracking:
        name = entry if isinstance(entry, str) else getattr(entry, "kind", "")
        if name in EXTRAS:
            yield name, f"tracking: {name}"


OLDEST_PYTHON = (3, 11)
MIN_FREE_BYTES = 2 * GIB
"""Room for the checkpoints of the smallest template, with a margin; larger runs need what `charter plan` says."""


def examine_machine(directory: Path) -> tuple[Check, ...]:
    """Python, packages, processor, disk and locks, for running in a directory."""
    return (_python(), _machine(), *_packages(), *_file_system(directory))


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(
        name="python", ok=sys.version_info >= OLDEST_PYTHON, found=version, advice="install Python 3.11 or newer"
    )


def _packages() -> tuple[Check, ...]:
    versions = {name: installed_version(name) for name in RUN_PACKAGES}
    return tuple(
        Check(
            group="packages",
            name=name,
            ok=version != "absent",
            found=version,
            advice=f"running stages needs it: {how_to_install('run')}",
        )
        for name, version in versions.items()
    )


def _machine() -> Check:
    memory = format_bytes(usable_memory_bytes())
    return Check(name="machine", ok=True, found=f"{usable_cores()} cores ({cpu_capability()}), {memory} memory")


def _file_system(directory: Path) -> tuple[Check, ...]:
    free = free_bytes(directory)
    space = Check(
        group="disk",
        name="disk",
        ok=free >= MIN_FREE_BYTES,
        found=f"{format_bytes(free)} free",
        advice=f"have at least {format_bytes(MIN_FREE_BYTES)} free",
    )
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".charter-doctor-", dir=existing) as probe:
            return (space, _locks(Path(probe)), _sync(Path(probe)))
    except OSError as error:
        return (
            space,
            Check(group="disk", name="writing", ok=False, found=str(error), advice="use a directory you may write to"),
        )


def _locks(probe: Path) -> Check:
    with (probe / "lock").open("w") as first, (probe / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Check(group="disk", name="locks", ok=True, found="flock works here")
    return Check(
        group="disk", name="locks", ok=False, found="flock does not exclude", advice="run on a local file system"
    )


def _sync(probe: Path) -> Check:
    start = time.perf_counter()
    durable.write_file(probe / "file", os.urandom(4096))
    milliseconds = (time.perf_counter() - start) * 1000
    return Check(group="disk", name="durable write", ok=True, found=f"{milliseconds:.1f} ms for 4 KiB with fsync")


CONNECT_SECONDS = 5.0
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "smtp": 25, "smtps": 465}


def addresses(project: Project) -> Iterator[tuple[str, str]]:
    """Yield where in the file an address stands, and the address."""
    for name, serving in project.serving.items():
        if serving.is_used:
            for number, address in enumerate((serving.endpoint, *serving.also_endpoints)):
                yield f"serving.{name}" + (f" ({number + 1})" if number else ""), str(address)
    if (project.storage.ledger or "").startswith("postgresql"):
        yield "storage.ledger", str(project.storage.ledger)
    if project.alerts.smtp is not None:
        yield "alerts.smtp", project.alerts.smtp
    for entry in project.tracking:
        if (uri := getattr(entry, "uri", None)) is not None and urlsplit(uri).hostname:
            yield f"tracking.{getattr(entry, 'kind', 'tracker')}", uri


def examine_network(project: Project, root: Path) -> tuple[Check, ...]:
    """One connection to every server that the project names, and one look into its second place."""
    checks = [connect(where, address) for where, address in addresses(project)]
    if project.storage.artifacts is not None:
        checks.append(_second_place(project.storage.artifacts, root))
    return tuple(checks)


def connect(where: str, address: str) -> Check:
    """Return the check that something accepts connections at an address; its answer is not read."""
    parts = urlsplit(address)
    try:
        port = parts.port or PORTS.get(parts.scheme.partition("+")[0])
    except ValueError:
        port = None
    if not parts.hostname or port is None:
        return Check(
            group="network", name=where, ok=False, found="no host and port in the address", advice=f"mend {where}"
        )
    shown, start = f"{parts.hostname}:{port}", time.monotonic()
    try:
        with contextlib.closing(socket.create_connection((parts.hostname, port), timeout=CONNECT_SECONDS)):
            milliseconds = (time.monotonic() - start) * 1000
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        advice = f"is the server of {where} running, and may this machine reach it?"
        return Check(group="network", name=where, ok=False, found=f"{shown}: {why}", advice=advice)
    return Check(group="network", name=where, ok=True, found=f"{shown} answers in {milliseconds:.0f} ms")


def _second_place(where: str, root: Path) -> Check:
    from charter.artifacts.store.copy import open_place

    try:
        open_place(where, root=root).size("charter-doctor")
    except Exception as error:
        advice = "give a bucket or directory that you may read and write, with its credentials"
        return Check(group="network", name="storage.artifacts", ok=False, found=_line(error), advice=advice)
    return Check(group="network", name="storage.artifacts", ok=True, found=f"{where} can be read")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def examine(directory: Path, project: Project | None = None, *, launcher: str = "local") -> tuple[Check, ...]:
    """Every check; those of packages, launcher, network and credentials by what the project asks for."""
    machine = (*examine_machine(directory), *examine_drivers())
    if project is None:
        return machine
    return (
        *machine,
        *examine_extras(project, directory, launcher),
        *examine_launcher(project, directory, launcher),
        *examine_plan(project, directory, launcher),
        *examine_network(project, directory),
        *examine_credentials(project, directory),
    )


BITS_TEMPLATE, BITS_STAGE = "cai-smoke", "pretrain"
BITS_STEPS = 8
BITS_CHANGES = (f"pipeline.{BITS_STAGE}.steps={BITS_STEPS}",)
LONGEST_BIT_TEST_SECONDS = 300.0
"""Of one of its two runs, which takes some 10 s: a machine that is busy is no fault."""
BITS = "the same bits twice"
BITS_ADVICE = (
    "a run that is killed here would not end with the bits of an undisturbed one: compare drivers and libraries with a "
    "machine where this passes, and look for variables that choose kernels (NVIDIA_TF32_OVERRIDE, NCCL_*, MKL_*)"
)


def bit_test() -> Check:
    """Measure whether this machine computes the same bits twice, on which exact resume rests.

    Two processes, one after the other, train the same small model from scratch on the same rows with the engine as it
    trains, and every file that they publish is compared. Another GPU, driver, library or variable may break it without
    a word.
    """
    with tempfile.TemporaryDirectory(prefix="charter-bits-") as directory:
        hashes: list[Mapping[str, str]] = []
        for number in ("first", "second"):
            root = Path(directory) / number
            if problem := _train(root):
                return Check(
                    name=BITS, ok=False, found=f"the {number} run ended: {problem}", advice=BITS_ADVICE, group="bits"
                )
            record = read_record(earlier_stage_dirs(root, BITS_STAGE)[0])
            hashes.append(record.outputs if record else {})
    where = "on a GPU" if gpus_here() else "on processors"
    return compare_bits(*hashes, where=where)


def compare_bits(first: Mapping[str, str], second: Mapping[str, str], *, where: str) -> Check:
    """Compare the hashes of what two runs have published.

    >>> compare_bits({"model.safetensors": "a"}, {"model.safetensors": "b"}, where="on a GPU").ok
    False
    """
    differing = sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
    if not differing and first:
        equal = f"{BITS_STEPS} steps {where}, {len(first)} files with equal hashes"
        return Check(name=BITS, ok=True, found=equal, group="bits")
    text = f"{BITS_STEPS} steps {where}; {', '.join(differing) or 'no file'} differ{'' if len(differing) > 1 else 's'}"
    return Check(name=BITS, ok=False, found=text, advice=BITS_ADVICE, group="bits")


def _train(root: Path) -> str:
    """Train the model of a template for some steps; what went wrong, in its last words."""
    changes = [part for change in BITS_CHANGES for part in ("--set", change)]
    for words in (
        ["init", str(root), "--template", BITS_TEMPLATE],
        ["run", "--yes", "--only", BITS_STAGE, "-C", str(root), *changes],
    ):
        try:
            done = subprocess.run(
                [sys.executable, "-m", "charter.cli.main", *words],
                capture_output=True,
                text=True,
                timeout=LONGEST_BIT_TEST_SECONDS,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "NO_COLOR": "1"},
            )
        except subprocess.TimeoutExpired:
            return f"not within {LONGEST_BIT_TEST_SECONDS:g} s"
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return lines[-1][:300] if lines else f"exit code {done.returncode}"
    return ""
