"""Setup of every training stage: device, processes, layout, meter."""

import sys
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import Job, Reader, stage_rows
from charter.artifacts.stage_dir import StageDir
from charter.data.rows import SkippedRows
from charter.engines.common.capabilities import of_kind, refused_kernels, unsupported
from charter.engines.native.capabilities import CAPABILITIES
from charter.errors import StageError
from charter.models.engine_layout import StageLayout, engine_layout
from charter.models.parallel import moments_on_host
from charter.models.ranks import Ranks, join
from charter.models.runtime import configure
from charter.spec.execution import ExecutableLayout
from charter.spec.stage_base import Stage
from charter.train.meter import Meter, peak_of

Made = TypeVar("Made")


@dataclass
class Setup:
    """A stage as one of its processes sees it."""

    stage: StageDir
    ranks: Ranks
    layout: StageLayout
    meter: Meter
    skipped: SkippedRows = field(default_factory=SkippedRows)
    """Bad rows of all the data that the stage has read."""

    @property
    def job(self) -> Job:
        """Job of the stage."""
        return self.stage.job

    @property
    def device(self) -> torch.device:
        """Device on which this process computes."""
        return self.ranks.device

    @property
    def moments_on_host(self) -> bool:
        """Return True if optimizers keep their moments in host memory."""
        return moments_on_host(self.layout, self.device)

    def seed(self, *parts: str | int) -> int:
        """The seed of one draw of this stage."""
        return draw_seed(self.job.seed, self.job.stage, *parts)

    def rows(self, role: str, read: Reader[Made]) -> list[Made]:
        """All rows of a role; those left out are told and counted."""
        values, skipped = stage_rows(self.job, role, read)
        self.count_skipped(skipped)
        for line in skipped.lines() if self.ranks.is_first else ():
            print(line, file=sys.stderr)
        return values

    def count_skipped(self, skipped: SkippedRows) -> None:
        """Have the metrics count rows that a reader has skipped, and has told."""
        self.skipped.count += skipped.count

    def own_parts(self) -> tuple[int, ...]:
        """Return the parts of a seed that are this process's own; empty where there is one process."""
        data = (self.ranks.data_rank,) if self.ranks.data_size > 1 else ()
        return (*data, self.ranks.context_rank) if self.ranks.context_size > 1 else data


def check_engine(layout: StageLayout, spec: Stage) -> None:
    """Refuse what the engine would compute wrongly; checks before the start read the same table."""
    for _, reason in refused_kernels(
        spec,
        attention=layout.attention,
        compiled=layout.compile,
        recompute=layout.recompute,
        offloads_activations=layout.offload_activations,
        splits_sequence=layout.sequence_parallel,
        shares_rows=layout.context > 1,
    ):
        raise StageError(reason)
    able, degrees = of_kind(CAPABILITIES, spec), ExecutableLayout(tensor=layout.tensor, context=layout.context)
    if layout.tensor > 1 and not able.tensor:
        raise StageError("dropout cannot be drawn beside tensor parallelism; use dropout 0, or tensor 1 with zero 3")
    for _, reason in unsupported(degrees, able):
        raise StageError(f"{reason}, in a stage of kind {spec.kind}")
    if layout.sequence_parallel and not able.sequence_parallel:
        raise StageError(f"stages of kind {spec.kind} run without sequence_parallel, whose sums have other bits")


def set_up(stage: StageDir) -> Setup:
    """Configure this process as the stage's record froze it, and meet the others."""
    device = configure(stage.job.frozen)
    layout = engine_layout(stage.job.frozen)
    check_engine(layout, stage.job.spec)
    ranks = join(stage.path, device, tensor=layout.tensor, context=layout.context)
    dtype = str(getattr(stage.job.spec, "dtype", "fp32"))
    meter = Meter(stage.path, device=device, peak_flops_per_second=peak_of(device, dtype), processes=ranks.world_size)
    return Setup(stage=stage, ranks=ranks, layout=layout, meter=meter)
