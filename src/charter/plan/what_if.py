"""Short questions about a plan: values put over charter.yaml, and other engines on the accelerators of a stage."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from charter.catalog.accelerators import CPU, parse_request
from charter.engines import capabilities, engine_names, handover_engines, rl_engines
from charter.engines.common.capabilities import refused_fields, refused_rewards
from charter.engines.hardware import hardware_refusal
from charter.errors import UsageError
from charter.plan.knowledge import format_refusal
from charter.plan.layout_search import NodeGroup, chosen_seconds, options_among, search_sites, training_options
from charter.plan.option import EngineLayout, Option, StageQuestion
from charter.plan.plan import Plan
from charter.plan.rl_search import rl_options
from charter.spec.project import Project
from charter.spec.stage_base import NATIVE

# -------- `gpus=256`, `market=spot`: short questions about a plan, as values that are put over charter.yaml.

MARKETS = {"spot": "true", "on_demand": "false", "on-demand": "false", "any": "auto", "auto": "auto"}
"""`use_spot` of a word for the market."""
KNOWN = (
    "gpus=256, nodes=8, max_nodes=32, accelerators=H200:8, market=spot, deadline=3d, budget=$5_000, objective=fastest"
)


def overrides_of(question: str, project: Project) -> list[str]:
    """The `--set` values of one question; several changes are joined by `;`.

    `gpus=N`: at most N accelerators at a time, and the earliest finish (objective fastest). `nodes=N`: every stage on
    N nodes. `accelerators=X`: only those. `market=`: spot, on_demand or any. Any other dotted path is taken as it is.
    """
    overrides: list[str] = []
    for change in question.split(";"):
        key, equals, value = change.strip().partition("=")
        if not equals or not key or not value:
            raise UsageError(f"--what-if {question}: write it like {KNOWN}, or any path of charter.yaml")
        overrides += _overrides(key.strip(), value.strip(), project, question)
    return overrides


def _overrides(key: str, value: str, project: Project, question: str) -> list[str]:
    match key:
        case "gpus" | "accelerators_at_once":
            nodes = max(1, _number(value, question) // _per_node(project))
            return [f"resources.max_nodes={nodes}", "objective=fastest"]
        case "nodes":
            nodes = _number(value, question)
            return [f"resources.num_nodes={nodes}", f"resources.max_nodes={max(nodes, project.resources.max_nodes)}"]
        case "accelerators":
            places = range(len(project.resources.any_of))
            return [f"resources.accelerators=[{value}]"] + [
                f"resources.any_of.{index}.accelerators=[{value}]" for index in places
            ]
        case "market":
            if value not in MARKETS:
                raise UsageError(f"--what-if {question}: the market is spot, on_demand or any")
            return [f"resources.use_spot={MARKETS[value]}"]
        case "budget":
            return [f"budget.limit={value}"]
        case "max_nodes" | "use_spot" | "quota" | "reserved" | "clouds" | "regions" | "max_hourly_cost" | "price":
            return [f"resources.{key}={value}"]
    return [f"{key}={value}"]


def _number(value: str, question: str) -> int:
    text = value.replace("_", "").replace(",", "")
    thousands = text.lower().endswith("k")
    text = text[:-1] if thousands else text
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--what-if {question}: {value!r} is not a whole number of 1 or more; write 256, 4_000 or 4k")
    return int(text) * (1000 if thousands else 1)


def _per_node(project: Project) -> int:
    """Accelerators of a node of the first kind that the project names; 8 where it names none."""
    resources = project.resources
    named = [*resources.accelerators, *(name for place in resources.any_of for name in place.accelerators)]
    counts = [parse_request(name)[1] for name in named if name not in ("any", CPU)]
    return counts[0] if counts else 8


# -------- Comparison with other engines on the accelerators of a stage: their best layout beside the chosen one's.


def other_engines(question: StageQuestion, option: Option) -> tuple[EngineLayout, ...]:
    """The best layout of every other engine on the same accelerators, fastest first.

    For PPO the best of each placement of the engines that have placements; an engine in which nothing fits is left out,
    and so is one that cannot call the stage's rewards. What else one refuses of the stage stands beside its layout.
    Each engine's time rests on the constants of its own stack, so between engines the intervals are those of two
    unrelated estimates.
    """
    site = NodeGroup(place=option.place, num_nodes=option.num_nodes)
    search = rl_options if question.stage.ROLLS_OUT else training_options
    layouts = [
        _engine_layout(best, option, refused)
        for inquiry, refused in _inquiries(question, option)
        for best in search(inquiry, site.place, site.num_nodes)[0]
    ]
    return tuple(sorted(layouts, key=lambda item: (item.seconds, item.engine)))


def _inquiries(question: StageQuestion, option: Option) -> Iterator[tuple[StageQuestion, str]]:
    """Yield the question of a stage to every other engine that runs there, with what that refuses of it."""
    if not question.work.trained or option.place.is_cpu:
        return
    written = {engine.name for engine in handover_engines()}
    for name in rl_engines() if question.stage.ROLLS_OUT else engine_names():
        kind, accelerator = question.stage.kind, option.place.accelerator
        refused = hardware_refusal(name, kind, accelerator) or format_refusal(question.dtype, name, kind, accelerator)
        if name == option.engine or refused or any(refused_rewards(question.stage, capabilities(name))):
            continue
        lacking = [] if name in written else ["Charter writes no files for it"]
        lacking += refused_fields(question.stage, capabilities(name))
        yield replace(question, engine=name, peaks={}), "; ".join(lacking)


def _engine_layout(best: Option, option: Option, refused: str) -> EngineLayout:
    seconds = best.overhead.useful_seconds
    return EngineLayout(
        engine=best.engine,
        layout=best.layout_label,
        seconds=seconds,
        ratio=seconds / option.overhead.useful_seconds,
        peak_bytes=best.peak.total_bytes,
        refused=refused,
    )


def with_other_engines(plan: Plan) -> Plan:
    """The plan with what other engines could do on the accelerators that it chose."""
    return _with_engines(plan, other_engines)


def with_quickest_engines(plan: Plan) -> Plan:
    """The same with the quickest engine alone that takes a native stage as it is written."""
    return _with_engines(plan, _quickest_engine)


def _with_engines(plan: Plan, search: Callable[[StageQuestion, Option], tuple[EngineLayout, ...]]) -> Plan:
    stages = []
    for stage in plan.stages:
        question = None if stage.searched is None else stage.searched.question
        stages.append(stage if question is None else replace(stage, other_engines=search(question, stage.option)))
    return replace(plan, stages=tuple(stages))


def _quickest_engine(question: StageQuestion, option: Option) -> tuple[EngineLayout, ...]:
    """Return the layout of the quickest; only that is looked at in full."""
    inquiries = [inquiry for inquiry, refused in _inquiries(question, option) if not refused]
    if option.engine != NATIVE or not inquiries:
        return ()
    site = NodeGroup(place=option.place, num_nodes=option.num_nodes)
    if question.stage.ROLLS_OUT:
        options = [best for inquiry in inquiries for best in rl_options(inquiry, site.place, site.num_nodes)[0]]
    else:
        searches = [(inquiry, next(search_sites(inquiry, [site]))) for inquiry in inquiries]
        inquiry, searched = min(searches, key=lambda pair: (chosen_seconds(pair[1]), pair[0].engine))
        options = [*next(options_among(inquiry, [searched]))[0]]
    layouts = [_engine_layout(best, option, "") for best in options]
    return tuple(sorted(layouts, key=lambda item: (item.seconds, item.engine))[:1])
