"""Rewards, advantages and losses of PPO as verl spells them.

Read in verl/trainer/ppo/core_algos.py, verl/trainer/ppo/ray_trainer.py and verl/workers/utils/losses.py.
"""

from charter.engines.common.sheet import Sheet
from charter.engines.verl.optimizer import ADAM_EPSILON
from charter.spec.stage import PpoStage

ALGORITHM, ACTOR, CRITIC = "algorithm", "actor_rollout_ref.actor", "critic"
NO_DUAL_CLIP = 1.0e8
"""Of `clip_ratio_c`, which bounds the loss of negative advantages; so large it never does, as in Charter."""
ESTIMATORS = {"gae": "gae", "rloo": "rloo", "grpo": "grpo"}
AGGREGATIONS = {"token": "token-mean", "sequence": "seq-mean-token-mean"}
KL_NAMES = {"k1": "kl", "k3": "low_var_kl"}


def map_losses(sheet: Sheet, stage: PpoStage) -> None:
    """Everything between a score and a gradient."""
    _advantages(sheet, stage)
    _kl(sheet, stage)
    _policy(sheet)
    _value(sheet, stage)
    _refused(sheet)


def _advantages(sheet: Sheet, stage: PpoStage) -> None:
    mapper = sheet.mapper
    if stage.estimator in ESTIMATORS:
        keys = {f"{ALGORITHM}.adv_estimator": stage.estimator, f"{CRITIC}.enable": stage.has_value_model}
        keys |= {f"{ALGORITHM}.norm_adv_by_std_in_grpo": True} if stage.estimator == "grpo" else {}
        sheet.computed("stage.estimator", keys, "and whether there is a value model")
    else:
        hint = "estimator gae with gae_lambda 1, ppo_epochs 1 and minibatch = rollout_batch has the same gradient"
        mapper.refuse("stage.estimator", "its REINFORCE++ has no value model", hint)
    if stage.estimator == "grpo" and stage.scale_advantages == "none":
        off: dict[str, object] = {f"{ALGORITHM}.norm_adv_by_std_in_grpo": False}
        sheet.computed("stage.scale_advantages", off, "none: off")
    else:
        mapper.same("stage.scale_advantages", "group", "norm_adv_by_std_in_grpo is on or off, and of grpo alone")
    sheet.as_is("stage.gae_lambda", f"{ALGORITHM}.lam")
    sheet.as_is("stage.discount", f"{ALGORITHM}.gamma")
    if stage.estimator == "grpo":
        sheet.idle("stage.whiten_advantages", "grpo scales by the group's deviation, here and there")
    elif stage.estimator == "gae":
        mapper.same("stage.whiten_advantages", True, "compute_gae_advantage_return always whitens")
    else:
        mapper.same("stage.whiten_advantages", False, "compute_rloo_outcome_advantage never whitens")


def _kl(sheet: Sheet, stage: PpoStage) -> None:
    """grpo has the penalty in the loss, always as k3; the others in the reward, token by token."""
    mapper, in_loss = sheet.mapper, stage.estimator == "grpo"
    sheet.put(f"{ALGORITHM}.use_kl_in_reward", not in_loss)
    sheet.put(f"{ACTOR}.use_kl_loss", in_loss)
    sheet.put(f"{ACTOR}.kl_loss_type", KL_NAMES["k3"])
    sheet.put(f"{ALGORITHM}.kl_ctrl.type", "fixed")
    sheet.as_is("stage.kl_coefficient", f"{ACTOR}.kl_loss_coef" if in_loss else f"{ALGORITHM}.kl_ctrl.kl_coef")
    note = "k1 is its kl, k3 its low_var_kl, held within 10 nats; grpo has low_var_kl in the loss whichever is named"
    sheet.computed("stage.kl_estimator", {f"{ALGORITHM}.kl_penalty": KL_NAMES[stage.kl_estimator]}, note)
    mapper.same(
        "stage.kl_target",
        None,
        "its adaptive controller aims at nats per token, not per answer, and no checkpoint holds its coefficient "
        "(apply_kl_penalty, _save_checkpoint)",
    )
    sheet.idle("stage.kl_horizon", "it belongs to kl_target")


