"""Everything that can be checked before a run starts, all problems at once."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import product
from types import MappingProxyType

from charter.artifacts.job import JobInput
from charter.data.sandbox import sandbox_problem
from charter.engines import capabilities, handover_engine, handover_engines, render
from charter.engines.common.capabilities import of_kind, one_of, refused_kernels, unsupported
from charter.engines.common.engine import TrainingEngine
from charter.engines.common.request import HandoverPaths, RlPlacement
from charter.engines.installed import ABSENT, PEFT, interpreter_of, stage_versions
from charter.errors import CharterError, DataError, MissingExtraError, Problem, SpecError, how_to_install
from charter.launch.handing_over import JUDGE, data_roles, handover_of, model_roles, placement_of
from charter.launch.machine import (
    CPU,
    NodeFacts,
    asked_accelerators,
    asked_layout,
    frozen_values,
    gpus_here,
    stage_device,
    stage_nodes,
)
from charter.plan.layout_space import uneven_rows
from charter.plan.pipeline_names import Models
from charter.plan.project_plan import read_inputs
from charter.run.graph import Pipeline, PlannedStage, job_of
from charter.run.served import check_served
from charter.spec.architecture import Architecture
from charter.spec.execution import Execution
from charter.spec.graph import inputs_of
from charter.spec.layout import WHOLE_BITS
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Project
from charter.spec.rewards import EXPRESSION, IN_SANDBOX, VERIFIERS
from charter.spec.stage import TRAINS, EvalStage, PrepareStage, is_hosted
from charter.spec.stage_base import NATIVE, Stage, StageResources
from charter.spec.stage_checks import check_runnable

INSTEAD = {
    "pipeline": "remove it; zero: 3 or tensor spread a model that is too large for one accelerator",
    "interleave": "remove it; it cuts the stages of a pipeline",
    "context": "remove it; tensor spreads a long sequence's layers; recompute: full needs less memory for it; "
    "pretrain, sft, preference_model and dpo run with it, without tensor",
    "expert": "remove it; zero: 3 spreads the experts with everything else",
    "tensor": "dropout: 0.0, beside which it runs; or zero: 3, which splits no matrix",
    "sequence_parallel": "remove it; `tensor` works without, and kinds without answers with it",
    "zero": "zero: 2 shards the optimizer and the gradients",
    "offload": "offload: all with zero: 3, optimizer with any, or none",
    "offload_activations": "recompute: full beside it, or remove it",
    "decode_batch": "remove it; ppo with `generator: native` draws so many answers at once",
}
"""What the native engine has instead of what it cannot do (its `Capabilities`)."""


def check_layout(project: Project, name: str, stage: Stage, *, facts: NodeFacts | None = None) -> Iterator[Problem]:
    """Problems of one stage's layout; a kind that does not train has one process and no layout.

    `facts` are those of an engine's node, which decides itself whether it has what is asked for.
    """
    if stage.kind not in TRAINS:
        return
    where = f"pipeline.{name}.resources"
    gpus = gpus_here() if facts is None else facts.gpus
    if stage.resources is not None:
        on_accelerator = stage_device(project, stage, gpus=gpus) != CPU
        able = of_kind(capabilities(NATIVE), stage)
        for field, reason in unsupported(stage.resources, able, on_accelerator=on_accelerator):
            yield Problem(path=f"{where}.{field}", message=reason, hint=INSTEAD[field])
    yield from _attention(project, stage, where, gpus)
    yield from check_accelerators(project, stage, where) if facts is None else ()
    layout = asked_layout(project, stage, gpus=gpus)
    world, degrees = int(layout["world_size"]), {name: int(layout.get(name, 1)) for name in ("tensor", "context")}
    for field, degree in degrees.items():
        if world % degree:
            hint = f"{field} must divide {world}: {one_of(_divisors(world))}"
            yield Problem(path=f"{where}.{field}", message=f"{degree} does not divide the {world} processes", hint=hint)
            return
    serving = project.serving
    if (
        isinstance(stage, PpoStage)
        and world > 1
        and (here := [it for it in stage.judges if it not in serving or not serving[it].is_used])
    ):
        message = f"the judge {here[0]!r}, whose weights are loaded, runs in one process; found {world}"
        hint = "serve it (`serving`), give the stage one accelerator, or a preference model as its reward"
        yield Problem(
            path=f"pipeline.{name}.{'rewards' if stage.rewards else 'reward_from'}", message=message, hint=hint
        )
    yield from _heads(project, name, degrees, where)
    sharing, replicas = world // degrees["tensor"], int(layout.get("replicas", 1))
    if sharing % replicas:
        hint = f"replicas must divide {sharing}: {one_of(_divisors(sharing))}"
        yield Problem(path=f"{where}.replicas", message=f"{replicas} does not divide {sharing} data ranks", hint=hint)
    yield from _batches(name, stage, max(1, sharing // degrees["context"]))


def _attention(project: Project, stage: Stage, where: str, gpus: int) -> Iterator[Problem]:
    resources = stage.resources or StageResources()
    kernel = resources.attention
    for field, reason in refused_kernels(
        stage,
        attention=kernel,
        compiled=bool(resources.compile),
        recompute=resources.recompute,
        offloads_activations=bool(resources.offload_activations),
        splits_sequence=bool(resources.sequence_parallel),
        shares_rows=(resources.context or 1) > 1,
    ):
        yield Problem(path=f"{where}.{field}", message=reason, hint="see docs/concepts/training.md")
    if kernel == "flash_attention_2" and stage_device(project, stage, gpus=gpus) == "cpu":
        message = "flash_attention_2 runs on CUDA devices only; this stage runs on processors"
        yield Problem(path=f"{where}.attention", message=message, hint="attention: sdpa or eager")


def _heads(project: Project, name: str, degrees: Mapping[str, int], where: str) -> Iterator[Problem]:
    """Attention heads that processes cannot share, of the models a stage builds on, where the file says."""
    for model, (field, degree) in product(sorted(_models_under(project, name)), degrees.items()):
        if (sizes := project.models[model].architecture) is None:
            continue
        heads, kv_heads = sizes.num_heads, sizes.kv_heads
        if not sizes.divides_heads(degree, copies=field == "context"):
            both = math.gcd(heads, kv_heads)
            message = f"{heads} attention heads ({kv_heads} of keys) of {model} cannot be split over {degree} processes"
            yield Problem(path=f"{where}.{field}", message=message, hint=f"{field}: {one_of(_divisors(both))}")


def _models_under(project: Project, name: str) -> set[str]:
    """The models that a stage is made from, through any number of stages."""
    names: set[str] = set()
    for source in (source for sources in inputs_of(project, name).values() for source in sources):
        names |= {source} if source in project.models else set()
        names |= _models_under(project, source) if source in project.pipeline else set()
    return names


def check_accelerators(project: Project, stage: Stage, where: str) -> Iterator[Problem]:
    """Accelerators that this machine does not have."""
    kind, per_node = asked_accelerators(project, stage)
    count, here = per_node * stage_nodes(project, stage), gpus_here()
    if kind in ("", CPU) or count <= here:
        return
    instead = f"accelerators: {kind}:{here}, or " if here else "accelerators: "
    yield Problem(
        path=f"{where}.accelerators",
        message=f"{kind}:{count} asks for {count} accelerators, this machine has {here}",
        hint=f"{instead}cpu:{count} for processes on its processors; `charter plan` needs none of them",
    )


def _batches(name: str, stage: Stage, data: int) -> Iterator[Problem]:
    """Every data rank takes the same number of rows of a batch; the answers to one prompt stay together."""
    for field, message, hint in uneven_rows(stage, data):
        yield Problem(path=f"pipeline.{name}.{field}", message=message, hint=hint)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


_NATIVE = "`engine: native`, which trains and merges adapters"
_SOMEWHERE = "/somewhere"
_INSTEAD = "take one that is, or remove `engine`; `charter artifacts export` renders it for an engine elsewhere"


def check_hosted(
    pipeline: Pipeline,
    stage: PlannedStage,
    *,
    facts: NodeFacts | None,
    execution: Execution | None = None,
) -> Iterator[Problem]:
    """Problems of one stage that another engine is to compute.

    `facts` are those of an engine's node, `execution` what a plan has decided.
    """
    where, project, name = f"pipeline.{stage.name}", pipeline.project, stage.spec.engine
    if name not in {engine.name for engine in handover_engines()}:
        names = ", ".join(engine.name for engine in handover_engines())
        message = f"stages can be planned for the engine {name!r}, not handed over to it; the engines are {names}"
        yield Problem(path=f"{where}.engine", message=message, hint=_INSTEAD)
        return
    engine = handover_engine(name)
    title = engine.title
    yield from check_nodes(project, stage.name, stage.spec)
    yield from check_one_kind(stage.name, stage.spec, execution)
    gpus = None if facts is None else facts.gpus
    on_processors = stage_device(project, stage.spec, gpus=gpus) == "cpu"
    if not engine.has_processors and on_processors:
        message = f"{title} needs accelerators, and this stage runs on processors"
        yield Problem(path=f"{where}.engine", message=message, hint=_INSTEAD)
    yield from _check_adapter(stage, engine)
    yield from _check_judges(project, stage, on_processors=on_processors)
    if facts is None:
        yield from check_accelerators(project, stage.spec, f"{where}.resources")
    yield from _refused(pipeline, stage, facts, placement_of(execution))


def _check_judges(project: Project, stage: PlannedStage, *, on_processors: bool) -> Iterator[Problem]:
    """Problems of judges that an engine's reward function asks: they are served, and not on its accelerators."""
    path = f"pipeline.{stage.name}.rewards"
    for name in [item.name for item in stage.inputs.get(JUDGE, ())]:
        serving = project.serving.get(name)
        if serving is None or not serving.is_used:
            message = f"the judge {name!r} is asked by requests beside the engine, and nothing serves it"
            hint = f"`serving: {{{name}: {{endpoint: URL}}}}`, or `engine: native`"
            yield Problem(path=path, message=message, hint=hint)
        elif serving.pool is not None and not on_processors:
            message = f"the servers of the judge {name!r} need accelerators, and the engine fills those of the stage"
            hint = f"servers that run elsewhere, `serving: {{{name}: {{endpoint: URL}}}}`, or `engine: native`"
            yield Problem(path=path, message=message, hint=hint)


