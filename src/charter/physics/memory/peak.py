"""Bytes per accelerator at the peak of a training step, phase by phase and term by term, for one layout.

The formulas are those of `memory_table`, over arrays; serving is in `inference_memory`.
"""

from dataclasses import replace

from charter.catalog.accelerators import Accelerator
from charter.physics.layouts import Layouts
from charter.physics.memory.activations import Implementation
from charter.physics.memory.breakdown import MemoryBreakdown
from charter.physics.memory.constants import TrainingMemoryConstants, memory_sigma
from charter.physics.memory.inference import inference_memory
from charter.physics.memory.profile import NATIVE, CrossEntropy, MemoryProfile
from charter.physics.memory.shape import AdapterUse, Head, MemoryJob, MemoryShape
from charter.physics.memory.table import StagePhases, training_memory_table
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout

__all__ = ["CrossEntropy", "Head", "MemoryBreakdown", "inference_memory", "training_memory"]


def training_memory(
    architecture: Architecture,
    layout: Layout,
    *,
    seq_len: int,
    precision: TrainingPrecision = FSDP_MIXED,
    adapter: Adapter | None = None,
    head: Head = "lm",
    fused_attention: bool = True,
    cross_entropy: CrossEntropy | None = None,
    logit_share: float = 1.0,
    dropout: float = 0.0,
    implementation: Implementation | None = None,
    accelerator: Accelerator | None = None,
    profile: MemoryProfile = NATIVE,
    recompute_share: float = 1.0,
    offload_activations: bool = False,
    end_layers: tuple[int, int] | None = None,
    constants: TrainingMemoryConstants | None = None,
) -> MemoryBreakdown:
    """Bytes of the fullest rank at the fullest phase of a training step.

    `logit_share` is the share of positions whose logits are computed; `profile` says whose code runs, and
    `implementation` and `cross_entropy` override it; `recompute_share` is the share of layers that full recomputation
    covers; `end_layers` are the layers of the first and the last pipeline stage where the split is uneven.
    Reading it: docs/concepts/memory.md.

    >>> from charter.catalog import models
    >>> from charter.spec.layout import Recompute, ZeroStage
    >>> llama = models.get("Llama-3.1-8B").architecture
    >>> layout = Layout(data=8, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)
    >>> memory = training_memory(llama, layout, seq_len=4096)
    >>> round(memory.parameter_bytes / 2**30, 2), memory.phase
    (3.74, 'end of backward')
    """
    if implementation is not None:
        profile = replace(profile, implementation=implementation)
    job = MemoryJob(
        architecture=architecture,
        seq_len=seq_len,
        precision=precision,
        profile=profile,
        adapter=AdapterUse.of(adapter) if adapter else None,
        head=head,
        fused_attention=fused_attention,
        cross_entropy=cross_entropy,
        logit_share=logit_share,
        dropout=dropout > 0,
        recompute_share=recompute_share,
        offload_activations=offload_activations,
        end_layers=end_layers,
        accelerator=accelerator,
    )
    return job_memory(job, layout, constants)


def job_memory(job: MemoryJob, layout: Layout, constants: TrainingMemoryConstants | None = None) -> MemoryBreakdown:
    """The same of a job whose traits are all given."""
    table = training_memory_table(MemoryShape.of(job), Layouts.of(layout), constants)
    stage, phase = table.fullest()
    phases = StagePhases(table, stage)
    return MemoryBreakdown(
        terms=phases[phase],
        stage="only" if layout.pipeline == 1 else stage,
        phase=phase,
        phases=phases,
        sigma=memory_sigma(job.profile.name),
    )
