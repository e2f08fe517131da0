"""Peaks on processors beside what the engine's tensors took (benchmarks/planner_vs_engine.py)."""

import planner_case as lab
import pytest

from charter.run.planned import planned_step
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.project import Resources
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_base import StageResources

HERE = Resources(infra="local", accelerators=("cpu",), cpus=1)
SHARED = {"tied_embeddings": True}
TINY = Architecture(hidden_size=64, num_layers=2, num_heads=4, intermediate_size=176, vocab_size=512, **SHARED)
SMALL = Architecture(
    hidden_size=128, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=352, vocab_size=1024, **SHARED
)
DEEP = Architecture(
    hidden_size=256, num_layers=10, num_heads=8, num_kv_heads=4, intermediate_size=704, vocab_size=1024, **SHARED
)
WIDE = Architecture(hidden_size=256, num_layers=4, num_heads=8, intermediate_size=704, vocab_size=2048)
AGAIN = StageResources(recompute="full")
COMMON = {"init": "base", "steps": 100, "dtype": "fp32"}
MEASURED = [
    (PretrainStage(data=("chat",), global_batch=8, seq_len=256, **COMMON), SMALL, 117_124_560),
    (DpoStage(data=("pairs",), global_batch=8, seq_len=128, **COMMON), SMALL, 121_790_000),
    (PreferenceModelStage(data=("pairs",), global_batch=8, seq_len=128, **COMMON), SMALL, 88_383_952),
    (SftStage(data=("chat",), global_batch=16, seq_len=128, resources=AGAIN, **COMMON), SMALL, 42_170_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, resources=AGAIN, **COMMON), DEEP, 147_920_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, adapter=Adapter(rank=8), **COMMON), WIDE, 119_640_000),
    (PreferenceModelStage(data=("pairs",), global_batch=4, seq_len=128, **COMMON), DEEP, 295_670_376),
    (SftStage(data=("chat",), global_batch=8, seq_len=64, **COMMON), TINY, 11_050_000),
]


def step(stage, architecture):
    return planned_step(stage, lab.one(stage, HERE, architecture=architecture).stage("stage"))


@pytest.mark.parametrize(("stage", "architecture", "measured"), MEASURED, ids=lambda item: getattr(item, "kind", ""))
def test_the_peak_is_what_the_engine_allocates(stage, architecture, measured):
    assert step(stage, architecture).peak_bytes == pytest.approx(measured, rel=0.02)


def test_recomputation_and_micro_batches_need_less():
    def peak(**resources):
        given = StageResources(**resources)
        stage = PretrainStage(data=("chat",), global_batch=8, seq_len=256, resources=given, **COMMON)
        return step(stage, DEEP).bytes_by_part["activations"]

    assert peak(recompute="full") < 0.35 * peak()
    assert peak(micro_batch=2) == pytest.approx(peak() / 4, rel=0.05)
