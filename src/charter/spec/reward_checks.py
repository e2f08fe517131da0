"""Checks of a rubric and of the gold among the rewards of a `kind: ppo` stage."""

from collections.abc import Iterator

from charter.errors import Problem
from charter.spec.quantity import AT_LEAST_ONE, check_ranges
from charter.spec.rewards import Reward
from charter.spec.stage import PpoStage


def check_gold(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Weights of what is learnt from, and of the gold, which has none."""
    weights = {item.name: item.weight for item in stage.rewards}
    if stage.gold is not None and weights.get(stage.gold) != 0:
        hint = "add it to rewards with weight: 0"
        yield Problem(message=f"{stage.gold!r} is no reward of weight 0", path=f"{path}.gold", hint=hint)
    if weights and not any(weights.values()):
        yield Problem(message="every weight is 0, so nothing is learnt", path=f"{path}.rewards")
    if stage.on_overoptimisation == "stop" and stage.gold is None:
        yield Problem(message="nothing is watched without a gold", path=f"{path}.on_overoptimisation")


def check_rubric(stage: PpoStage, item: Reward, path: str) -> Iterator[Problem]:
    """Criteria belong to a judge; answers are compared within a group that is large enough."""
    rubric, place = item.rubric, f"{path}.rubric"
    if rubric is None:
        return
    if item.kind != "judge":
        yield Problem(message=f"belongs to a judge, not to a {item.kind}", path=place)
    yield from check_ranges(rubric, place, (("per_prompt", AT_LEAST_ONE), ("opponents", AT_LEAST_ONE)))
    samples = stage.samples_per_prompt
    if rubric.ask == "pairwise" and samples <= rubric.opponents:
        message = f"{rubric.opponents} others of a group of {samples}"
        yield Problem(message=message, path=f"{place}.opponents", hint="raise samples_per_prompt")
    elif rubric.ask != "pairwise" and rubric.opponents != 1:
        yield Problem(message="only `ask: pairwise` compares answers", path=f"{place}.opponents")
    if rubric.only and (rubric.per_prompt or 0) > len(rubric.only):
        yield Problem(message=f"{rubric.per_prompt} of the {len(rubric.only)} in `only`", path=f"{place}.per_prompt")
