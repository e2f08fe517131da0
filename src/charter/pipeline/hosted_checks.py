"""Whether stages of other engines can be started: interpreter, packages, and what an engine cannot express."""

from collections.abc import Iterator, Sequence

from charter.errors import CharterError, MissingExtraError, Problem, SpecError
from charter.handover.engines import HANDOVER_ENGINES, handover_engine, render
from charter.handover.request import HandoverPaths
from charter.launch.handing_over import data_roles, handover_of, model_roles
from charter.launch.hosted_engine import ABSENT, PEFT, WITH_PEFT, interpreter_of, package_of, stage_versions
from charter.launch.machine import NodeFacts, frozen_values, stage_device, stage_nodes
from charter.pipeline.graph import Pipeline, PlannedStage, job_of
from charter.pipeline.layout_checks import check_accelerators
from charter.plan.inputs import read_inputs
from charter.plan.work.roles import Models
from charter.spec.architecture import Architecture
from charter.spec.layout import WHOLE_BITS
from charter.spec.project import Project
from charter.spec.stage import is_hosted

_NATIVE = "`engine: native`, which trains and merges adapters"
ON_PROCESSORS = ("trl", "accelerate", "deepspeed")
"""Engines that compute without an accelerator."""
_SOMEWHERE = "/somewhere"
_INSTEAD = "take one that is, or remove `engine`; `charter export` renders a stage for an engine elsewhere"


def check_hosted(pipeline: Pipeline, stage: PlannedStage, *, facts: NodeFacts | None) -> Iterator[Problem]:
    """Problems of one stage that another engine is to compute; `facts` are those of an engine's node."""
    where, project, name = f"pipeline.{stage.name}", pipeline.project, stage.spec.engine
    if name not in {engine.name for engine in HANDOVER_ENGINES}:
        known = ", ".join(engine.name for engine in HANDOVER_ENGINES)
        message = f"stages can be planned for the engine {name!r}, not handed over to it; the engines are {known}"
        yield Problem(path=f"{where}.engine", message=message, hint=_INSTEAD)
        return
    title = handover_engine(name).title
    if (nodes := stage_nodes(project, stage.spec)) > 1:
        message = f"this version of Charter starts {title} on one node; found {nodes}"
        hint = "`charter export` renders the command that each of several nodes runs"
        yield Problem(path=f"{where}.resources.num_nodes", message=message, hint=hint)
    gpus = None if facts is None else facts.gpus
    if name not in ON_PROCESSORS and stage_device(project, stage.spec, gpus=gpus) == "cpu":
        message = f"{title} needs accelerators, and this stage runs on processors"
        yield Problem(path=f"{where}.engine", message=message, hint=_INSTEAD)
    yield from _check_adapter(stage, title)
    if facts is None:
        yield from check_accelerators(project, stage.spec, f"{where}.resources")
    yield from _refused(pipeline, stage, facts)


def check_hosted_packages(project: Project, todo: Sequence[PlannedStage]) -> None:
    """Raise where an interpreter lacks the engine that a stage names."""
    for stage in todo:
        if not is_hosted(stage.spec):
            continue
        name = stage.spec.engine
        engine, python = handover_engine(name), interpreter_of(project.engines, name)
        versions = stage_versions(project.engines, stage.spec)
        wanted = {package_of(name): f"{engine.package}=={engine.version}", PEFT: PEFT}
        if lacking := [text for package, text in wanted.items() if versions.get(package) == ABSENT]:
            names = " and ".join(text.partition("==")[0] for text in lacking)
            why = " and an adapter" if PEFT in versions else ""
            raise MissingExtraError(
                f"stage {stage.name} names the engine {name}{why}, and {python} does not have {names}: "
                f"{python} -m pip install {' '.join(lacking)}\n  or give the interpreter of the "
                f"environment that has it: `engines: {{{name}: {{python: PATH}}}}` in charter.yaml"
            )


def _check_adapter(stage: PlannedStage, title: str) -> Iterator[Problem]:
    """Adapters that Charter cannot merge when the engine has left them apart from their base model."""
    adapter, where = getattr(stage.spec, "adapter", None), f"pipeline.{stage.name}.adapter"
    if adapter is None:
        return
    if stage.spec.engine not in WITH_PEFT:
        message = f"{title} leaves an adapter apart from its base model, which this version of Charter cannot take back"
        hint = f"{_NATIVE}, one of {', '.join(WITH_PEFT)} too; `charter export` renders a stage for an engine elsewhere"
        yield Problem(path=where, message=message, hint=hint)
    elif adapter.base_bits != WHOLE_BITS:
        message = f"this version of Charter merges what {title} has trained over a base in 16 bits; found base_bits "
        hint = f"base_bits: {WHOLE_BITS}, or {_NATIVE} over such a base; `charter export` renders the stage"
        yield Problem(path=f"{where}.base_bits", message=f"{message}{adapter.base_bits}", hint=hint)


def _refused(pipeline: Pipeline, stage: PlannedStage, facts: NodeFacts | None) -> Iterator[Problem]:
    """Fields that the engine cannot express: the stage is rendered as it is asked for, and nothing is written."""
    try:
        job = job_of(stage, pipeline.project, frozen_values(pipeline.project, stage.spec, facts))
        render(
            handover_of(
                job,
                paths=HandoverPaths(
                    work=_SOMEWHERE,
                    models={role: f"{_SOMEWHERE}/{role}" for role in model_roles(job)},
                    data={role: f"{_SOMEWHERE}/{role}.jsonl" for role in data_roles(job)},
                ),
                architectures=_architectures(pipeline, stage),
                target_steps=getattr(stage.spec, "steps", None) or 1,
            )
        )
    except SpecError as error:
        yield from error.problems
    except MissingExtraError:
        raise
    except CharterError as error:
        yield Problem(path=f"pipeline.{stage.name}.engine", message=str(error))


def _architectures(pipeline: Pipeline, stage: PlannedStage) -> dict[str, Architecture]:
    models = Models(project=pipeline.project, architectures=read_inputs(pipeline.project, pipeline.root).architectures)
    return {
        role: models.architecture(items[0].name)
        for role, items in stage.inputs.items()
        if stage.spec.REFERENCES.get(role) == "model" and items
    }
