"""Start of an exported stage: a script for one node, and that script as a job of SkyPilot and of Slurm. Pure."""

import re
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any

from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import Handover
from charter.launch.job import StageJob, safe_name
from charter.launch.plain_yaml import yaml_text
from charter.launch.rendered.skypilot import CLOUDS, sky_accelerator
from charter.launch.slurm.render import directives
from charter.physics.node import CORES_PER_ACCELERATOR
from charter.plan.option import Option
from charter.plan.stage_plan import StagePlan
from charter.spec.launching import SlurmSettings

SCRIPT, SKYPILOT, SLURM = "run.sh", "resources.yaml", "slurm.sh"
PORT, RAY_PORT = 29500, 6379
WAIT = 5
"""Seconds between looks whether other nodes are there."""
RAY = "ray"
"""First word of a command that one node gives to a Ray of all nodes: `ray job submit ... -- COMMAND`."""
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?:(?::-|:\?)[^}\"`$\\]*)?\}")
_SPECIAL = re.compile(r'([\\"$`])')
_PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./-]+$")


def script_of(handover: Handover, rendered: RenderedRun) -> str:
    """Return the script of one node: the engine's command in the directory of the script."""
    several = handover.num_nodes > 1
    uses_ray = rendered.command[0] == RAY
    lines = [
        "#!/bin/bash",
        f"# Stage {handover.name} in {handover.engine}: runs on each of {handover.num_nodes} nodes."
        if several
        else f"# Stage {handover.name} in {handover.engine}.",
        "# PYTHON is the interpreter of the environment that holds the engine.",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        *(() if rendered.slices else _rendezvous(several)),
        *(f"export {name}={shell_word(value)}" for name, value in sorted(rendered.environment.items())),
        *(_ray_cluster(handover) if uses_ray else ()),
        ("" if uses_ray else "exec ") + " ".join(_words(_given_to_ray(rendered.command))),
    ]
    return "\n".join(lines) + "\n"


def shell_word(word: str) -> str:
    """A word for bash, in which `${NAME}` stands for a variable and everything else for itself.

    >>> print(shell_word("--rank=${NODE_RANK}"), shell_word("a b"), shell_word("$HOME"), shell_word("x.yaml"))
    "--rank=${NODE_RANK}" "a b" "\\$HOME" x.yaml
    """
    if _PLAIN.match(word):
        return word
    pieces, end = [], 0
    for variable in _VARIABLE.finditer(word):
        pieces += [_SPECIAL.sub(r"\\\1", word[end : variable.start()]), variable.group()]
        end = variable.end()
    return '"' + "".join((*pieces, _SPECIAL.sub(r"\\\1", word[end:]))) + '"'


def skypilot_of(handover: Handover, option: Option, slices: tuple[str, int] | None = None) -> str:
    """The script as a task of SkyPilot, on the accelerators that were planned; a TPU slice is one of them to it."""
    place, infra = option.place, option.place.infra
    region = option.price.region or place.region
    resources: dict[str, Any] = {}
    if infra in CLOUDS:
        resources["infra"] = f"{infra}/{region}" if region else infra
    if place.is_cpu:
        resources["cpus"] = f"{handover.per_node}+"
    elif slices is not None:
        resources["accelerators"] = f"tpu-{slices[0].removeprefix('tpu')}:1"
    else:
        resources["accelerators"] = f"{sky_accelerator(handover.accelerator)}:{handover.per_node}"
    resources["use_spot"] = option.price.market == "spot"
    task = {
        "name": safe_name(f"{handover.run}-{handover.name}"),
        "resources": resources,
        "num_nodes": handover.num_nodes if slices is None else slices[1],
        "workdir": ".",
        "run": "export NODE_RANK=$SKYPILOT_NODE_RANK; "
        f'export MASTER_ADDR=$(head -n 1 <<< "$SKYPILOT_NODE_IPS"); exec bash {SCRIPT}',
    }
    return yaml_text(task)


