"""One engine's view of a PPO stage on one place: the tables that placements are read from, and the room of a node."""

from dataclasses import dataclass
from functools import lru_cache

from charter.catalog.accelerators import Accelerator
from charter.engines.common.capabilities import RlEngine
from charter.physics.node.host import host_terms
from charter.physics.runs.rl_step import RlConstants
from charter.plan.hardware.host_room import node_memory_bytes
from charter.plan.hardware.place import Place
from charter.plan.options.question import Question
from charter.plan.physics.engine_knowledge import engine_knowledge
from charter.plan.rl.placement import Placed, group_sizes
from charter.plan.rl.tables import Groups
from charter.plan.rl.work import RlWork
from charter.units import GIB


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One engine's view of a stage on one place: what placements are searched with."""

    question: Question
    engine: RlEngine
    work: RlWork
    place: Place

    @property
    def capacity(self) -> float:
        """Bytes that an estimate may reach on an accelerator."""
        constants = engine_knowledge(self.engine.name, self.question.knowledge)
        return constants.usable_bytes(self.place.accelerator, self.question.knowledge)

    @property
    def groups(self) -> Groups:
        """Tables of all group sizes that any node count of the place asks for."""
        knowledge = self.question.knowledge
        return _groups(
            _TableKey(
                work=self.work,
                engine=self.engine,
                accelerator=self.place.accelerator,
                per_node=self.place.per_node,
                nodes=self.place.nodes,
                question=self.question,
                constants=knowledge.rl_constants(self.engine.stack.label),
            )
        )


def host_shortage(setting: Setting, item: Placed) -> str | None:
    """Return why what waits in host memory does not fit a node beside loading and processes; None where it does.

    Engines of reinforcement learning save synchronously, so no second copy of a checkpoint is staged.
    """
    waiting = max(group.host_bytes for group in item.trainers)
    if not waiting:
        return None
    ranks = min(setting.place.per_node, max(group.size for group in item.trainers))
    need = host_terms(
        loading_bytes=setting.work.weight_bytes, checkpoint_bytes=0.0, offload_bytes=waiting * ranks, ranks=ranks
    ).total
    have = node_memory_bytes(setting.place)
    if need <= have:
        return None
    return (
        f"fits the accelerators, but a node needs {need / GIB:,.0f} GiB of system memory for what waits there, "
        f"and has {have / GIB:,.0f}"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _TableKey:
    """Key of tables: equal where the same stage, engine and accelerator are asked for again."""

    work: RlWork
    engine: RlEngine
    accelerator: Accelerator
    per_node: int
    nodes: tuple[int, ...]
    question: Question
    constants: RlConstants

    @property
    def _identity(self) -> tuple[object, ...]:
        a = self.accelerator
        network = a.scaleout_bytes_per_second_per_node
        return (id(self.question), self.engine.name, a.name, network, self.per_node, self.nodes)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TableKey) and self._identity == other._identity


@lru_cache(maxsize=64)
def _groups(key: _TableKey) -> Groups:
    sizes = {nodes * key.per_node for nodes in key.nodes}
    sizes |= {part for size in tuple(sizes) for part in group_sizes(size, key.per_node)}
    return Groups(
        key.work,
        key.engine,
        key.accelerator,
        sizes=sorted(sizes),
        per_node=key.per_node,
        constants=key.constants,
        fixed=key.question.fixed,
    )
