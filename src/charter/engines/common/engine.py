"""Engines that stages are handed over to, as Charter knows them."""

from collections.abc import Callable
from dataclasses import dataclass

from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import Handover
from charter.spec.stage import Engine


@dataclass(frozen=True, kw_only=True)
class HandoverEngine:
    """One engine at one version, and how a stage becomes its configuration."""

    name: Engine
    title: str
    """As its authors write it."""
    package: str
    """What is installed: a package of PyPI, or a repository."""
    version: str
    """What the mapping was read from and is checked against."""
    checked_by: str
    """Which code of the engine accepts what is rendered, for the support table."""
    kinds: tuple[str, ...]
    """Kinds of stage that it trains."""
    render: Callable[[Handover], RenderedRun]
    """Raises `SpecError` with everything that the engine cannot express."""
    data_suffix: str = ".jsonl"
    """Of the files that it reads, as `charter artifacts export` names them."""
