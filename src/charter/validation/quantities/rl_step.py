"""Steps of reinforcement learning and their phases: from row over jobs of each role to seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from charter.physics.columns import Array, array, stacked
from charter.physics.constants import ServingConstants
from charter.physics.generation import Drain, ResponseLengths, issue_of, rollout_terms
from charter.physics.kept_activations import layer_activations
from charter.physics.runs import Algorithm, RlConstants, RlPhases, RlStack, generate_seconds, rl_step_terms
from charter.physics.serving_devices import VLLM, GenerationEngine, ServingDevice, engine_named, weight_format
from charter.physics.serving_passes import ServingModel
from charter.physics.shapes import count_parameters
from charter.physics.step_time import UpdateJob, update_seconds
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.validation.quantities.generation import resident_sequences
from charter.validation.quantities.rl_setting import (
    RlSetting,
    best_layout,
    printed_layout,
    rl_setting,
)
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.metrics import in_milliseconds, rl_metric, role_of_phase
from charter.validation.rows.shapes import architecture_of_size
from charter.validation.stacks import bits_of, update_stack

COLOCATED_ROOM = 0.6
"""Share of a device that the generation engine may take beside training, as usual in recipes."""
WEIGHTS_ROOM = 0.3
"""Share of a device that the weights of a rollout engine take at most where no degree is printed. Judgement."""
FEWEST_TOGETHER, MOST_TOGETHER = 2.0, 16.0
"""Sequences per device and micro-batch that the scripts of trainers without a separate engine set. Judgement."""
EAGER_SLOWNESS = float(ServingConstants().eager_layer_seconds / ServingConstants().graph_layer_seconds)
"""Time to issue a layer operation by operation over that of a captured graph."""
SHARD_GATHERS, NETWORK_OVER_LINK = 3.0, 0.1
"""Gathers of sharded weights per step outside of training, and time over NVLink against the network (data sheets)."""


@dataclass(frozen=True, kw_only=True)
class RlCase:
    """One configuration of a reinforcement-learning step."""

    stack: RlStack
    algorithm: Algorithm
    model: ServingModel
    group: ServingDevice
    engine: GenerationEngine
    sequences: float
    """Answers of a step on one engine replica."""
    limit: float
    """Decoded together on it."""
    batches: float
    """After one another, each until its longest answer ends."""
    prompt: float
    lengths: ResponseLengths
    score_seconds: float
    update_seconds: float
    refit_bytes: float
    side_by_side: bool
    colocated: bool
    """A separate engine shares the accelerators with training, and sleeps while it runs."""
    metric: str
    tokens_counted: float
    """Tokens (answers' tokens, samples) of a step that a rate counts: all, or those of one accelerator."""
    share: float = 1.0
    """Of the seconds of the phase, those that the row measured: of one model where several take turns."""
    scale: float = 1.0
    """From seconds to the row's unit."""


def rl_case(row: Measurement) -> RlCase:
    """The phases behind a row; raises Refusal where model, accelerator or count of accelerators is unknown."""
    setting = rl_setting(row)
    return rl_case_of(row, setting)


def rl_case_of(row: Measurement, setting: RlSetting) -> RlCase:
    """The phases of a setting on the layout of its row."""
    s, side = setting, row.rl_mode.casefold() in ("one-step-off", "async", "off-policy", "one-step")
    engine = engine_named(f"{row.framework} {row.notes}" if "vllm" in row.notes.casefold() else s.stack.engine) or VLLM
    tensor, replicas, training = _split(row, s, side=side)
    if _is_eager(row, s, tensor):
        engine = replace(engine, layer_slowness=EAGER_SLOWNESS)
    weights = weight_format(row.dtype if "fp8" in row.dtype.casefold() else "")
    room = engine.memory_share if side else COLOCATED_ROOM
    limit = resident_sequences(
        s.architecture,
        room * s.accelerator.memory_bytes,
        weights=weights,
        cache_bytes=2.0,
        tensor=tensor,
        pipeline=1,
        tokens=s.prompt + s.lengths.mean,
    )
    score, update = _training(row, s, training)
    sequences = max(1.0, s.samples / replicas) if s.algorithm.generates else 1.0
    batches = float(math.ceil(sequences / s.stack.together)) if s.stack.together else 1.0
    return RlCase(
        stack=s.stack,
        algorithm=s.algorithm,
        model=ServingModel.of(s.architecture),
        group=ServingDevice.of(s.accelerator, weights=weights, tensor=tensor, attention=engine.attention),
        engine=engine,
        sequences=sequences / batches,
        limit=min(limit, float(engine.most_sequences)),
        batches=batches,
        prompt=s.prompt,
        lengths=s.lengths,
        score_seconds=_in_turns(score, s),
        update_seconds=_in_turns(update, s),
        refit_bytes=_refit_bytes(row, s),
        side_by_side=side,
        colocated=s.stack.resharding and not side,
        metric=rl_metric(row) or "step",
        tokens_counted=_counted(row, s),
        share=_share(row, s, score, update),
        scale=1e3 if in_milliseconds(row) else 1.0,
    )


def _is_eager(row: Measurement, s: RlSetting, tensor: int) -> bool:
    """Return True if the generator runs without captured graphs, by its stack's release or its spread over nodes."""
    until = s.stack.eager_until
    dated = re.match(r"20\d\d-\d\d", row.stack_version)
    spans = tensor > max(s.accelerator.scaleup_domain, 1)
    return bool(until) and (spans or (dated is not None and dated[0] <= until))


def _counted(row: Measurement, s: RlSetting) -> float:
    each = {"samples": 1.0, "answers": s.lengths.mean}.get(rl_metric(row) or "", s.mean_len)
    return s.samples * each / (s.devices if "per_gpu" in row.metric else 1)


def _refit_bytes(row: Measurement, s: RlSetting) -> float:
    """Bytes every accelerator receives per step so that a rollout (and scoring) has whole weights.

    A separate engine takes the whole model once. A hybrid engine gathers shards of ZeRO-3 for the rollout and for two
    scoring passes, over the network or, inside a node, over a link that much faster.
    """
    model_bytes = 2.0 * count_parameters(s.architecture).total
    if s.stack.resharding:
        return model_bytes
    if s.devices == 1 or re.search(r"zero-?[012]|ddp|none", row.shard):
        return 0.0
    inside = s.devices <= max(s.accelerator.scaleup_domain, 1)
    return SHARD_GATHERS * model_bytes * (NETWORK_OVER_LINK if inside else 1.0)


def _split(row: Measurement, s: RlSetting, *, side: bool) -> tuple[int, float, int]:
    """Tensor degree and number of engines, and accelerators that train."""
    node = max(s.accelerator.devices_per_node, 1)
    needed = 2.0 * count_parameters(s.architecture).total / (WEIGHTS_ROOM * s.accelerator.memory_bytes)
    tensor = row.gen_tp or 1
    while not row.gen_tp and tensor < min(needed, node) and 2 * tensor <= s.devices:
        tensor *= 2
    degrees = math.prod(degree or 1 for degree in (row.tp, row.pp, row.cp)) * (row.dp or 0)
    training = _policy_devices(s)
    if side:
        training = degrees or (s.devices - tensor * row.gen_dp if row.gen_dp else s.devices // 2)
        training = max(1, min(training, s.devices - 1))
    generating = s.devices - training if side else training
    replicas = float(row.gen_dp or max(1, generating // tensor))
    return tensor, replicas, training


def _policy_devices(s: RlSetting) -> int:
    """Accelerators of the policy: all of them unless a critic has its own, in whole nodes where there are several."""
    if not s.algorithm.critic or s.stack.policy_share == 1:
        return s.devices
    unit = s.accelerator.devices_per_node if s.devices > s.accelerator.devices_per_node else 1
    return max(unit, unit * round(s.devices * s.stack.policy_share / unit))


def _training(row: Measurement, s: RlSetting, devices: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of scoring and of updating with all samples of a step, by the model that does it."""
    batch = min(row.gbs or s.samples, s.samples)
    packed = max(1, int(s.seq_limit // s.mean_len)) if s.stack.packs else 1
    layout = printed_layout(row, devices, batch)
    if s.stack.tensor and not any((row.tp, row.pp, row.dp)):
        layout, _, _ = best_layout(_update_job(row, s, s.architecture, tensor=True), devices, batch)
    elif layout is None or (not s.stack.packs and not row.mbs):
        layout = _sharded(s, devices, batch)
    else:
        layout = _packed(layout, batch, packed)
    job = _update_job(row, s, s.architecture, tensor=layout.tensor > 1)
    steps = s.samples / batch
    step, forward = update_seconds(job, [layout]).at(0)
    role = role_of_phase(row)
    read = {"policy": s.algorithm.old_policy, "reference": s.algorithm.reference or role == "reference"}
    score = {name: steps * forward for name, is_read in read.items() if is_read}
    update = {"policy": steps * _epochs(row) * step}
    for name, size in _small_models(row, s).items():
        other = _update_job(row, s, _of_size(size, row.model), tensor=False)
        apart = s.devices - _policy_devices(s)
        _, step, forward = best_layout(other, apart or devices, batch)
        score[name] = steps * forward
        if name == "value":
            update[name] = steps * _epochs(row) * step
    return score, update


def _in_turns(seconds: Mapping[str, float], s: RlSetting) -> float:
    """Seconds of a phase whose models take turns; those of a critic's own accelerators run beside the policy's."""
    beside = sum(value for role, value in seconds.items() if role in ("value", "reward"))
    own = sum(seconds.values()) - beside
    return max(own, beside) if _policy_devices(s) < s.devices else own + beside


def _share(row: Measurement, s: RlSetting, score: Mapping[str, float], update: Mapping[str, float]) -> float:
    """Share of a phase that the model has whose part a row measured; raises Refusal where the step has no such model.

    What a function takes that gives the reward is its own: no model computes it, and no formula knows it.
    """
    role = role_of_phase(row)
    if role is None:
        return 1.0
    seconds = score if rl_metric(row) == "score" else update
    if role not in seconds:
        column = {"reward": "reward_params_b", "value": "critic_params_b"}.get(role, "notes")
        raise Refusal(f"the step has no {role} model by {column}, and nothing else predicts {row.metric}")
    return seconds[role] / _in_turns(seconds, s)


def _update_job(row: Measurement, s: RlSetting, architecture: Architecture, *, tensor: bool) -> UpdateJob:
    adapted = row.adapter in ("lora", "qlora")
    padded = s.prompt + s.lengths.longest_of(min(row.gbs or s.samples, s.samples))
    return UpdateJob(
        architecture=architecture,
        accelerator=s.accelerator,
        profile=update_stack(row, tensor=tensor),
        seq_len=s.mean_len if s.stack.packs else padded,
        bits=bits_of(row.dtype),
        adapter_rank=float(row.lora_rank or 16) if adapted else 0.0,
        base_bits=4.0 if row.adapter == "qlora" else 16.0,
        per_node=row.gpus_per_node,
    )


def _small_models(row: Measurement, s: RlSetting) -> dict[str, float]:
    """Sizes of the value model (trained) and of the reward model (read); blank is as large as the policy for PPO."""
    own = count_parameters(s.architecture).total / 1e9
    sizes = {}
    critic = own if row.critic_params_b is None and s.algorithm.critic else row.critic_params_b
    if critic and s.algorithm.critic:
        sizes["value"] = critic
    reward = own if row.reward_params_b is None and s.algorithm.critic else row.reward_params_b
    if reward:
        sizes["reward"] = reward
    return sizes


@lru_cache(maxsize=256)
def _of_size(size: float, name: str) -> Architecture:
    return architecture_of_size(size, name)


def _packed(layout: Layout, batch: float, packed: int) -> Layout:
    """Short sequences of a micro-batch that share one row of full length."""
    micro = max(1, min(layout.micro_batch * packed, int(batch // layout.data) or 1))
    return replace(layout, micro_batch=micro, accumulation=max(1, math.ceil(batch / (layout.data * micro))))


def _sharded(s: RlSetting, devices: int, batch: float) -> Layout:
    """ZeRO-3 over all devices with the largest micro-batch whose activations fit, recomputed for large models."""
    micro = together_in_training(s, devices)
    micro = round(max(1, min(micro, batch // devices or 1)))
    large = count_parameters(s.architecture).total > 1.5e10
    return Layout(
        data=devices,
        zero=ZeroStage.PARAMETERS if devices > 1 else ZeroStage.NONE,
        micro_batch=micro,
        accumulation=max(1, math.ceil(batch / (devices * micro))),
        recompute=Recompute.FULL if large else Recompute.NONE,
    )


def together_in_training(s: RlSetting, devices: int) -> float:
    """Sequences per device and micro-batch: twice the root of how many fit beside the sharded states.

    Judgement: scripts stay far below what would fit for small models, and recompute or offload for large ones.
    """
    parameters = count_parameters(s.architecture).total
    state_bytes = 16.0 * parameters / devices + 4.0 * parameters / max(devices, 1) + 4e9
    free = max(0.25 * s.accelerator.memory_bytes, 0.9 * s.accelerator.memory_bytes - state_bytes)
    layer = layer_activations(s.architecture, seq_len=s.seq_limit)
    one = layer.bytes_per_token(Layout(), fused_attention=False) * s.seq_limit * s.architecture.num_layers
    return min(max(2.0 * math.sqrt(max(free / one, 1.0)), FEWEST_TOGETHER), MOST_TOGETHER)


def _epochs(row: Measurement) -> float:
    match = re.search(r"(\d+)\s*(?:ppo|inner|update) epochs", row.notes, re.I)
    return float(match[1]) if match else 1.0


@dataclass(frozen=True, kw_only=True)
class PreparedRlSteps:
    """Rows as columns; `part` is which seconds of a step a row measured."""

    phases: RlPhases
    part: Array
    share: Array
    """Of that part."""
    wakes: Array
    """1 where a time of generation holds the hand-over of weights and the waking of the engine."""
    tokens: Array
    """Tokens of a step that a rate counts, else 0."""
    scale: Array
    """From seconds to the unit of a time."""


PARTS = ("step", "generate", "update", "other", "score", "weight sync")


class RlStep:
    """Whole steps and phases; see `charter.validation.score.Quantity`."""

    name = "rl step"
    constants = RlConstants

    def accepts(self, row: Measurement) -> bool:
        """Rows of kind ppo with a time or a rate of one step."""
        return row.kind == "ppo" and rl_metric(row) is not None

    def case(self, row: Measurement) -> RlCase:
        """The phases behind a row."""
        return rl_case(row)

    def stack(self, case: RlCase) -> str:
        """The framework."""
        return case.stack.label

    def prepare(self, cases: Sequence[RlCase]) -> PreparedRlSteps:
        """Cases as columns, with the rollout of each computed once."""
        return PreparedRlSteps(
            phases=phases_of(cases),
            part=array([PARTS.index(case.metric if case.metric in PARTS else "step") for case in cases]),
            share=array([case.share for case in cases]),
            wakes=array([case.stack.wakes_in_generation and case.colocated for case in cases]),
            scale=array([case.scale for case in cases]),
            tokens=array([0.0 if case.metric in PARTS else case.tokens_counted for case in cases]),
        )

    def predict(self, prepared: PreparedRlSteps, constants: RlConstants) -> Array:
        """Seconds, or tokens per second."""
        steps = rl_step_terms(prepared.phases, constants)
        busy = steps.part("score") + steps.part("update")
        generate = generate_seconds(prepared.phases, constants)
        generate = np.where(prepared.phases.side_by_side > 0, waited_seconds(generate, busy), generate)
        waking = prepared.wakes * (steps.part("weight sync") + constants.colocation_seconds)
        generate = generate + waking
        other = steps.part("score", "weight sync", "other") - waking
        parts = (
            steps.total,
            generate,
            steps.part("update"),
            other,
            steps.part("score"),
            steps.part("weight sync"),
        )
        seconds = prepared.share * np.choose(prepared.part.astype(int), parts)
        rate = prepared.tokens / np.maximum(seconds, 1e-12)
        return array(np.where(prepared.tokens > 0, rate, prepared.scale * seconds))


def waited_seconds(generate: Array, busy: Array) -> Array:
    """Seconds that a trainer waits for answers made beside it: what its log calls generation.

    `sqrt(g^2 + t^2) - t` of g seconds to generate and t to train: about `g - t` where generation is the slower side,
    and a little where it is not, since lengths of answers differ from batch to batch. The norm is judgement.

    >>> waited_seconds(array([100.0, 10.0]), array([10.0, 100.0])).round(1).tolist()
    [90.5, 0.5]
    """
    return array(np.hypot(generate, busy) - busy)


def phases_of(cases: Sequence[RlCase]) -> RlPhases:
    """Plain phases of cases: rollouts by the serving model, the rest as read."""
    rollout = rollout_terms(
        stacked([case.model for case in cases]),
        stacked([case.group for case in cases]),
        issue_of([case.engine for case in cases]),
        _columns(len(cases)),
        sequences=array([case.sequences for case in cases]),
        limit=array([case.limit for case in cases]),
        prompt=array([case.prompt for case in cases]),
        mean_tokens=array([case.lengths.mean for case in cases]),
        drain=Drain.of([case.lengths for case in cases], [min(case.sequences, case.limit) for case in cases]),
    ).total
    generates = array([case.algorithm.generates for case in cases])
    return RlPhases(
        generate=array(rollout * generates * array([case.batches for case in cases])),
        score=array([case.score_seconds for case in cases]),
        update=array([case.update_seconds for case in cases]),
        refit_bytes=array([case.refit_bytes for case in cases]),
        resamples=array([case.algorithm.resamples for case in cases]),
        side_by_side=array([case.side_by_side for case in cases]),
        colocated=array([case.colocated for case in cases]),
        overhead=array([case.stack.overhead for case in cases]),
        engine=array([case.stack.resharding for case in cases]),
    )


def _columns(count: int) -> ServingConstants:
    """Default constants with one value per case, so that they take the axis of a drain like everything else."""
    plain = ServingConstants()
    return ServingConstants(
        **{name: np.full(count, float(getattr(plain, name))) for name in plain.__dataclass_fields__}
    )


RL_STEP = RlStep()