def check_nodes(project: Project, name: str, stage: Stage) -> Iterator[Problem]:
    """Problem of a stage on several nodes, where Charter starts its engine on one; needs nothing of them to be seen."""
    if not is_hosted(stage) or (nodes := stage_nodes(project, stage)) == 1:
        return
    engine = handover_engine(stage.engine)
    if engine.capabilities.runs_on_nodes(stage.kind):
        return
    message = f"this version of Charter starts this kind of stage by {engine.title} on one node; found {nodes}"
    hint = "`charter artifacts export` renders the command that each of several nodes runs"
    yield Problem(path=f"pipeline.{name}.resources.num_nodes", message=message, hint=hint)


def check_one_kind(name: str, stage: Stage, execution: Execution | None) -> Iterator[Problem]:
    """Problem of a stage whose roles are planned on two kinds of accelerators: an engine's configuration has one."""
    if execution is None or not is_hosted(stage):
        return
    kinds = {role.accelerator or execution.accelerator for role in execution.roles.values()}
    if len(kinds) > 1:
        yield two_kinds(name, kinds)


def two_kinds(name: str, kinds: Iterable[str]) -> Problem:
    """Return the problem of a stage that is planned on these kinds of accelerators at once."""
    return Problem(
        path=f"pipeline.{name}.resources",
        message=f"planned on two kinds of accelerators at once ({', '.join(sorted(kinds))}), which no configuration "
        "can tell",
        hint="name one in resources.accelerators of the stage",
    )


