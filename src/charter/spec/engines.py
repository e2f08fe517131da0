"""Where the engines of other projects are installed: the section `engines:` of `charter.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class EngineEnvironment:
    """One engine as it is installed on the machines of a run; never part of what is computed."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    python: str | None = None
    """Interpreter of the environment that holds it; the one that runs Charter unless given."""
    directory: str | None = None
    """Checkout whose scripts are run, of engines that are not a package (Megatron-LM, NeMo RL)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its processes get."""
