"""Handover of one stage to an engine: laid out on its accelerators, with the places of what it reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeVar

from charter.spec.architecture import Architecture
from charter.spec.layout import Layout
from charter.spec.stage_base import Engine, Stage

Arrangement = Literal["colocated", "offloaded", "split", "async"]
Kind = TypeVar("Kind", bound=Stage)
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class RolesTogether:
    """Accelerators of a reinforcement-learning stage that do the same work."""

    roles: tuple[str, ...]
    """Of policy, value, reward, reference; `generate` for the generator."""
    num_accelerators: int
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class RlPlacement:
    """Placement of the roles of a reinforcement-learning stage."""

    arrangement: Arrangement = "colocated"
    groups: tuple[RolesTogether, ...] = ()
    """Empty where all roles share all accelerators under the stage's one layout."""
    generator_tensor: int = 1
    """Tensor parallelism of the generator (vLLM)."""


@dataclass(frozen=True, kw_only=True)
class HandoverPaths:
    """Paths as the engine will see them."""

    work: str
    """Directory that the engine runs in: its configuration files, and what it writes."""
    models: Mapping[str, str]
    """Role of the stage's spec (`init`, `policy`, `reward`) -> Hugging Face directory, or name on a hub."""
    data: Mapping[str, str]
    """Role -> the file that Charter writes for the engine: all data sets of the role in one."""
    resume_from: str | None = None
    """The engine's own checkpoint to go on from, in the place where the engine looks for it."""

    @property
    def trained(self) -> str:
        """Model that training begins with: the policy of a reinforcement-learning stage, else `init`."""
        return self.models["policy" if "policy" in self.models else "init"]


@dataclass(frozen=True, kw_only=True)
class Handover:
    """One stage for one engine."""

    engine: Engine
    run: str
    name: str
    stage: Stage
    seed: int
    layout: Layout
    num_nodes: int
    per_node: int
    """Accelerators of a node; of `cpu`, processes."""
    accelerator: str
    """Catalog name, or `cpu`."""
    target_steps: int
    """Optimizer steps, or rollouts, after which the stage is done."""
    architectures: Mapping[str, Architecture]
    """Role -> shape of the model."""
    paths: HandoverPaths
    rows: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Role -> rows of its data, where they are known."""
    placement: RlPlacement | None = None
    """Of a reinforcement-learning stage."""
    keep_last: int = 2
    """Checkpoints that are kept."""
    on_ray: bool = False
    """A Ray cluster with all nodes is there: one process starts the engine, and nothing starts Ray."""
    is_run: bool = False
    """A process of Charter's runs beside the engine: it asks the judges of the stage, and watches its rewards."""
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """File of the user's own reward functions or of an environment, as charter.yaml names it -> its text."""

    def stage_as(self, kind: type[Kind]) -> Kind:
        """The fields of the stage, which is of a kind that the engine's mapping was written for."""
        if not isinstance(self.stage, kind):
            raise AssertionError(f"{self.engine} maps no stages of kind {self.stage.kind} so")
        return self.stage

    @property
    def is_cpu(self) -> bool:
        """Return True if processors do the work."""
        return self.accelerator == CPU

    @property
    def starts_ray(self) -> bool:
        """Return True if Ray has to be started on several nodes before an engine that is an application of it."""
        return self.num_nodes > 1 and not self.on_ray

    @property
    def num_accelerators(self) -> int:
        """Of all nodes."""
        return self.num_nodes * self.per_node
