"""Operations of each kind of stage from its counters: the models it reads and those it trains."""

from typing import Any

from charter.catalog.huggingface import architecture_from_mapping
from charter.errors import DataError
from charter.models.engine_layout import DEFAULT_ATTENTION
from charter.spec.architecture import Architecture
from charter.spec.layout import Recompute
from charter.spec.ppo_stage import PpoStage
from charter.train.meter import PolicyWork, Reader, SupervisedWork
from charter.train.setup import Setup


def count_supervised(
    setup: Setup,
    config: Any,
    *,
    sequences: float,
    scalar_head: bool = False,
    has_adapter: bool = False,
    reads_reference: bool = False,
    reads_before: bool = False,
) -> None:
    """Let the meter count a stage that trains one model, of a Hugging Face `config`, on `sequences` per step."""
    architecture = _architecture(config)
    if architecture is None:
        return
    setup.meter.work = SupervisedWork(
        model=_trained(setup, architecture, scalar_head=scalar_head, has_adapter=has_adapter),
        sequences_per_step=sequences,
        reference=Reader(architecture=architecture) if reads_reference else None,
        reads_before=reads_before,
    )


def count_ppo(setup: Setup, spec: PpoStage, policy: Any, reward: Any) -> None:
    """Let the meter count the steps of PPO, by the Hugging Face configs of policy and reward model."""
    sampled, scored = _architecture(policy), _architecture(reward)
    if sampled is None or scored is None:
        return
    critic = _trained(setup, scored, scalar_head=True)
    computed = spec.minibatch / spec.rollout_batch if spec.old_from_update else 0.0
    setup.meter.work = PolicyWork(
        policy=_trained(setup, sampled, has_adapter=spec.adapter is not None),
        reward=Reader(architecture=scored, scalar_head=True),
        value=critic if spec.has_value_model else None,
        minibatches=spec.rollout_batch // spec.minibatch,
        reads=2.0 - computed + spec.has_reference,
    )


def _trained(
    setup: Setup, architecture: Architecture, *, scalar_head: bool = False, has_adapter: bool = False
) -> Reader:
    return Reader(
        architecture=architecture,
        scalar_head=scalar_head,
        frozen_base=has_adapter,
        recompute=_repeated(setup),
    )


def _repeated(setup: Setup) -> Recompute:
    """Return the recomputation that repeats operations: selective keeps products and, with sdpa, attention too."""
    mode = Recompute(setup.layout.recompute)
    is_free = mode is Recompute.SELECTIVE and setup.layout.attention == DEFAULT_ATTENTION
    return Recompute.NONE if is_free else mode


def _architecture(config: Any) -> Architecture | None:
    """None for a model that the planner does not know: its operations are left out."""
    try:
        return architecture_from_mapping(config.to_dict())
    except DataError:
        return None
