"""Stages as jobs of services that Charter does not run on itself: SkyPilot, SageMaker, Vertex AI, Azure ML, Kubeflow.

Here is the table of them, from which the texts of a project are made, by the name of the file. `task` is what each is
given for one stage; one module per target has the fields of its schema. The texts are rendered and checked against the
services' schemas, and people submit them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from charter.catalog import accelerators
from charter.catalog.price_book import offers
from charter.errors import InfeasibleError, UsageError
from charter.launch.job import safe_name, yaml_text
from charter.launch.machine import CPU, asked_accelerators, stage_nodes
from charter.launch.rendered import managed, skypilot
from charter.launch.rendered.task import HostedModel, RenderedTask, ServiceInstance, json_text, needed
from charter.launch.tags import tags_of
from charter.spec.graph import execution_order, stage_inputs
from charter.spec.project import Project, Serving
from charter.spec.stage import references
from charter.spec.stage_base import Stage

Body = Mapping[str, Any] | str
"""Of a file: what stands in it as JSON or YAML, or its text."""


@dataclass(frozen=True, kw_only=True)
class Managed:
    """A managed service: a stage is a job on one machine of its cloud, and a served model an endpoint."""

    cloud: str
    """In the price book."""
    without_accelerator: str
    """Instance type with 16 CPUs and 64 GiB, for stages on processors: the price book has no rows of those."""
    job: Callable[[Project, RenderedTask], Body]
    job_file: str
    endpoint: Callable[[Project, HostedModel], Mapping[str, Body]]
    prefix: str = ""
    """Of the service before the cloud's own instance type."""
    accelerators: Mapping[str, str] | None = None
    """Those that the service has names for, where it wants them named."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A service that is given texts."""

    name: str
    """In `--on` and `resources.infra`."""
    title: str
    several_nodes: str
    """Refusal of a stage that asks for more than one machine, to be filled in."""
    managed: Managed | None = None
    pipeline: Callable[[Project, Sequence[RenderedTask]], Mapping[str, Body]] | None = None
    submit: Callable[[Project, Path, Mapping[str, str]], str] | None = None
    """Hand over the texts and return the answer; None where people do that."""


LONGEST_SECONDS = 5 * 24 * 3600
"""Of one job where the file gives no time limit: SageMaker's default quota for a training job."""
EXPORTS = "exports"
"""Where `charter artifacts export STAGE` of a hosted stage is expected, beneath the project's storage."""
_ONE_MACHINE = (
    "{stage}: {title} is given stages of one machine, and this one asks for {nodes}\n"
    "  use a scheduler that joins nodes: --on slurm, ray or kubernetes"
)
_TABLE = (
    Target(
        name="skypilot",
        title="SkyPilot",
        several_nodes="stage {stage} asks for {nodes} nodes; on {title} a stage runs on one: machines that it rents "
        "share no disk, which the processes of a stage need\n"
        "  set num_nodes: 1, or run on slurm, ray or kubernetes, which give the nodes one file system",
        pipeline=skypilot.pipeline,
        submit=skypilot.submit,
    ),
    Target(
        name="sagemaker",
        title="Amazon SageMaker AI",
        several_nodes=_ONE_MACHINE,
        managed=Managed(
            cloud="aws",
            without_accelerator="ml.m5.4xlarge",
            job=managed.training_job,
            job_file="CreateTrainingJob.json",
            endpoint=managed.sagemaker_endpoint,
            prefix="ml.",
        ),
        pipeline=managed.sagemaker_pipeline,
    ),
    Target(
        name="vertex",
        title="Google Vertex AI",
        several_nodes=_ONE_MACHINE,
        managed=Managed(
            cloud="gcp",
            without_accelerator="n2-standard-16",
            job=managed.custom_job,
            job_file="customJobs.create.json",
            endpoint=managed.vertex_endpoint,
            accelerators=managed.VERTEX_ACCELERATORS,
        ),
        pipeline=managed.vertex_pipeline,
    ),
    Target(
        name="azureml",
        title="Azure Machine Learning",
        several_nodes=_ONE_MACHINE,
        managed=Managed(
            cloud="azure",
            without_accelerator="Standard_D16s_v5",
            job=managed.command_job,
            job_file="job.yaml",
            endpoint=managed.azure_endpoint,
        ),
    ),
    Target(
        name="kfp",
        title="Kubeflow Pipelines",
        several_nodes="{stage}: a step of {title} is one pod, and this stage asks for {nodes} nodes\n"
        "  use charter run --on kubernetes, which makes a JobSet of them",
        pipeline=managed.pipeline,
    ),
)
TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _TABLE})
"""Services whose texts are rendered and checked."""