def check_hosted_packages(project: Project, todo: Sequence[PlannedStage]) -> None:
    """Raise where an interpreter lacks the engine that a stage names."""
    for stage in todo:
        if not is_hosted(stage.spec):
            continue
        name = stage.spec.engine
        engine, python = handover_engine(name), interpreter_of(project.engines, name)
        versions = stage_versions(project.engines, stage.spec)
        wanted = {engine.package: f"{engine.package}=={engine.version}", PEFT: PEFT}
        if engine.checkout and versions[engine.package] == ABSENT:
            raise MissingExtraError(
                f"stage {stage.name} names the engine {name}, whose scripts are run from a checkout that is not there\n"
                f"  git clone https://{engine.package}, and in charter.yaml "
                f"`engines: {{{name}: {{python: PATH, directory: CHECKOUT}}}}`"
            )
        if lacking := [text for package, text in wanted.items() if versions.get(package) == ABSENT]:
            names = " and ".join(text.partition("==")[0] for text in lacking)
            why = " and an adapter" if PEFT in versions else ""
            raise MissingExtraError(
                f"stage {stage.name} names the engine {name}{why}, and {python} does not have {names}: "
                f"{python} -m pip install {' '.join(lacking)}\n  or give the interpreter of the "
                f"environment that has it: `engines: {{{name}: {{python: PATH}}}}` in charter.yaml"
            )


