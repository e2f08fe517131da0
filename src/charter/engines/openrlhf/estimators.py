"""Estimators of OpenRLHF: how rewards, their KL penalty and advantages are told, and where they differ from ours.

Sources in OpenRLHF 0.11.2: trainer/ppo_utils/experience_maker.py (compute_advantages_and_returns), models/utils.py
(compute_approx_kl, compute_reward), models/loss.py (ValueLoss), trainer/ppo_trainer.py (the KL controller).
"""

from charter.engines.common.arguments import Arguments
from charter.engines.common.mapping import How
from charter.spec.stage import PpoStage

ESTIMATORS = {"gae": "gae", "reinforce": "gae", "rloo": "rloo", "grpo": "group_norm"}
NO_RANGE = 1e9
"""Bounds of rewards that no reward reaches: OpenRLHF cannot leave them out, and its own are 10."""


def estimator_arguments(given: Arguments, stage: PpoStage) -> None:
    """Advantages, the KL penalty, and what belongs to a value model."""
    name = ESTIMATORS[stage.estimator]
    note = {"reinforce": "whole returns less the value are GAE with lambda 1", "grpo": "its name of GRPO"}
    how: How = "computed" if stage.estimator in note else "as_is"
    option = "--algo.advantage.estimator"
    given.to("stage.estimator", option, name, how=how, note=note.get(stage.estimator, ""))
    _kl(given, stage)
    _rewards(given, stage)
    if stage.has_value_model:
        _value_model(given, stage)
    else:
        _compared(given, stage)


def _kl(given: Arguments, stage: PpoStage) -> None:
    given.to("stage.kl_coefficient", "--algo.kl.init_coef")
    if stage.estimator == "grpo":
        given.give("--algo.kl.use_loss")
        given.give("--algo.kl.estimator", "k3")
        given.unused("stage.kl_estimator", "the penalty of grpo is in the loss and always k3")
    else:
        note = "held within 10 nats per token" + ("; outside of the comparison" if stage.estimator == "rloo" else "")
        given.to("stage.kl_estimator", "--algo.kl.estimator", note=note)
    reason = "its target is per token, ours per answer, and its controller starts anew at every resume"
    given.fields.same("stage.kl_target", None, reason)
    given.unused("stage.kl_horizon", "without kl_target the coefficient is fixed")


def _rewards(given: Arguments, stage: PpoStage) -> None:
    if stage.reward_clip is None:
        given.give("--reward.clip_range", -NO_RANGE, NO_RANGE)
        given.fields.to("stage.reward_clip", "--reward.clip_range", how="computed", note="wider than any reward")
    elif stage.has_value_model:
        option = "--reward.clip_range"
        given.to("stage.reward_clip", option, -stage.reward_clip, stage.reward_clip, how="computed", note="both ends")
    else:
        reason = f"with {stage.estimator} it clips what is left of the comparison, not the reward"
        given.fields.refuse("stage.reward_clip", reason, "leave reward_clip out")


def _value_model(given: Arguments, stage: PpoStage) -> None:
    fields = given.fields
    given.to("stage.value_clip", "--critic.value_clip")
    reason = "its value loss is half the squared error (models/loss.py ValueLoss)"
    fields.same("stage.value_loss_weight", 0.5, reason)
    fields.same("stage.whiten_advantages", True, f"with {ESTIMATORS[stage.estimator]} advantages are always whitened")
    given.to("stage.discount", "--algo.advantage.gamma")
    if stage.estimator == "reinforce":
        given.give("--algo.advantage.lambd", 1.0)
        given.unused("stage.gae_lambda", "reinforce takes whole returns")
    else:
        given.to("stage.gae_lambda", "--algo.advantage.lambd")
    _value_warmup(given, stage)


def _value_warmup(given: Arguments, stage: PpoStage) -> None:
    """The policy's schedule stands still while only the value model learns, so that it would end too early."""
    field = "stage.value_warmup_rollouts"
    moves = stage.schedule != "constant" or stage.warmup_steps > 0
    if stage.value_warmup_rollouts and moves:
        reason = "the policy's learning rate stands still in those rollouts, and its schedule would not reach its end"
        given.fields.refuse(field, reason, "schedule: constant and warmup_steps: 0, or no value_warmup_rollouts")
        return
    note = "the policy learns in rollouts after this one, counted from 0 (ppo_train)"
    given.to(field, "--critic.freezing_steps", stage.value_warmup_rollouts - 1, how="computed", note=note)


def _compared(given: Arguments, stage: PpoStage) -> None:
    """rloo and grpo: the answers to one prompt are compared, there is no value model."""
    no_value = f"{stage.estimator} has no value model"
    for name in ("value_clip", "value_loss_weight", "gae_lambda"):
        given.unused(f"stage.{name}", no_value)
    given.fields.same("stage.value_warmup_rollouts", 0, no_value)
    given.fields.same("stage.discount", 1.0, f"{stage.estimator} does not discount")
    if stage.estimator == "grpo":
        given.unused("stage.whiten_advantages", "grpo scales by the deviation of a prompt's answers")
    else:
        reason = "advantages of rloo are not whitened (experience_maker.py)"
        given.fields.same("stage.whiten_advantages", False, reason)
