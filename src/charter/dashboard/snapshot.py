"""One project as it stood at one moment: what every page is made from. Frozen values, read once and shared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from charter.artifacts.stage_state import STATES, Phase, run_phase
from charter.ledger import Accounted
from charter.ledger.attempt import Attempt
from charter.ledger.sums import Sums

State = Literal["pending", "waiting", "running", "interrupted", "failed", "done"]
"""Tone in which a page shows a phase: the machine's word, and `waiting` for what somebody has to let go on."""
Json = Mapping[str, Any]


def tone_of(phase: Phase) -> State:
    """Return the tone in which a page shows a phase.

    >>> tone_of(Phase.QUEUED), tone_of(Phase.HELD), tone_of(Phase.DAMAGED)
    ('pending', 'waiting', 'interrupted')
    """
    return "waiting" if phase in (Phase.WAITING, Phase.HELD) else STATES[phase]


@dataclass(frozen=True, kw_only=True)
class StageNow:
    """One stage."""

    name: str
    kind: str
    phase: Phase
    why: str = ""
    step: int = 0
    target_step: int | None = None
    unit: str = "step"
    inputs: tuple[str, ...] = ()
    """The stages that it reads from."""
    outside_inputs: tuple[str, ...] = ()
    """The models and data sets that it reads."""
    needs_approval: bool = False
    directory: Path | None = None
    """Its directory, once it has one."""
    fingerprint: str = ""
    progress: Json = field(default_factory=dict)
    """`progress.json`: rates and metrics of its last step."""
    failure: str = ""
    checkpoint_at: float | None = None
    """Unix seconds of its newest checkpoint."""
    updated_at: float | None = None
    outputs: int = 0
    """Files that it has published."""
    planned: Json = field(default_factory=dict)
    """The stage as the plan has it."""

    @property
    def state(self) -> State:
        """Tone of the phase on pages."""
        return tone_of(self.phase)

    @property
    def done_share(self) -> float:
        """Return the finished share, from 0 to 1."""
        if self.state == "done":
            return 1.0
        return min(1.0, self.step / self.target_step) if self.target_step else 0.0


@dataclass(frozen=True, kw_only=True)
class CostGroup:
    """Cost of one owner, tag or kind of accelerator."""

    name: str
    sums: Sums


@dataclass(frozen=True, kw_only=True)
class LedgerNow:
    """Sums of the ledger, and its few rows that a page shows one by one."""

    whole: Sums = field(default_factory=Sums)
    by_stage: Mapping[str, Sums] = field(default_factory=dict)
    by_accelerator: tuple[CostGroup, ...] = ()
    by_owner: tuple[CostGroup, ...] = ()
    by_tag: tuple[CostGroup, ...] = ()
    outcomes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By stage: how many attempts ended how."""
    running: tuple[Attempt, ...] = ()
    recent: tuple[Accounted, ...] = ()
    """All attempts, oldest first, of a run that has few; empty otherwise."""
    spend: tuple[tuple[float, int], ...] = ()
    """Unix seconds, and what was spent until then in micro-USD: never falling."""
    read_at: float = 0.0
    """When it was, unix seconds; 0 when it never was."""
    problem: str = ""
    """Why it could not be read since; its figures are the last that were, or none."""

    @property
    def attempts(self) -> int:
        """Return the number of attempts."""
        return self.whole.totals.attempts

    def stage(self, name: str) -> Sums:
        """Return the sums of one stage."""
        return self.by_stage.get(name, Sums())


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A project, its stages, its ledger and its plan."""

    key: str
    label: str
    root: Path
    name: str
    version: str
    """Changes whenever anything that was read has changed."""
    read_at: float
    stages: tuple[StageNow, ...] = ()
    ledger: LedgerNow = field(default_factory=LedgerNow)
    plan: Json | None = None
    events: tuple[Json, ...] = ()
    """The last events of `events.jsonl`, oldest first."""
    owner: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    """Those of the file, then those that people have put on the run."""
    own_tags: tuple[str, ...] = ()
    """Names of those that people have put on the run, and may take off."""
    budget_limit_usd: float | None = None
    on_exceed: str = ""
    sweeps: tuple[str, ...] = ()
    """Those that the file names."""
    deadline_seconds: float | None = None
    max_parallel_stages: int = 1
    machine_usd_per_hour: float | None = None
    """Price of the machine that attempts of this run share, where they are no jobs of a scheduler."""
    engine: str = ""
    problems: tuple[str, ...] = ()
    """What could not be read, in words."""

    @property
    def phase(self) -> Phase:
        """Phase of the whole run."""
        return run_phase(stage.phase for stage in self.stages)

    def stage(self, name: str) -> StageNow | None:
        """The stage of that name."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def failed_above(self, stage: StageNow) -> str:
        """The failed stage that a stage waits for, itself or by way of others; empty where none failed."""
        above = list(stage.inputs)
        for name in above:  # grows while it is walked
            source = self.stage(name)
            if source is not None and source.state == "failed":
                return name
            above += [other for other in (source.inputs if source else ()) if other not in above]
        return ""