def _check_adapter(stage: PlannedStage, engine: TrainingEngine) -> Iterator[Problem]:
    """Adapters that Charter cannot merge when the engine has left them apart from their base model."""
    adapter, where, title = getattr(stage.spec, "adapter", None), f"pipeline.{stage.name}.adapter", engine.title
    if adapter is None:
        return
    if not engine.has_peft:
        others = ", ".join(item.name for item in handover_engines() if item.has_peft)
        message = f"{title} leaves an adapter apart from its base model, which this version of Charter cannot take back"
        hint = f"{_NATIVE}, one of {others} too; `charter artifacts export` renders it for others"
        yield Problem(path=where, message=message, hint=hint)
    elif adapter.base_bits != WHOLE_BITS:
        message = f"this version of Charter merges what {title} has trained over a base in 16 bits; found base_bits "
        hint = f"base_bits: {WHOLE_BITS}, or {_NATIVE} over such a base; `charter artifacts export` renders the stage"
        yield Problem(path=f"{where}.base_bits", message=f"{message}{adapter.base_bits}", hint=hint)


def _refused(
    pipeline: Pipeline, stage: PlannedStage, facts: NodeFacts | None, placement: RlPlacement | None
) -> Iterator[Problem]:
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
                num_nodes=1 if facts is None else stage_nodes(pipeline.project, stage.spec),
                placement=placement,
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
        if stage.spec.REFERENCES.get(role) == "model" and items and role != JUDGE
    }


NO_EXECUTIONS: Mapping[str, Execution] = MappingProxyType({})
RUN_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "sqlalchemy")
LEDGER_PACKAGES = ("sqlalchemy", "filelock")
"""What the supervisor itself needs, where stages run elsewhere."""
_PAIR_ROLES = frozenset(
    {
        ("judge", "pairs"),
        ("preference_model", "data"),
        ("dpo", "data"),
        ("label", "candidates"),
        ("label", "demonstrations"),
    }
)
_TEXT_ROLES = frozenset({"tokenizer"})
_PROMPT_ROLES = frozenset({"prompts", "refusal_prompts", "benign_prompts"})
_EVAL_PAIR_ROLES = frozenset({"pairs", "independent_pairs", "probes"})
ROWS = "rows"
"""How a stage reads data of which it does not matter what it is."""


