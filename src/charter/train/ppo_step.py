"""One PPO step on a rollout: update policy and value model on its minibatches."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from charter.errors import StageError
from charter.models.parallel import Parallel
from charter.models.runtime import on_device
from charter.spec.ppo_stage import PpoStage
from charter.train.distillation import answer_divergences
from charter.train.loop import DivergenceGuard
from charter.train.losses import Summed, aggregate, ranked_dpo_loss, reinforce_loss
from charter.train.optimizers import GradientScaler
from charter.train.ppo_math import (
    clipped_policy_loss,
    clipped_value_loss,
    clipped_values,
    entropy_bonus,
    kl_loss,
    off_policy_weights,
    ratio_moments,
    update_kl,
)
from charter.train.ppo_rollout import Rollout
from charter.train.ppo_sequences import Sequences, answer_log_probabilities, answer_values
from charter.train.pretraining_mix import PretrainingMix, counted_tokens
from charter.train.setup import Setup

COUNT = " count"
"""Ends the name of the number of terms of a sum."""
RATIO, RATIO_SQUARE = "ratio less 1", "its square"
"""Sums over tokens of which the mean and the variance of the ratio are made."""
FIRST = "first ratios that are not 1"
"""Tokens whose log-probability is not that of the rollout, while the policy is still the one that sampled."""


@dataclass
class Update:
    """The optimizers of PPO and how a minibatch moves them."""

    setup: Setup
    spec: PpoStage
    policy: Parallel
    policy_optimizer: torch.optim.Optimizer
    value: Parallel | None
    value_optimizer: torch.optim.Optimizer | None
    mix: PretrainingMix | None = None
    teacher: Parallel | None = None
    """Read beside the policy where their distributions are compared."""
    scaler: GradientScaler = field(init=False)

    def __post_init__(self) -> None:
        self.scaler = GradientScaler(self.spec.dtype, self.setup.device)

    def minibatch(
        self,
        rollout: Rollout,
        parts: Sequence[Tensor],
        at: "MinibatchPosition",
        guard: DivergenceGuard,
        *,
        kl_coefficient: float,
    ) -> dict[str, float]:
        """Accumulate over the micro-batches, then update; what was measured, the same in every process.

        What is measured is added up on the device and read twice: before gradients are divided, and after they are.
        `kl_coefficient` counts where the KL penalty is part of the loss (grpo).
        """
        self._clear()
        learns = at.step >= self.spec.value_warmup_rollouts
        sums: dict[str, Tensor] = {}
        for index, host_rows in enumerate(parts):
            waits = index < len(parts) - 1
            self.setup.stage.alive()
            part, rows = rollout.sequences.rows(host_rows), on_device(host_rows, rollout.score_B.device)
            measured = self._policy_part(rollout, part, rows, at, kl_coefficient, learns=learns, waits=waits)
            if self.value is not None:
                measured |= self._value_part(self.value, rollout, part, rows, at, waits=waits)
            _add(sums, measured)
        totals = self.setup.ranks.total(_numbers(sums))
        if totals.pop(FIRST, 0.0):
            raise StageError("the first minibatch's ratio is not 1: the policy changed between rollout and update")
        counted = [name for name in totals if name + COUNT in totals]
        means = _with_ratio({name: totals[name] / max(totals[name + COUNT], 1.0) for name in counted})
        norms, ptx = self._gradients(totals, at, learns=learns)
        loss = means["policy_loss"] + means.get("value_loss", 0.0)
        norm = math.hypot(*norms.values())
        overflowed = math.isfinite(loss) and self.scaler.overflowed(norm)
        if not overflowed and guard.allows(at.step, loss, norm):
            if learns:
                self.policy_optimizer.step()
            if self.value_optimizer is not None:
                self.value_optimizer.step()
        self._clear()
        return {**means, **norms, **ptx, "minibatches": 1.0}

    def _policy_part(
        self,
        rollout: Rollout,
        part: Sequences,
        rows: Tensor,
        at: "MinibatchPosition",
        kl_coefficient: float,
        *,
        learns: bool,
        waits: bool,
    ) -> dict[str, Summed]:
        """Loss and gradient of the policy on some answers, and what is measured of it."""
        spec, mask = self.spec, rollout.loss_mask_BR[rows]
        reference = None if rollout.reference_BR is None else rollout.reference_BR[rows]
        divisor = self._divisor(rollout, rows)
        with torch.set_grad_enabled(learns), self.policy.accumulating() if waits else contextlib.nullcontext():
            log_probability, entropy, *nats = self._read(part, at)
            if spec.old_from_update and at.is_first:
                rollout.log_probability_BR[rows] = log_probability.detach() * rollout.mask_BR[rows]
            old = rollout.log_probability_BR[rows]
            if nats:
                how = spec.loss_aggregation
                measured = {"policy_loss": aggregate(nats[0], mask, how, divisor_B=divisor)}
            else:
                measured = self._policy_loss(log_probability, rollout, rows, divisor)
            # A rollout drawn ahead is an older policy's.
            if spec.version_of(at.step) == at.step and at.is_first and not spec.old_from_update:
                differs_BR = log_probability.detach() * rollout.mask_BR[rows] != old
                measured[FIRST] = Summed(differs_BR.sum(), mask.sum())
            total = measured["policy_loss"].total
            if spec.entropy_weight:
                bonus = entropy_bonus(entropy, mask, aggregation=spec.loss_aggregation, divisor_B=divisor)
                total = total - spec.entropy_weight * bonus.total
            if spec.has_kl_loss and reference is not None and spec.estimator != "online_dpo":
                how = spec.loss_aggregation
                penalty = kl_loss(log_probability, reference, mask, aggregation=how, divisor_B=divisor)
                total = total + kl_coefficient * penalty.total
            if learns:
                self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
        beyond, squared = ratio_moments(log_probability, old, mask)
        return {
            **measured,
            "entropy": entropy_bonus(entropy, mask),
            "update_kl": update_kl(log_probability, old, mask),
            **({} if reference is None else {"kl_k3_per_token": update_kl(reference, old, mask)}),
            RATIO: beyond,
            RATIO_SQUARE: squared,
        }

    def _read(self, part: Sequences, at: "MinibatchPosition") -> tuple[Tensor, ...]:
        """Log-probabilities and entropies of the policy; and its distances from a teacher where they are the loss."""
        spec = self.spec
        if spec.divergence is not None and self.teacher is not None:
            return answer_divergences(self.policy.call, self.teacher.module, part, spec)
        return _first(self.policy, at) or answer_log_probabilities(
            self.policy.call,
            part,
            temperature=spec.temperature,
            dtype=spec.dtype,
            entropy_gradient=spec.entropy_weight > 0,
        )

    def _divisor(self, rollout: Rollout, rows: Tensor) -> Tensor | None:
        """Return the divisor of each answer's sum: the horizon, or the tokens of all answers to its prompt."""
        spec = self.spec
        if spec.loss_aggregation == "constant":
            horizon = float(spec.loss_horizon or spec.max_new_tokens)
            return torch.full((len(rows),), horizon, device=rollout.score_B.device)
        if spec.loss_aggregation == "prompt":
            tokens_G = rollout.loss_mask_BR.sum(1).view(-1, spec.samples_per_prompt).sum(1).clamp_min(1)
            return tokens_G.repeat_interleave(spec.samples_per_prompt)[rows].float()
        return None

    def _policy_loss(
        self, log_probability: Tensor, rollout: Rollout, rows: Tensor, divisor: Tensor | None
    ) -> dict[str, Summed]:
        """The loss that the estimator belongs to; how many tokens are clipped where there is a ratio to clip."""
        spec, mask, advantage = self.spec, rollout.loss_mask_BR[rows], rollout.advantage_BR[rows]
        weight = None if rollout.weight_BR is None else rollout.weight_BR[rows]
        how = spec.loss_aggregation
        if spec.estimator == "online_dpo":
            assert rollout.reference_BR is not None
            reference, score = rollout.reference_BR[rows], rollout.score_B[rows]
            return ranked_dpo_loss(log_probability, reference, score, mask, beta=spec.kl_coefficient)
        if spec.estimator == "reinforce":
            loss = reinforce_loss(
                log_probability, advantage, mask, aggregation=how, divisor_B=divisor, weight_BR=weight
            )
            return {"policy_loss": loss}
        old = rollout.log_probability_BR[rows]
        if spec.off_policy_mask is not None:
            near = off_policy_weights(log_probability, old, advantage, mask, most=spec.off_policy_mask)
            weight = near if weight is None else weight * near
        loss, clipped = clipped_policy_loss(
            log_probability,
            old,
            advantage,
            mask,
            clip_ratio=spec.clip_ratio,
            clip_ratio_high=spec.clip_ratio_high,
            level=spec.ratio,
            surrogate=spec.surrogate,
            dual_clip=spec.dual_clip,
            aggregation=how,
            divisor_B=divisor,
            weight_BR=weight,
        )
        return {"policy_loss": loss, "clip_fraction": clipped}

    def _value_part(
        self,
        value: Parallel,
        rollout: Rollout,
        part: Sequences,
        rows: Tensor,
        at: "MinibatchPosition",
        *,
        waits: bool,
    ) -> dict[str, Summed]:
        """Loss and gradient of the value model on some answers, and how many of its values are clipped."""
        spec = self.spec
        assert rollout.value_BR is not None
        assert rollout.return_BR is not None
        old, returns, mask = rollout.value_BR[rows], rollout.return_BR[rows], rollout.loss_mask_BR[rows]
        clip = spec.value_clip
        with value.accumulating() if waits else contextlib.nullcontext():
            (all_values,) = _first(value, at) or (answer_values(value.call, part, dtype=spec.dtype),)
            values = all_values[:, :-1]
            loss = clipped_value_loss(
                values,
                old,
                returns,
                mask,
                value_clip=clip,
                aggregation=spec.loss_aggregation,
                divisor_B=self._divisor(rollout, rows),
            )
            self.scaler.scale(loss.total).backward()  # type: ignore[no-untyped-call]
        return {"value_loss": loss, "value_clip_fraction": clipped_values(values, old, returns, mask, value_clip=clip)}

    def _gradients(
        self, totals: dict[str, float], at: "MinibatchPosition", *, learns: bool
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Turn sums into means, add the pretraining mix, clip; the norms before clipping."""
        size, norms, ptx = self.setup.ranks.data_size, dict[str, Tensor](), dict[str, float]()
        if learns:
            self.policy.scale_gradients(size / max(totals["policy_loss" + COUNT], 1.0))
            ptx = self._pretraining_mix(at)
            self.policy.scale_gradients(1 / self.scaler.factor)
            norms["gradient_norm"] = self.policy.clip(self.spec.gradient_clip)
        if self.value is not None:
            count = max(totals["value_loss" + COUNT], 1.0)
            self.value.scale_gradients(self.spec.value_loss_weight * size / (count * self.scaler.factor))
            norms["value_gradient_norm"] = self.value.clip(self.spec.gradient_clip)
        return _numbers(norms), ptx

    def _pretraining_mix(self, at: "MinibatchPosition") -> dict[str, float]:
        """PPO-ptx: the gradient of the mean language-modelling loss, weighted (Ouyang et al. 2022, eq. 2)."""
        if self.mix is None:
            return {}
        parts, ranks = self.mix.parts(at.number_of(self.spec)), self.setup.ranks
        terms = max(ranks.total({"terms": float(sum(map(counted_tokens, parts)))})["terms"], 1.0)
        weight = self.spec.ptx_weight * ranks.data_size / terms
        loss = torch.zeros((), dtype=torch.float64, device=self.setup.device)
        for index, rows in enumerate(parts):
            self.setup.stage.alive()
            with self.policy.accumulating() if index < len(parts) - 1 else contextlib.nullcontext():
                mix_loss = self.mix.loss(rows).loss_sum
                self.scaler.scale(weight * mix_loss).backward()  # type: ignore[no-untyped-call]
            loss += mix_loss.detach()
        return {"ptx_loss": ranks.total({"loss": loss.item()})["loss"] / terms}

    def _clear(self) -> None:
        for optimizer in (self.policy_optimizer, self.value_optimizer):
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class MinibatchPosition:
    """Position of a minibatch in a stage: its rollout, the epoch over it, its number in the epoch."""

    step: int
    epoch: int
    minibatch: int

    @property
    def is_first(self) -> bool:
        """Return True if the policy is still the one that sampled."""
        return self.epoch == 0 and self.minibatch == 0

    def number_of(self, spec: PpoStage) -> int:
        """Return the number of minibatches before this one, counted from the start of the stage.

        >>> spec = PpoStage(policy="p", reward="r", prompts=(), episodes=128, rollout_batch=64)
        >>> MinibatchPosition(1, 0, 1).number_of(spec)
        3
        """
        each = spec.rollout_batch // spec.minibatch
        return (self.step * spec.ppo_epochs + self.epoch) * each + self.minibatch


def _first(model: Parallel, at: MinibatchPosition) -> tuple[Tensor, ...]:
    """The pass that scored the rollout, where this is the minibatch that it waits for."""
    return model.first_pass.take(at.step) if at.is_first else ()


def _numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Values as plain numbers, fetched from the device at once."""
    if not values:
        return {}
    numbers = torch.stack([item.detach().double() for item in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True))


def _with_ratio(means: Mapping[str, float]) -> dict[str, float]:
    """The means with mean and variance of the ratio instead of its moments."""
    reported = {name: value for name, value in means.items() if name not in (RATIO, RATIO_SQUARE)}
    beyond, squared = means[RATIO], means[RATIO_SQUARE]
    return {**reported, "ratio_mean": 1 + beyond, "ratio_variance": squared - beyond**2}


def _add(sums: dict[str, Tensor], more: Mapping[str, Summed]) -> None:
    """Add totals and counts in double precision, where they are."""
    for name, summed in more.items():
        for key, value in ((name, summed.total), (name + COUNT, summed.count)):
            exact = value.detach().double()
            sums[key] = sums[key] + exact if key in sums else exact