def texts_for(
    project: Project, name: str, stages: Sequence[str] = (), *, words: tuple[str, ...] = ()
) -> dict[str, str]:
    """Return what would be sent, by the name of the file: endpoints, one job per stage, their pipeline.

    Only the `stages`, where some are named: what they read is done already. `words` are said to every `charter run`.
    """
    target, files = TARGETS[name], dict[str, Body]()
    managed = target.managed
    if managed:
        hosted = (name for name, serving in project.serving.items() if not _answers_already(project, serving))
        for model in [hosted_model(project, name, target) for name in hosted]:
            files |= {f"{model.name}.{part}": body for part, body in managed.endpoint(project, model).items()}
    names = chosen(project, stages)
    tasks = [task_of(project, stage, target, words=words) for stage in names]
    _refuse_namesakes(tasks, target)
    tasks = [replace(task, after=tuple(name for name in task.after if name in names)) for task in tasks]
    if managed:
        files |= {f"{task.name}.{managed.job_file}": managed.job(project, task) for task in tasks}
    if target.pipeline:
        files |= target.pipeline(project, tasks)
    return {name: _text(name, body) for name, body in files.items()}


def _refuse_namesakes(tasks: Sequence[RenderedTask], target: Target) -> None:
    """Refuse stages that would have one name there, of which all but the last would be missing."""
    names = dict[str, str]()
    for task in tasks:
        for name in (task.name, skypilot.task_name(task.stage)):
            other = names.setdefault(name, task.stage)
            if other != task.stage:
                raise UsageError(
                    f"the stages {other} and {task.stage} would both be called {name} on {target.title}, which takes "
                    "fewer letters\n  rename one of them, or give the project a shorter name"
                )


def _text(name: str, body: Body) -> str:
    if isinstance(body, str):
        return body
    return json_text(body) if name.endswith(".json") else yaml_text(body)


def printed(texts: Mapping[str, str]) -> str:
    """Return all texts as one, each behind the name of its file.

    >>> print(printed({"a.json": "{}\\n", "b.json": "[]\\n"}), end="")
    # a.json
    {}
    <BLANKLINE>
    # b.json
    []
    """
    return "\n".join(f"# {name}\n{text}" for name, text in texts.items())