def check_before_start(
    pipeline: Pipeline,
    todo: Sequence[PlannedStage],
    *,
    modules: Mapping[str, str],
    facts_of: Callable[[str], NodeFacts | None] = lambda stage: None,
    executions: Mapping[str, Execution] = NO_EXECUTIONS,
) -> None:
    """Raise one error with everything that would stop these stages.

    Configuration, pins, files and their content. `facts_of` says what the nodes of the launcher are, `executions` what
    was planned, by stage.
    """
    config = [*_unsupported(pipeline, modules), *_reward_models(todo), *_pins(todo)]
    config += [problem for stage in todo for problem in check_runnable(stage.name, stage.spec)]
    for stage in todo:
        facts = facts_of(stage.name)
        if is_hosted(stage.spec):
            planned = executions.get(stage.name)
            config += check_hosted(pipeline, stage, facts=facts, execution=planned)
        else:
            config += check_layout(pipeline.project, stage.name, stage.spec, facts=facts)
    config += check_served(pipeline.project, todo)
    names = [name for stage in todo for name in stage.outside_inputs]
    names += [item.name for stage in todo for item in stage.inputs.get("tokenizer", ())]
    data = pipeline.inputs.problems_of(names)
    data += _unreadable(pipeline, todo, skip={problem.path for problem in data})
    if config:
        raise SpecError([*config, *data])
    if data:
        raise DataError("\n".join(str(problem) for problem in data))
    check_hosted_packages(pipeline.project, todo)
    _check_adapters(todo)
    _check_near_duplicates(todo)
    _check_harness(todo)
    _check_rewards(todo)


def check_packages(packages: Sequence[str] = RUN_PACKAGES) -> None:
    """Raise when a package that stages need is not installed."""
    if missing := [name for name in packages if find_spec(name) is None]:
        raise MissingExtraError(
            f"running stages needs {', '.join(missing)}: {how_to_install('run')} (planning works without it)"
        )


def _unsupported(pipeline: Pipeline, modules: Mapping[str, str]) -> list[Problem]:
    """Stages of kinds that can be planned but not run yet; the whole pipeline is refused, done or not."""
    return [
        Problem(
            path=f"pipeline.{stage.name}",
            message=f"stages of kind {stage.spec.kind} cannot be run by this version of Charter",
            hint="`charter plan` plans the pipeline as it is; to run the rest, remove the stage",
        )
        for stage in pipeline.stages.values()
        if not stage.spec.RUNS or stage.spec.kind not in modules
    ]


def _check_adapters(todo: Sequence[PlannedStage]) -> None:
    """Raise where a stage trains an adapter here and the library that makes adapters is not installed."""
    here = [stage for stage in todo if not is_hosted(stage.spec)]
    wanting = [stage.name for stage in here if getattr(stage.spec, "adapter", None) is not None]
    if wanting and find_spec("peft") is None:
        raise MissingExtraError(
            f"training the adapter of {', '.join(wanting)} needs peft: {how_to_install('adapters')} "
            "(or remove `adapter` to train all weights; `charter plan` shows what that needs)"
        )


def _check_near_duplicates(todo: Sequence[PlannedStage]) -> None:
    """Raise where a stage looks for near duplicates and the library that finds them is not installed."""
    if any(isinstance(stage.spec, PrepareStage) and stage.spec.near_duplicates is not None for stage in todo):
        from charter.feedback.prepare_rows import check_library

        check_library()


def _check_harness(todo: Sequence[PlannedStage]) -> None:
    """Raise where a stage runs tasks of lm-evaluation-harness and that is not installed."""
    wanting = [stage.name for stage in todo if isinstance(stage.spec, EvalStage) and "lm_eval" in stage.spec.suites]
    if wanting and find_spec("lm_eval") is None:
        raise MissingExtraError(
            f"the suite lm_eval of {', '.join(wanting)} needs lm-evaluation-harness: pip install lm-eval"
        )


def called_functions(stages: Mapping[str, Stage]) -> dict[str, str]:
    """Return the functions that rewards and environments of stages call, each with the name of a stage that does."""
    calls: dict[str, str] = {}
    for name, stage in stages.items():
        environment = getattr(stage, "environment", None)
        named = [*(item.call for item in getattr(stage, "rewards", ())), *(environment.calls if environment else ())]
        calls |= {call: name for call in named if call is not None}
    return calls


