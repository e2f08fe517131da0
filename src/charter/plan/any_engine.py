"""Comparison with other engines on the accelerators of a stage: their best layout beside the chosen one's."""

from dataclasses import replace

from charter.engines import engine_names, rl_engines
from charter.engines.hardware import format_refusal, hardware_refusal
from charter.plan.layouts.layout_search import Site
from charter.plan.layouts.training_search import training_options
from charter.plan.options.option import Option
from charter.plan.options.question import EngineLayout, Question
from charter.plan.plan import Plan
from charter.plan.rl.search import rl_options
from charter.plan.stages.stage_plan import StagePlan
from charter.spec.stage import PpoStage


def other_engines(question: Question, option: Option) -> tuple[EngineLayout, ...]:
    """The best layout of every other engine on the same accelerators, fastest first.

    For PPO the best of each placement of the engines that have placements; an engine in which nothing fits is left out,
    and so are all where the rewards are a list, which no other engine takes.
    Each engine's time rests on the constants of its own stack, so between engines the intervals are those of two
    unrelated estimates.
    """
    policy = question.stage if isinstance(question.stage, PpoStage) else None
    is_native_only = policy is not None and bool(policy.rewards)
    if not question.work.trained or option.place.is_cpu or is_native_only:
        return ()
    layouts: list[EngineLayout] = []
    site = Site(place=option.place, num_nodes=option.num_nodes)
    places_roles = policy is not None
    for name in rl_engines() if places_roles else engine_names():
        kind, accelerator = question.stage.kind, option.place.accelerator
        refused = hardware_refusal(name, kind, accelerator) or format_refusal(question.dtype, name, kind, accelerator)
        if name == option.engine or refused:
            continue
        inquiry = replace(question, engine=name, peaks={})
        search = rl_options if places_roles else training_options
        options, _ = search(inquiry, site.place, site.num_nodes)
        for best in options:
            seconds = best.overhead.useful_seconds
            layouts.append(
                EngineLayout(
                    engine=name,
                    layout=best.layout_label,
                    seconds=seconds,
                    ratio=seconds / option.overhead.useful_seconds,
                    peak_bytes=best.peak.total_bytes,
                )
            )
    return tuple(sorted(layouts, key=lambda item: (item.seconds, item.engine)))


def with_other_engines(plan: Plan) -> Plan:
    """The plan with what other engines could do on the accelerators that it chose."""
    return replace(plan, stages=tuple(_with_engines(stage) for stage in plan.stages))


def _with_engines(stage: StagePlan) -> StagePlan:
    question = None if stage.searched is None else stage.searched.question
    return stage if question is None else replace(stage, other_engines=other_engines(question, stage.option))
