"""Pages of an export: the mapping line by line, the plan of the stage, its scripts and jobs, how to go on. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any

from charter.artifacts.durable import json_text
from charter.engines.common.engine import TrainingEngine
from charter.engines.common.mapping import MappedField, shown
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import CPU, Arrangement, Handover, HandoverPaths, RlPlacement, RolesTogether
from charter.errors import SpecError, UsageError
from charter.launch.job import StageJob, safe_name, yaml_text
from charter.launch.rendered.skypilot import CLOUDS, sky_accelerator
from charter.launch.slurm.render import directives
from charter.physics.node import CORES_PER_ACCELERATOR
from charter.plan.option import Option, RoleGroup, StageQuestion
from charter.plan.plan import Plan
from charter.plan.stage_plan import StagePlan
from charter.run.preflight import two_kinds
from charter.spec.architecture import Architecture
from charter.spec.launching import SlurmSettings
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Project
from charter.spec.stage import references
from charter.spec.stage_base import MODEL, Stage

WORK = "."
"""Files of an export name each other relative to the directory that they lie in."""
MODELS_DIR, DATA_DIR = "inputs", "data"
NO_ROWS: Mapping[str, int] = MappingProxyType({})
NO_SOURCES: Mapping[str, str] = MappingProxyType({})
GENERATORS, GENERATE = "generators", "generate"
_ROLE_OF_SPEC: Mapping[str, tuple[str, ...]] = {
    "init": ("model", "policy"),
    "policy": ("policy",),
    "reward": ("reward",),
}
"""Role in a stage's spec -> what the planner calls it."""


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """A model that a stage reads."""

    role: str
    path: str
    """As the engine's configuration names it."""
    made_by: str | None
    """The stage that makes it; None for a model of the catalog or a directory."""


def handover_of(
    project: Project,
    plan: Plan,
    name: str,
    *,
    data_suffix: str = ".jsonl",
    rows: Mapping[str, int] = NO_ROWS,
    sources: Mapping[str, str] = NO_SOURCES,
) -> Handover:
    """The stage as it was planned, with every path below the directory of the export.

    `data_suffix`: of the files that the engine reads; `rows` that each role of data has, where they are known;
    `sources`: texts of the user's own reward functions.
    """
    stage, planned = project.pipeline[name], plan.stage(name)
    if planned is None or planned.searched is None or planned.searched.question is None:
        raise UsageError(f"the plan says nothing of how {name} is laid out; stages that train can be handed over")
    option, question = planned.option, planned.searched.question
    if option.beside:
        kinds = {option.place.accelerator.name, *(group.place.accelerator.name for group in option.beside)}
        raise SpecError([two_kinds(name, kinds)])
    return Handover(
        engine=stage.engine,
        run=project.name,
        name=name,
        stage=stage,
        seed=project.seed_of(name),
        layout=option.layout,
        num_nodes=option.num_nodes,
        per_node=option.place.processes if option.place.is_cpu else option.place.per_node,
        accelerator=CPU if option.place.is_cpu else option.place.accelerator.name,
        target_steps=target_steps(stage, question),
        architectures=_architectures(stage, question),
        paths=HandoverPaths(
            work=WORK,
            models={item.role: item.path for item in model_inputs(project, name)},
            data={role: f"{DATA_DIR}/{role}{data_suffix}" for role in data_roles(stage)},
        ),
        rows=rows,
        placement=placement_of(option) if stage.ROLLS_OUT else None,
        keep_last=project.storage.keep_last,
        sources=sources,
    )


def target_steps(stage: Stage, question: StageQuestion) -> int:
    """Optimizer steps, or rollouts."""
    if isinstance(stage, PpoStage):
        return ceil(stage.episodes / stage.rollout_batch)
    return round(question.training.steps)


def model_inputs(project: Project, name: str) -> tuple[ModelInput, ...]:
    """The models that a stage reads: by their name on a hub, or below the directory of the export."""
    stage = project.pipeline[name]
    inputs = []
    for role, names in references(stage).items():
        if stage.REFERENCES[role] != MODEL:
            continue
        spec = project.models.get(names[0])
        hub = None if spec is None else spec.model
        inputs.append(
            ModelInput(
                role=role,
                path=hub if hub is not None and _on_a_hub(hub) else f"{MODELS_DIR}/{role}",
                made_by=names[0] if names[0] in project.pipeline else None,
            )
        )
    return tuple(inputs)


def data_roles(stage: Stage) -> tuple[str, ...]:
    """The roles of a stage that read data."""
    return tuple(role for role in references(stage) if stage.REFERENCES[role] != MODEL)