def _check_rewards(todo: Sequence[PlannedStage]) -> None:
    """Raise where programs of a model would run without a sandbox, or expressions are compared without the library."""
    calls = called_functions({stage.name: stage.spec for stage in todo})
    for call in IN_SANDBOX:
        if call in calls and (problem := sandbox_problem()):
            raise MissingExtraError(f"{calls[call]}: {problem}")
    if EXPRESSION in calls and find_spec("math_verify") is None:
        raise MissingExtraError(f"{EXPRESSION} of {calls[EXPRESSION]} needs math-verify: {how_to_install('math')}")
    for call, stage in calls.items():
        if call.startswith(VERIFIERS) and find_spec("verifiers") is None:
            raise MissingExtraError(f"{call} of {stage} needs verifiers: {how_to_install('verifiers')}")


def _reward_models(todo: Sequence[PlannedStage]) -> list[Problem]:
    """Scores come from preference models that the pipeline trained; those of elsewhere are planned only."""
    return [
        Problem(
            path=f"pipeline.{stage.name}.{role}",
            message=f"this version of Charter plans with the reward model {item.name!r} but cannot load it",
            hint="name a preference_model stage, which trains one here",
        )
        for stage in todo
        for role, items in stage.inputs.items()
        for item in items
        if item.model is not None and item.model.reward_model
    ]


def _pins(todo: Sequence[PlannedStage]) -> list[Problem]:
    problems = []
    for stage in todo:
        pin = stage.spec.expected_fingerprint
        if pin is not None and not (stage.kept or (len(pin) >= 8 and stage.asked_fingerprint.startswith(pin))):
            problems.append(
                Problem(
                    path=f"pipeline.{stage.name}.expected_fingerprint",
                    message=f"expected {pin}, but the stage as written has {stage.asked_fingerprint}, "
                    "and no finished result has the expected one",
                    hint="restore what was changed, or remove the pin",
                )
            )
    return problems


def _unreadable(pipeline: Pipeline, todo: Sequence[PlannedStage], *, skip: set[str]) -> list[Problem]:
    """Data files that do not hold what the stages read from them; each file and way of reading once."""
    by_file: dict[tuple[str, str], Problem] = {}
    seen: set[tuple[str, str]] = set()
    for stage in todo:
        for role, items in stage.inputs.items():
            for item in items:
                way = _way(stage.spec.kind, role)
                key = (item.name, way)
                if item.source != "data" or item.data is None or item.path is None or key in seen:
                    continue
                seen.add(key)
                if f"data.{item.name}.path" in skip:
                    continue
                try:
                    _read(item, way)
                except MissingExtraError:
                    raise
                except CharterError as error:
                    by_file[key] = Problem(path=f"data.{item.name} (read by {stage.name})", message=str(error))
    return list(by_file.values())


def _way(kind: str, role: str) -> str:
    """Return the form in which a stage reads a data set: rows, pairs, questions, prompts, texts or conversations."""
    if kind == "prepare":
        return ROWS
    if (kind, role) in _PAIR_ROLES or (kind == "eval" and role in _EVAL_PAIR_ROLES):
        return "pairs"
    if (kind, role) == ("eval", "questions"):
        return "questions"
    if role in _PROMPT_ROLES:
        return "prompts"
    if (kind, role) == ("critique", "demonstrations"):
        return "critiques"
    return "texts" if role in _TEXT_ROLES or kind == "pretrain" else "conversations"


def _read(item: JobInput, way: str) -> None:
    from charter.data import dataset
    from charter.feedback.prepare_rows import count_candidates

    if way == ROWS:
        count_candidates(item)
        return
    read: Callable[..., Iterable[object]] = {
        "conversations": dataset.each_conversation,
        "critiques": dataset.read_critiques,
        "pairs": dataset.read_pairs,
        "prompts": dataset.each_prompt,
        "questions": dataset.read_questions,
        "texts": dataset.each_text,
    }[way]
    if not sum(1 for _ in read(item.location(), item.data)):
        raise DataError(f"{item.location()} holds no {way}; the stage would have nothing to work on")
