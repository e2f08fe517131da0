"""One engine: its table, and the parts of its folder, which are imported when they are first used."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from charter.engines.common.capabilities import Capabilities, RlEngine

if TYPE_CHECKING:
    from charter.artifacts.job import Job
    from charter.engines.common.adapter import EngineAdapter, LogReader
    from charter.engines.common.rendered import RenderedRun
    from charter.engines.common.request import Handover

JSON_LINES, PARQUET = ".jsonl", ".parquet"
Reads = Literal["tokens", "messages", "nothing"]
TOKENS, MESSAGES, NOTHING = get_args(Reads)


@dataclass(frozen=True, kw_only=True)
class EngineCode:
    """Code of an engine's folder that works on stages."""

    render: "Callable[[Handover], RenderedRun]"
    """Raises `SpecError` with everything that the engine cannot express."""
    adapter: "Callable[[Job, str], EngineAdapter]"
    """Adapter for a job, with the interpreter that has the engine."""
    log: "LogReader | None" = None
    """Reader of what it prints, for runs that somebody else started."""


@dataclass(frozen=True, kw_only=True)
class TrainingEngine:
    """One engine at one version: what others read of it, and how a stage becomes its configuration."""

    capabilities: Capabilities
    placements: RlEngine | None = None
    """Placements of a PPO stage's roles, where it is the engine that chooses among them."""
    title: str
    """As its authors write it."""
    package: str = ""
    """What is installed: a package of PyPI, or a repository."""
    checkout: str = ""
    """Variable that names a checkout of it, whose scripts are run; empty where the package is all that it needs."""
    version: str = ""
    """What the mapping was read from and is checked against."""
    beside: tuple[str, ...] = ()
    """Packages that compute beside its own."""
    checked_by: str = ""
    """Which code of the engine accepts what is rendered, for the support table."""
    data_suffix: str = JSON_LINES
    """Of the files that it reads, as `charter artifacts export` names them."""
    reads: Reads = "messages"
    """Form of its rows; nothing where tools of its own make its data."""
    has_peft: bool = False
    """Its adapters are peft's, so Charter can merge them."""
    has_processors: bool = False
    """It computes without an accelerator too."""
    code: Callable[[], EngineCode] | None = None
    """Imports what works on stages. None: the engine is planned for, or native."""

    @property
    def name(self) -> str:
        """Return the name by which charter.yaml calls it."""
        return self.capabilities.name

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of stage that it trains."""
        return self.capabilities.kinds