def _on_a_hub(model: str) -> bool:
    """Return True if a name is that of a model and not of a directory.

    >>> _on_a_hub("meta-llama/Llama-3.1-8B"), _on_a_hub("/models/mine"), _on_a_hub("models/a/b")
    (True, False, False)
    """
    return model.count("/") == 1 and model[0] not in "/.~"


def _architectures(stage: Stage, question: StageQuestion) -> dict[str, Architecture]:
    roles = {role.name: role.architecture for role in question.work.roles}
    by_role = {}
    for role in references(stage):
        for name in _ROLE_OF_SPEC.get(role, ()):
            if name in roles and role not in by_role:
                by_role[role] = roles[name]
    return by_role


def placement_of(option: Option) -> RlPlacement:
    """Return the planned placement of the roles of a reinforcement-learning stage."""
    arrangement: Arrangement = "offloaded" if option.waits_on_host else _ARRANGEMENTS.get(option.placement, "colocated")
    apart = len(option.groups) > 1
    return RlPlacement(
        arrangement=arrangement,
        groups=tuple(_together(group) for group in option.groups) if apart else (),
        generator_tensor=option.generator_tensor,
    )


def _together(group: RoleGroup) -> RolesTogether:
    return RolesTogether(
        roles=(GENERATE,) if group.name == GENERATORS else group.roles,
        num_accelerators=group.num_accelerators,
        layout=group.layout,
    )


_ARRANGEMENTS: Mapping[str, Arrangement] = {"colocated": "colocated", "split": "split", "async": "async"}


SCRIPT, SKYPILOT, SLURM = "run.sh", "resources.yaml", "slurm.sh"
PORT = 29500
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?:(?::-|:\?)[^}\"`$\\]*)?\}")
_SPECIAL = re.compile(r'([\\"$`])')
_PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./-]+$")


def script_of(handover: Handover, rendered: RenderedRun) -> str:
    """Return the script of one node: the engine's command in the directory of the script."""
    several = handover.num_nodes > 1
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
        "exec " + " ".join(_words(rendered.command)),
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


def _words(command: tuple[str, ...]) -> Iterator[str]:
    for word in command:
        yield '"${PYTHON:-python}"' if word == "python" else shell_word(word)


MAPPING, README, PLAN = "mapping.md", "README.md", "plan.json"
PROJECT = "PROJECT"
"""How a page names the directory of the project, which it cannot know: an export is copied elsewhere."""
PLAN_SCHEMA = "charter.handover_plan/1"
GUARANTEES: Mapping[str, str] = {
    "bit_exact": "bit-exact",
    "same_data_order": "same data order",
    "best_effort": "best effort",
}
HOW_WORDS: Mapping[str, str] = {
    "as_is": "written as it is",
    "computed": "computed",
    "same": "what the engine does anyway",
    "charter": "done by Charter",
}
_PLAN_KEYS = (
    "accelerator", "count", "num_nodes", "infra", "region", "market", "price", "layout", "placement", "groups",
    "peak_bytes", "peak_bytes_range", "enough_bytes", "capacity_bytes", "seconds", "gpu_hours", "usd", "node", "engine",
)  # fmt: skip


def mapping_page(handover: Handover, rendered: RenderedRun) -> str:
    """Our field, its value, and where it went."""
    lines = [
        f"# {handover.name}: from charter.yaml to {handover.engine}",
        "",
        "| field | value | where it is | note |",
        "| --- | --- | --- | --- |",
        *(_row(row) for row in rendered.mapping),
    ]
    if rendered.formulas:
        names = ", ".join(f"`{name}`" for name in rendered.formulas)
        lines += ["", f"Formulas, by the names of the hand-computed values of Charter's tests: {names}."]
    return "\n".join(lines) + "\n"


def counts(mapping: Sequence[MappedField]) -> Mapping[str, int]:
    """Fields by what became of them, in the order of `HOW_WORDS`."""
    by_treatment: Counter[str] = Counter(row.how for row in mapping)
    return {how: by_treatment[how] for how in HOW_WORDS if by_treatment[how]}


def plan_page(handover: Handover, planned: StagePlan) -> str:
    """The part of the plan that the configuration comes from: where, how much memory, how long, how much money."""
    content = planned.to_json()
    selected = {key: content[key] for key in _PLAN_KEYS}
    return json_text({"schema": PLAN_SCHEMA, "stage": handover.name, "target_steps": handover.target_steps, **selected})


