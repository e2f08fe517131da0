"""Placement of the roles of OpenRLHF's PPO: which of them share accelerators, how many each has.

Source: cli/train_ppo_ray.py of OpenRLHF 0.11.2. Roles share accelerators in three ways only: policy with reference,
value with reward, or all of them with the generator (with async training: all but the generator). All of them are
trained with one ZeRO stage, one micro-batch and one ring; a scored model is sharded exactly where that stage is 3.
"""

from collections.abc import Iterator

from charter.engines.common.arguments import Arguments
from charter.engines.common.request import RlPlacement, RolesTogether
from charter.errors import Problem
from charter.spec.layout import Layout, ZeroStage
from charter.spec.stage import PpoStage

GENERATE = "generate"
ENGINE_NAMES = {"policy": "actor", "reference": "ref", "value": "critic", "reward": "reward"}
TRAINED_ROLES = {"policy", "value"}
TOGETHER = {frozenset({"policy", "reference"}): "actor_ref", frozenset({"value", "reward"}): "critic_reward"}
SHARED_MEMORY, OWN_MEMORY = 0.5, 0.9
"""Of an accelerator for vLLM: the README's template for shared ones, and what leaves room for CUDA's own on others."""


def placement_arguments(given: Arguments, stage: PpoStage) -> None:
    """Nodes and accelerators of every role, and of the generator."""
    placement = given.handover.placement or RlPlacement()
    trainers = [group for group in placement.groups if GENERATE not in group.roles]
    generators = [group for group in placement.groups if GENERATE in group.roles]
    for message, hint in _impossible(given.handover.layout, placement, trainers, generators):
        path = f"pipeline.{given.handover.name}.engine"
        given.fields.problems.append(Problem(path=path, message=f"openrlhf cannot {message}", hint=hint))
    if not generators:
        _all_together(given, stage, placement)
        return
    for group in trainers:
        _group(given, group)
    if len(trainers) == 1:
        given.give("--train.colocate_all")
    if placement.arrangement == "async":
        given.give("--train.async_enable")
        given.give("--train.async_queue_size", 1)
    _generator(given, sum(group.num_accelerators for group in generators), placement, memory=OWN_MEMORY)


def trained_micro_batch(given: Arguments) -> int:
    """The smallest micro-batch of the roles that are trained, which all of them get."""
    placement = given.handover.placement or RlPlacement()
    micro_batches = [group.layout.micro_batch for group in placement.groups if TRAINED_ROLES & set(group.roles)]
    return min([given.handover.layout.micro_batch, *micro_batches])


def data_sizes(given: Arguments) -> list[int]:
    """Data-parallel size of every group of roles that computes on rollouts."""
    placement = given.handover.placement or RlPlacement()
    sizes = [group.layout.data for group in placement.groups if GENERATE not in group.roles]
    return sizes or [given.handover.layout.data]


def _all_together(given: Arguments, stage: PpoStage, placement: RlPlacement) -> None:
    handover = given.handover
    roles = ["policy", "reference", "reward", *(["value"] if stage.has_value_model else [])]
    for role in roles:
        given.give(f"--{ENGINE_NAMES[role]}.num_nodes", handover.num_nodes)
        given.give(f"--{ENGINE_NAMES[role]}.num_gpus_per_node", handover.per_node)
    given.give("--train.colocate_all")
    given.give("--vllm.enable_sleep")
    if placement.arrangement == "offloaded":
        given.give("--ds.enable_sleep")
    _generator(given, handover.num_accelerators, placement, memory=SHARED_MEMORY)


def _group(given: Arguments, group: RolesTogether) -> None:
    size, per_node = group.num_accelerators, given.handover.per_node
    nodes = max(1, size // per_node)
    for role in group.roles:
        given.give(f"--{ENGINE_NAMES[role]}.num_nodes", nodes)
        given.give(f"--{ENGINE_NAMES[role]}.num_gpus_per_node", size // nodes)
    shared = TOGETHER.get(frozenset(group.roles))
    if shared is not None:
        given.give(f"--train.colocate_{shared}")


def _generator(given: Arguments, size: int, placement: RlPlacement, *, memory: float) -> None:
    given.give("--vllm.num_engines", size // placement.generator_tensor)
    given.give("--vllm.tensor_parallel_size", placement.generator_tensor)
    given.give("--vllm.gpu_memory_utilization", memory)
    given.give("--vllm.sync_backend", "nccl")


def _impossible(
    layout: Layout, placement: RlPlacement, trainers: list[RolesTogether], generators: list[RolesTogether]
) -> Iterator[tuple[str, str]]:
    if not generators and (len(trainers) > 1 or placement.arrangement in ("split", "async")):
        yield (
            f"run {placement.arrangement} without accelerators for the generator",
            "give it a group",
        )
    for group in generators:
        if len(group.roles) > 1:
            yield f"let the generator share with {', '.join(group.roles)} alone", "all roles together, or none"
    for group in trainers if generators else ():
        allowed = len(group.roles) == 1 or frozenset(group.roles) in TOGETHER
        everything = len(trainers) == 1 and placement.arrangement == "async"
        if not allowed and not everything:
            hint = "policy with reference and value with reward; all together only beside an async generator"
            yield f"put {', '.join(group.roles)} on the same accelerators beside a generator", hint
    for group in trainers:
        yield from _layout_of(layout, group)
    for size in [sum(group.num_accelerators for group in generators)] if generators else []:
        if size % placement.generator_tensor:
            yield f"divide {size} accelerators into generators of {placement.generator_tensor}", "another tensor size"


def _layout_of(layout: Layout, group: RolesTogether) -> Iterator[tuple[str, str]]:
    names, wanted = ", ".join(group.roles), group.layout
    degrees = ("tensor", "context")
    is_trained = bool(TRAINED_ROLES & set(group.roles))
    for name in (*degrees, "zero", "recompute", "offload_optimizer") if is_trained else degrees:
        if getattr(wanted, name) != getattr(layout, name):
            difference = f"{name} {getattr(wanted, name)} beside {getattr(layout, name)} of the others"
            yield f"give {names} {difference}", f"one {name} for all roles"
    if not is_trained and wanted.zero is ZeroStage.PARAMETERS and layout.zero is not ZeroStage.PARAMETERS:
        yield f"shard {names} while the trained roles have ZeRO {int(layout.zero)}", "ZeRO-3 for all roles"