def chosen(project: Project, stages: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the stages that are named, or all, in the order in which they run."""
    order = execution_order(project)
    if unknown := [name for name in stages if name not in order]:
        raise UsageError(f"the project has no stage {', '.join(unknown)}; it has {', '.join(order)}")
    return tuple(name for name in order if not stages or name in stages)


def task_of(project: Project, name: str, target: Target, *, words: tuple[str, ...] = ()) -> RenderedTask:
    """Return the task of a stage; what the service cannot do is refused."""
    stage, managed = project.pipeline[name], target.managed
    if (nodes := stage_nodes(project, stage)) > 1:
        raise UsageError(target.several_nodes.format(stage=name, title=target.title, nodes=nodes))
    image = needed(project, "image", target.name) if managed else ""
    machine = _machine(project, stage, target)
    if managed:
        _refuse_keys(project, target)
    own_spot = stage.resources.use_spot if stage.resources else None
    return RenderedTask(
        stage=name,
        name=safe_name(f"{project.name}-{name}"),
        after=_waits_for(project, name),
        image=image,
        machine=machine,
        environment=project.launch.environment,
        tags=tags_of(project, run=project.name, stage=name),
        longest_seconds=math.ceil(project.launch.time_limit or LONGEST_SECONDS),
        use_spot=(project.resources.use_spot if own_spot is None else own_spot) is True,
        words=words,
    )


def _answers_already(project: Project, serving: Serving) -> bool:
    """Return True if a model is only reached by address: no image is named that would serve it."""
    return serving.is_by_address and project.launch.managed.serving_image is None


def hosted_model(project: Project, name: str, target: Target) -> HostedModel:
    """Return the endpoint of one model or stage that the project asks over HTTP, on a machine like its stage's."""
    serving, source, weights = project.serving[name], name, None
    is_stage = name in project.pipeline
    if is_stage:
        exports = project.launch.managed.exports or f"{needed(project, 'storage', target.name).rstrip('/')}/{EXPORTS}"
        weights = f"{exports.rstrip('/')}/{name}"
    elif public := project.models[name].model:
        source = public
    else:
        raise UsageError(
            f"{name} has no weights to serve: it is trained from scratch\n  serve the stage that trains it"
        )
    return HostedModel(
        name=safe_name(f"{project.name}-{name}"),
        served_as=serving.model or name,
        source=source,
        weights=weights,
        image=needed(project, "serving_image", target.name),
        machine=_machine(project, _asking_stage(project, name), target),
        tags=tags_of(project, run=project.name, stage=name if is_stage else None),
    )


def _waits_for(project: Project, name: str) -> tuple[str, ...]:
    """Return the stages that one waits for where somebody else starts it: those that it reads.

    Where the file lets only one stage run at a time (`max_parallel_stages: 1`, the default) it also waits for the one
    before it: two machines that run one project at a time would otherwise both write its ledger.
    """
    inputs = stage_inputs(project, name)
    if project.resources.max_parallel_stages > 1:
        return inputs
    order = execution_order(project)
    return tuple(dict.fromkeys((*inputs, *order[: order.index(name)][-1:])))


def _machine(project: Project, stage: Stage, target: Target) -> ServiceInstance:
    """Return the instance that the file names, else the smallest with at least the accelerators that are asked for."""
    name, count = asked_accelerators(project, stage)
    managed, own = target.managed, project.launch.managed.instance_type
    if name in ("", CPU, "any"):
        return ServiceInstance(instance_type=own or (managed.without_accelerator if managed else ""))
    accelerator = accelerators.get(name).name
    if managed is None:
        return ServiceInstance(instance_type="", accelerator=accelerator, count=count)
    is_named = managed.accelerators is None or accelerator in managed.accelerators
    if own and not is_named:
        names = ", ".join((managed.accelerators or {}).values())
        raise UsageError(f"{target.title} has no name for {accelerator}\n  ask for one that it names: {names}")
    if own:
        return ServiceInstance(instance_type=own, accelerator=accelerator, count=count)
    sold = [offer for offer in offers(accelerator, cloud=managed.cloud) if offer.whole_machine]
    fitting = [offer for offer in sold if offer.count >= count and is_named]
    if not fitting:
        most = max((offer.count for offer in sold), default=0)
        raise InfeasibleError(
            f"{target.name} has no machine with {count} x {accelerator} in the price book"
            + (f"; the largest has {most}" if most else "")
            + "\n  ask for fewer, or name one: launch.managed.instance_type"
        )
    best = min(fitting, key=lambda offer: (offer.count, offer.vcpus or 0, offer.instance_type))
    return ServiceInstance(instance_type=managed.prefix + best.instance_type, accelerator=accelerator, count=best.count)


def _refuse_keys(project: Project, target: Target) -> None:
    """Refuse keys that stand in variables: they cannot travel in the text of a job."""
    used = (serving for serving in project.serving.values() if serving.is_used)
    keys = [serving.api_key for serving in used if (serving.api_key or "").startswith("env:")]
    if keys:
        raise UsageError(
            f"{', '.join(map(str, keys))} would have to stand in the text of the job: {target.name} takes no "
            "references to secrets\n  let the job's role read it, and name it as file:PATH"
        )


def _asking_stage(project: Project, name: str) -> Stage:
    """Return the stage itself, or the first one that asks the model, which was planned on its accelerators."""
    if name in project.pipeline:
        return project.pipeline[name]
    users = (stage for stage in project.pipeline.values() for names in references(stage).values() if name in names)
    stage = next(users, None)
    if stage is None:
        raise UsageError(f"no stage asks {name}, so that nothing says which machine it needs")
    return stage