def readme(
    handover: Handover,
    rendered: RenderedRun,
    engine: TrainingEngine,
    inputs: Sequence[ModelInput],
    planned: StagePlan,
    *,
    notes: Sequence[str] | None = None,
) -> str:
    """Versions, what has to be there, how it is started, what a resumed run can rely on, how it comes back.

    `notes` are what was said of the inputs when they were written; None where they were not.
    """
    there = _inputs_there(handover, notes) if notes is not None else _inputs_wanted(handover, inputs)
    return "\n".join(_readme(handover, rendered, engine, there, planned)) + "\n"


def resume_words(resume: Resume) -> str:
    """`same data order: ... (source)`."""
    return f"{GUARANTEES[resume.guarantee]}: {resume.reason} ({resume.source})"


def _inputs_wanted(handover: Handover, inputs: Sequence[ModelInput]) -> Iterator[str]:
    yield "## What has to be there"
    yield ""
    for item in inputs:
        yield f"- `{item.path}`: the model of the role {item.role}, {_origin(item)}."
    for role, path in handover.paths.data.items():
        yield f"- `{path}`: the rows of the role {role}, in the order in which they are read."
        again = f"charter artifacts export {handover.name} --engine {handover.engine} --data DIR -C {PROJECT}"
        yield f"  `{again}` writes them to DIR when what the stage reads is there; so does a run."


def _inputs_there(handover: Handover, notes: Sequence[str]) -> Iterator[str]:
    yield "## What it reads"
    yield ""
    for role, path in handover.paths.models.items():
        yield f"- `{path}`: the model of the role {role}."
    for role, path in handover.paths.data.items():
        rows = f", {handover.rows[role]:,} of them" if role in handover.rows else ""
        yield f"- `{path}`: the rows of the role {role}, in the order in which they are read{rows}."
    for note in notes:
        yield f"- {note}"


def _readme(
    handover: Handover,
    rendered: RenderedRun,
    engine: TrainingEngine,
    inputs: Iterator[str],
    planned: StagePlan,
) -> Iterator[str]:
    option, unit = planned.option, "rollouts" if handover.placement else "optimizer steps"
    yield f"# {handover.run}: stage {handover.name} in {engine.title}"
    yield ""
    yield f"A stage of kind {handover.stage.kind} for {engine.title} {engine.version} (`{engine.package}`)."
    yield f"`{MAPPING}` says where every field of the stage went. Checked by: {engine.checked_by}."
    yield ""
    yield f"Commands are for this directory; `{PROJECT}` is the one with charter.yaml."
    yield ""
    yield f"- planned on {option.label}: {option.layout_label}"
    yield f"- {handover.target_steps:,} {unit}; memory, time and cost are in `{PLAN}`"
    yield ""
    yield from inputs
    yield ""
    yield "## Start"
    yield ""
    address = "" if rendered.slices else ", with NODE_RANK and MASTER_ADDR set"
    yield f"- by hand: `PYTHON=/path/to/python bash {SCRIPT}`" + (
        f" on each of {handover.num_nodes} nodes{address}" if handover.num_nodes > 1 else ""
    )
    yield f"- SkyPilot: `sky launch {SKYPILOT}`"
    if not rendered.slices:
        yield f"- Slurm: `sbatch {SLURM}`, in this directory"
    for note in rendered.notes:
        yield f"- {note}"
    yield ""
    yield "## When it is interrupted"
    yield ""
    yield f"{resume_words(rendered.resume)}."
    yield ""
    yield "## Bring it back"
    yield ""
    run = f"charter run -C {PROJECT}"
    if handover.num_nodes == 1 or engine.capabilities.runs_on_nodes(handover.stage.kind):
        where = "" if handover.num_nodes == 1 else " --on slurm"
        yield f"With `engine: {engine.name}` in the stage `{run}{where}` starts it, with its record and resume."
    else:
        yield f"`{run}` starts {engine.title} on one node; on several it is started as above."
    yield f"What was started by hand is read with `charter artifacts import DIR --as {handover.name} -C {PROJECT}`."


def _origin(item: ModelInput) -> str:
    if item.made_by is not None:
        return f"made by stage {item.made_by}: `charter artifacts export {item.made_by} {item.path} -C {PROJECT}`"
    return "to be put there" if item.path.startswith("inputs/") else "from the hub, or a directory of that name"


def _row(row: MappedField) -> str:
    where = ", ".join(f"`{_cell(place)}`" for place in row.to) or HOW_WORDS[row.how]
    return f"| `{row.field}` | {_cell(_shown(row.value))} | {where} | {_cell(row.note)} |"


def _shown(value: Any) -> str:
    return "" if value is None else str(getattr(value, "value", shown(value)))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
