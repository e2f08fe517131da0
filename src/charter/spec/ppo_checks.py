"""Settings of a PPO stage that have the right type but cannot work, alone or together."""

from collections.abc import Iterator

from charter.errors import Problem
from charter.spec.ranges import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, SHARE, SHARE_ABOVE_ZERO, Range, check_ranges
from charter.spec.stage import PpoStage
from charter.spec.update_checks import ADAM, check_adapter, check_guard

_PPO: tuple[tuple[str, Range], ...] = (
    *ADAM,
    ("temperature", POSITIVE),
    ("value_learning_rate", POSITIVE),
    ("episodes", AT_LEAST_ONE),
    ("minibatch", AT_LEAST_ONE),
    ("ppo_epochs", AT_LEAST_ONE),
    ("clip_ratio", POSITIVE),
    ("value_clip", POSITIVE),
    ("value_loss_weight", NOT_NEGATIVE),
    ("entropy_weight", NOT_NEGATIVE),
    ("gae_lambda", SHARE),
    ("discount", SHARE_ABOVE_ZERO),
    ("kl_coefficient", NOT_NEGATIVE),
    ("kl_target", POSITIVE),
    ("kl_horizon", AT_LEAST_ONE),
    ("reward_clip", POSITIVE),
    ("samples_per_prompt", AT_LEAST_ONE),
    ("missing_end_penalty", NOT_NEGATIVE),
    ("stop_update_kl", POSITIVE),
    ("mismatch_clip", AT_LEAST_ONE),
    ("ptx_weight", NOT_NEGATIVE),
    ("ptx_batch", AT_LEAST_ONE),
    ("seq_len", AT_LEAST_ONE),
)


def check_ppo(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Problems of a PPO stage, apart from those that every stage can have."""
    yield from check_ranges(stage, path, _PPO)
    yield from check_adapter(stage.adapter, path)
    yield from check_guard(stage.guard, f"{path}.guard")
    yield from _check_estimator(stage, path)
    yield from _check_pretraining_mix(stage, path)
    if stage.kl_target is not None and stage.kl_coefficient == 0:
        hint = "give kl_coefficient a start above 0, or remove kl_target"
        yield Problem(message="a coefficient of 0 never adapts to a target", path=f"{path}.kl_target", hint=hint)
    batch = stage.rollout_batch
    if batch < 1 or stage.episodes < 1 or stage.minibatch < 1:
        return
    if stage.episodes % batch:
        below, above = stage.episodes // batch * batch, -(-stage.episodes // batch) * batch
        nearest = " or ".join(str(number) for number in (below, above) if number)
        message = f"{stage.episodes} is not a multiple of rollout_batch, {batch}"
        yield Problem(message=message, path=f"{path}.episodes", hint=f"the nearest that work: {nearest}")
    elif stage.value_warmup_rollouts >= stage.episodes // batch:
        message = f"the policy would never learn: there are {stage.episodes // batch} rollouts in all"
        yield Problem(message=message, path=f"{path}.value_warmup_rollouts")
    if batch % stage.minibatch:
        message = f"{stage.minibatch} does not divide rollout_batch, {batch}"
        nearest = " or ".join(str(number) for number in divisors_near(batch, stage.minibatch))
        hint = f"the nearest that work: {nearest}"
        yield Problem(message=message, path=f"{path}.minibatch", hint=hint)


def _check_estimator(stage: PpoStage, path: str) -> Iterator[Problem]:
    """Estimators that compare the answers to one prompt need several, and have no value model."""
    batch, samples = stage.rollout_batch, stage.samples_per_prompt
    if batch >= 1 and samples >= 1 and batch % samples:
        nearest = " or ".join(str(number) for number in divisors_near(batch, samples))
        message = f"{samples} does not divide rollout_batch, {batch}"
        yield Problem(message=message, path=f"{path}.samples_per_prompt", hint=f"the nearest that work: {nearest}")
    if stage.estimator == "reinforce":
        yield from _check_reinforce(stage, path)
    if stage.has_value_model:
        return
    if samples == 1:
        message = f"the estimator {stage.estimator} compares the answers to one prompt and needs 2 or more; found 1"
        hint = "give samples_per_prompt, for example 4, or take the estimator gae"
        yield Problem(message=message, path=f"{path}.samples_per_prompt", hint=hint)
    for name, unset in (("value_warmup_rollouts", 0), ("bootstrap_truncated", False), ("discount", 1.0)):
        found = getattr(stage, name)
        if found != unset:
            reason = "does not discount" if name == "discount" else "has no value model"
            yield Problem(
                message=f"the estimator {stage.estimator} {reason}; found {found}",
                path=f"{path}.{name}",
                hint=f"remove {name}, or take the estimator gae",
            )


def _check_reinforce(stage: PpoStage, path: str) -> Iterator[Problem]:
    """One step of the policy for each rollout, by whole returns: what belongs to PPO's several steps is refused."""
    if stage.ppo_epochs != 1:
        message = f"the estimator reinforce goes once over a rollout; found {stage.ppo_epochs}"
        yield Problem(message=message, path=f"{path}.ppo_epochs", hint="remove ppo_epochs, or take the estimator gae")
    if stage.minibatch != stage.rollout_batch:
        message = f"the estimator reinforce makes one step of a whole rollout, {stage.rollout_batch} answers; found "
        hint = f"minibatch: {stage.rollout_batch}, or a smaller rollout_batch"
        yield Problem(message=f"{message}{stage.minibatch}", path=f"{path}.minibatch", hint=hint)
    for name, unset, reason in (
        ("gae_lambda", 0.95, "takes whole returns"),
        ("clip_ratio", 0.2, "has no ratio to clip"),
        ("bootstrap_truncated", False, "takes whole returns"),
        ("stop_update_kl", None, "goes once over a rollout"),
    ):
        if (found := getattr(stage, name)) != unset:
            message = f"the estimator reinforce {reason}; found {found}"
            yield Problem(message=message, path=f"{path}.{name}", hint=f"remove {name}, or take the estimator gae")


def _check_pretraining_mix(stage: PpoStage, path: str) -> Iterator[Problem]:
    """The mix has both a weight and data, or neither."""
    if stage.ptx_data and stage.ptx_weight == 0:
        hint = "give ptx_weight, for example 1, or remove ptx_data"
        yield Problem(message="is 0, so ptx_data would not be learnt", path=f"{path}.ptx_weight", hint=hint)
    if stage.ptx_weight > 0 and not stage.ptx_data:
        message = f"a ptx_weight of {stage.ptx_weight:g} needs data to learn"
        hint = "name conversations or texts, or remove ptx_weight"
        yield Problem(message=message, path=f"{path}.ptx_data", hint=hint)


def divisors_near(number: int, wanted: int) -> list[int]:
    """The divisors of a number next to one that is wanted: the nearest below, the nearest above.

    Looks 10,000 to either side; beyond that it names 1 and the number itself, which always divide it.

    >>> divisors_near(64, 48), divisors_near(64, 100)
    ([32, 64], [64])
    """
    below = next((k for k in range(wanted - 1, max(0, wanted - 10_000), -1) if number % k == 0), 1)
    above = next((k for k in range(wanted + 1, min(number, wanted + 10_000)) if number % k == 0), number)
    return sorted({below, above})
