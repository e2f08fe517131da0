"""A stage in a line: what it runs on, how long, how much."""

from collections.abc import Mapping, Sequence

from charter.plan.stages.stage_plan import NO_MONEY, StagePlan, interval_json


def kind_of(stage: StagePlan) -> str:
    """Hardware, provider and market of a stage in words: `H100-SXM-80GB:8 on aws, spot`."""
    option = stage.option
    return f"{option.place.label}, {option.price.market.replace('_', ' ')}"


def differences(stages: Sequence[StagePlan], base: Sequence[StagePlan]) -> dict[str, str]:
    """Stages whose hardware, provider or market differs from `base`, with what they have."""
    other = {stage.name: kind_of(stage) for stage in base}
    return {stage.name: kind_of(stage) for stage in stages if kind_of(stage) != other.get(stage.name)}


def stage_line(stage: StagePlan) -> Mapping[str, object]:
    """The stage as one short JSON object."""
    option = stage.option
    return {
        "name": stage.name,
        "accelerator": option.place.accelerator.name,
        "count": option.num_accelerators,
        "num_nodes": option.num_nodes,
        "infra": option.place.infra,
        "region": option.price.region or option.place.region,
        "market": option.price.market,
        "layout": option.layout_label,
        "seconds": interval_json(option.seconds),
        "usd": NO_MONEY if stage.usd is None else stage.usd.to_json(),
    }