def slurm_of(handover: Handover, option: Option, settings: SlurmSettings, *, cores: int, memory_bytes: float) -> str:
    """The script as a batch job of Slurm: once on each node, with so many processor cores and so much memory."""
    job = StageJob(
        name=safe_name(f"{handover.run}-{handover.name}"),
        run=handover.run,
        stage=handover.name,
        kind=handover.stage.kind,
        attempt=1,
        command=("bash", SCRIPT),
        directory=Path(),
        log=Path(f"{handover.name}.log"),
        nodes=handover.num_nodes,
        accelerator="" if handover.is_cpu else handover.accelerator,
        accelerators_per_node=0 if handover.is_cpu else handover.per_node,
        cpus_per_node=cores,
        memory_bytes_per_node=None if handover.is_cpu else ceil(memory_bytes),
        stop_before_seconds=0.0,  # few engines save when they are asked to stop
        use_spot=option.price.market == "spot",
    )
    lines = [
        "#!/bin/bash",
        *(line for line in directives(job, settings) if not line.startswith("#SBATCH --comment")),
        "",
        "set -euo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        'export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        # Two jobs may have a node together, so each has ports of its own: each one of 5,000, below those that
        # Linux gives to whoever asks for none and above those of Ray's workers.
        'export MASTER_PORT="$((20000 + SLURM_JOB_ID % 5000))" RAY_PORT="$((25000 + SLURM_JOB_ID % 5000))"',
        f"srun --ntasks {handover.num_nodes} --ntasks-per-node 1 --kill-on-bad-exit=1 \\",
        f"    bash -c 'export NODE_RANK=\"$SLURM_NODEID\"; exec bash {SCRIPT}'",
    ]
    return "\n".join(lines) + "\n"


def start_files(
    handover: Handover, rendered: RenderedRun, planned: StagePlan, settings: SlurmSettings
) -> Mapping[str, str]:
    """All of them, by name; a slice of TPUs is no cluster of Slurm's."""
    option, each = planned.option, 1 if handover.is_cpu else CORES_PER_ACCELERATOR
    cores = max(each * handover.per_node, ceil(planned.node.loader_cores))
    files = {SCRIPT: script_of(handover, rendered), SKYPILOT: skypilot_of(handover, option, rendered.slices)}
    if rendered.slices is not None:
        return files
    return files | {SLURM: slurm_of(handover, option, settings, cores=cores, memory_bytes=planned.node.memory.total)}


def _rendezvous(several: bool) -> Iterator[str]:
    if several:
        yield 'export NODE_RANK="${NODE_RANK:?number of this node, from 0}"'
        yield 'export MASTER_ADDR="${MASTER_ADDR:?address of node 0}"'
    else:
        yield 'export NODE_RANK="${NODE_RANK:-0}" MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"'
    yield f'export MASTER_PORT="${{MASTER_PORT:-{PORT}}}"'


def _ray_cluster(handover: Handover) -> Iterator[str]:
    """Node 0 starts Ray and waits for the others, which serve until it ends."""
    start, python = f"ray start --num-gpus={handover.per_node}", '"${PYTHON:-python}"'
    alive = "sum(node['Alive'] for node in ray.nodes())"
    yield f'export RAY_PORT="${{RAY_PORT:-{RAY_PORT}}}"'
    yield f'export PATH="$(dirname "$(command -v {python})"):$PATH"'
    yield 'if [ "$NODE_RANK" != 0 ]; then'
    yield f'    until (exec 3<>"/dev/tcp/$MASTER_ADDR/$RAY_PORT") 2>/dev/null; do sleep {WAIT}; done'
    yield f'    {start} --address="$MASTER_ADDR:$RAY_PORT" --block || true'
    yield "    exit 0"
    yield "fi"
    yield f"{start} --head --port=$RAY_PORT"
    yield "trap 'ray stop' EXIT"
    yield "export RAY_ADDRESS=127.0.0.1:$RAY_PORT"
    yield f'until {python} -c "import ray; ray.init(); exit({alive} < {handover.num_nodes})"; do'
    yield f"    sleep {WAIT}"
    yield "done"


def _given_to_ray(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that node 0 runs beside its Ray: itself, so that paths stay relative to this directory."""
    return command[command.index("--") + 1 :] if command[0] == RAY else command


def _words(command: tuple[str, ...]) -> Iterator[str]:
    for word in command:
        yield '"${PYTHON:-python}"' if word == "python" else shell_word(word)