def _policy(sheet: Sheet) -> None:
    clip, high = sheet.mapper.value("stage.clip_ratio"), sheet.mapper.value("stage.clip_ratio_high")
    sheet.as_is("stage.clip_ratio", *(f"{ACTOR}.{name}" for name in ("clip_ratio", "clip_ratio_low")))
    upper = {f"{ACTOR}.clip_ratio_high": clip if high is None else high}
    sheet.computed("stage.clip_ratio_high", upper, "clip_ratio where none is given")
    bound = sheet.mapper.value("stage.dual_clip")
    dual = {f"{ACTOR}.clip_ratio_c": NO_DUAL_CLIP if bound is None else bound}
    sheet.computed("stage.dual_clip", dual, "so large that it never binds where none is given")
    sheet.as_is("stage.entropy_weight", f"{ACTOR}.entropy_coeff")
    mode = AGGREGATIONS[str(sheet.mapper.value("stage.loss_aggregation"))]
    keys: dict[str, object] = {f"{ACTOR}.loss_agg_mode": mode, f"{CRITIC}.loss_agg_mode": mode}
    sheet.computed("stage.loss_aggregation", keys, "means over the global minibatch")
    clip = sheet.mapper.value("stage.mismatch_clip")
    correction = f"{ALGORITHM}.rollout_correction"
    values: dict[str, object] = {f"{correction}.rollout_is": None if clip is None else "token"}
    values |= {} if clip is None else {f"{correction}.rollout_is_threshold": clip}
    sheet.computed("stage.mismatch_clip", values, "truncated importance sampling per token")


def _value(sheet: Sheet, stage: PpoStage) -> None:
    sheet.as_is("stage.value_clip", f"{CRITIC}.cliprange_value")
    sheet.as_is("stage.value_learning_rate", f"{CRITIC}.optim.lr")
    sheet.as_is("stage.learning_rate", f"{ACTOR}.optim.lr")
    _value_weight(sheet, stage)


def _value_weight(sheet: Sheet, stage: PpoStage) -> None:
    """verl has no weight of the value loss, but an optimizer of its own for it.

    Adam's update of weight x loss is that of the loss with its epsilon divided by the weight, and so is the clip.
    """
    weight, clip, optim = stage.value_loss_weight, stage.gradient_clip, f"{CRITIC}.optim"
    keys: dict[str, object] = {f"{ACTOR}.optim.clip_grad": clip, f"{ACTOR}.grad_clip": clip}
    if weight > 0:
        keys |= {f"{optim}.clip_grad": clip / weight}
        adam: dict[str, object] = {f"{optim}.override_optimizer_config": {"eps": ADAM_EPSILON / weight}}
        note = "Adam's epsilon and the critic's clip divided by the weight make the same update"
        sheet.computed("stage.value_loss_weight", {f"{optim}.clip_grad": clip / weight, **adam}, note)
    else:
        sheet.mapper.refuse("stage.value_loss_weight", "a value model that does not learn cannot be told to verl")
    sheet.computed("stage.gradient_clip", keys, "the critic's is divided by value_loss_weight")


def _refused(sheet: Sheet) -> None:
    same = sheet.mapper.same
    same("stage.reward_clip", None, "verl trains on the reward model's score as it is")
    same("stage.missing_end_penalty", None, "verl does not look whether an answer has ended")
    same("stage.bootstrap_truncated", False, "compute_gae_advantage_return takes the end of every answer as terminal")
    same("stage.stop_update_kl", None, "all ppo_epochs are run")
    same("stage.ptx_weight", 0.0, "the actor's loss has no language-modelling term")
    same("stage.ptx_data", ((),), "the actor's loss has no language-modelling term")
    same("stage.reward_from", "preference_model", "a judge would need a reward function of your own")
    sheet.idle("stage.ptx_batch", "there is no ptx_data")
    sheet.idle("stage.seq_len", "there is no ptx_data")
