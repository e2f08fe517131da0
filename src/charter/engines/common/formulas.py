"""Formulas that the options of a loss mean, by the names of hand-computed values, whatever an engine calls them.

The names are those of `tests/published/data/rl_vectors.json`. An engine that computes another formula under the same
word is refused by its renderer; so an export means, for the engine, what the names here say.
"""

from collections.abc import Iterator

from charter.engines.common.mapping import STAGE, FieldMapper
from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import SHIPPED_REWARD, Mismatch

SCALES = {
    "group": "advantage.grpo",
    "batch": "advantage.grpo.std_batch",
    "mean": "advantage.maxrl",
    "none": "advantage.dr_grpo",
}
NO_LOWER = 1.0
"""clip_ratio from which the ratio has no lower bound."""


def formulas(stage: PpoStage) -> tuple[str, ...]:
    """Names of the formulas of a stage: rewards, advantages, loss, KL penalty, correction, value.

    >>> formulas(PpoStage(policy="p", prompts=("q",), episodes=64, estimator="grpo", samples_per_prompt=8))
    ('advantage.grpo', 'loss.ppo.token', 'kl.k3')
    """
    return tuple(dict.fromkeys(_names(stage)))


def _names(stage: PpoStage) -> Iterator[str]:
    if len(stage.rewards) > 1:
        yield f"advantage.mixture.{stage.mixture}"
    if any(item.call == f"{SHIPPED_REWARD}overlong" for item in stage.rewards):
        yield "reward.dapo.overlong"
    yield _advantage(stage)
    yield _loss(stage)
    if stage.dual_clip is not None:
        yield "loss.ppo.dual_clip"
    if stage.off_policy_mask is not None:
        yield "loss.opsm"
    if stage.kl_coefficient and stage.has_kl_loss:
        yield "kl.k3"
    elif stage.kl_coefficient:
        yield f"kl.{stage.kl_estimator}"
    if stage.correction is not None:
        yield _correction(stage.correction)
    if stage.has_value_model:
        yield "loss.value"


def _advantage(stage: PpoStage) -> str:
    match stage.estimator:
        case "grpo":
            return SCALES.get(stage.scale_advantages, f"advantage.grpo.{stage.scale_advantages}")
        case "rloo":
            in_reward = stage.kl_coefficient and not stage.has_kl_loss
            return "advantage.rloo.kl_in_reward" if in_reward else "advantage.rloo"
        case "reinforce":
            return "return.reinforce_pp"
        case other:
            return f"advantage.{other}"


def _loss(stage: PpoStage) -> str:
    if stage.surrogate == "cispo":
        return "loss.cispo.paper" if stage.clip_ratio >= NO_LOWER else "loss.cispo.both_sides"
    if stage.surrogate == "sapo":
        return "loss.sapo"
    if stage.surrogate == "dppo":
        return "loss.dppo"
    if stage.ratio == "sequence":
        return "loss.gspo"
    if stage.ratio == "product":
        return "loss.rloo.clipped"
    return "loss.dr_grpo" if stage.loss_aggregation == "constant" else f"loss.ppo.{stage.loss_aggregation}"


def _correction(mismatch: Mismatch) -> str:
    match mismatch.method:
        case "icepop":
            return "loss.icepop"
        case "sequence_mask":
            return "loss.seq_mask_tis"
        case _ if mismatch.level == "product":
            return "loss.tis.sequence"
    return "loss.tis.token" if mismatch.low is None else "loss.tis.token.two_sided"


def name_formulas(mapper: FieldMapper, stage: PpoStage) -> None:
    """Name the formulas of a stage, and refuse options that together are none: there engines differ without a word."""
    mapper.formulas = formulas(stage)
    hint = "the combinations are in docs/guides/other-engines.md; engine: native takes all"
    if stage.ratio == "sequence" and (stage.surrogate != "clip" or stage.loss_aggregation != "sequence"):
        reason = "ratios of whole answers go with surrogate: clip and loss_aggregation: sequence (GSPO)"
        mapper.refuse(f"{STAGE}.ratio", reason, hint)
    if stage.surrogate in ("cispo", "dppo") and (stage.ratio != "token" or stage.loss_aggregation != "token"):
        reason = "it goes with ratio: token and loss_aggregation: token"
        mapper.refuse(f"{STAGE}.surrogate", reason, hint)
    if stage.surrogate == "sapo" and (stage.ratio != "token" or stage.loss_aggregation != "sequence"):
        reason = "it goes with ratio: token and loss_aggregation: sequence"
        mapper.refuse(f"{STAGE}.surrogate", reason, hint)
    if stage.dual_clip is not None and (stage.surrogate != "clip" or stage.ratio != "token"):
        mapper.refuse(f"{STAGE}.dual_clip", "it bounds PPO's clip of token ratios", hint)
    if stage.loss_aggregation == "constant" and stage.has_value_model:
        mapper.refuse(f"{STAGE}.loss_aggregation", "the value loss would be divided by it too", hint)
    if stage.mismatch is not None and stage.mismatch.level != "token":
        mapper.refuse(f"{STAGE}.mismatch", "the weight of a whole answer is rendered for the native engine alone", hint)


TOKEN_ENTROPY = "over the tokens of a micro-batch, here of a minibatch"
"""Note of an entropy bonus that is a mean of its own in every micro-batch."""


def has_token_entropy(mapper: FieldMapper, stage: PpoStage) -> bool:
    """Return True if a bonus that is a mean over tokens, however the loss is reduced, is what the stage says.

    Else it is refused.
    """
    if not stage.entropy_weight or stage.loss_aggregation == "token":
        return True
    reason = "its entropy is a mean over tokens, however the policy's loss is reduced"
    mapper.refuse(f"{STAGE}.entropy_weight", reason, "loss_aggregation: token, or entropy_weight: 0")
    return False
