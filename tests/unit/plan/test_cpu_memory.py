"""Peaks on processors beside what the engine's tensors took (benchmarks/planner_vs_engine.py)."""

import planner_case as lab
import pytest

from charter.run.planned import planned_step
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.project import Resources
from charter.spec.stage import DpoStage, JudgeStage, PreferenceModelStage, PretrainStage, SftStage
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
COMMON = {"init": "base", "steps": 100}
FULL, CAST = {**COMMON, "dtype": "fp32"}, {**COMMON, "dtype": "bf16"}
PAIRS = {"data": ("pairs",), "global_batch": 8, "seq_len": 128}
MEASURED = [
    (PretrainStage(data=("chat",), global_batch=8, seq_len=256, **FULL), SMALL, 108_835_344),
    (PreferenceModelStage(data=("pairs",), global_batch=8, seq_len=128, **FULL), SMALL, 88_383_952),
    (SftStage(data=("chat",), global_batch=16, seq_len=128, resources=AGAIN, **FULL), SMALL, 42_171_692),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, resources=AGAIN, **FULL), DEEP, 147_920_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, adapter=Adapter(rank=8), **FULL), WIDE, 111_350_000),
    (PreferenceModelStage(data=("pairs",), global_batch=4, seq_len=128, **FULL), DEEP, 295_670_376),
    (SftStage(data=("chat",), global_batch=8, seq_len=64, **FULL), TINY, 10_010_000),
    (PretrainStage(data=("chat",), global_batch=8, seq_len=256, **CAST), SMALL, 91_697_680),
    (PreferenceModelStage(data=("pairs",), global_batch=8, seq_len=128, **CAST), SMALL, 76_700_000),
    (PreferenceModelStage(data=("pairs",), global_batch=8, seq_len=128, resources=AGAIN, **FULL), SMALL, 62_000_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, resources=AGAIN, **CAST), DEEP, 141_430_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, adapter=Adapter(rank=8), **CAST), WIDE, 99_410_000),
    (PreferenceModelStage(data=("pairs",), global_batch=4, seq_len=128, **CAST), DEEP, 268_950_000),
    (SftStage(data=("chat",), global_batch=8, seq_len=64, **CAST), TINY, 9_100_000),
    (DpoStage(**PAIRS, **FULL), SMALL, 117_874_000),
]
"""A quarter of the rows of DPO was prompt, as little as there can be."""


def step(stage, architecture):
    return planned_step(stage, lab.one(stage, HERE, architecture=architecture).stage("stage"))


@pytest.mark.parametrize(("stage", "architecture", "measured"), MEASURED, ids=lambda item: getattr(item, "kind", ""))
def test_the_peak_is_what_the_engine_allocates(stage, architecture, measured):
    assert step(stage, architecture).peak_bytes == pytest.approx(measured, rel=0.02)


BOUNDS = [
    (DpoStage(**PAIRS, **CAST), 97_930_000),
    # Gradients inside a layer are narrower where it casts, and are counted in fp32.
    (SftStage(data=("chat",), global_batch=16, seq_len=128, resources=AGAIN, **CAST), 34_848_044),
    (PreferenceModelStage(**PAIRS, resources=AGAIN, **CAST), 46_080_000),
]


@pytest.mark.parametrize(("stage", "measured"), BOUNDS)
def test_the_peak_is_somewhat_above_what_is_allocated(stage, measured):
    assert measured < step(stage, SMALL).peak_bytes < 1.11 * measured


def test_rows_under_a_mask_take_more_the_longer_what_is_read():
    def peak(format):
        stage = JudgeStage(pairs=("pairs",), global_batch=8, seq_len=128, format=format, **CAST)
        return step(stage, SMALL).bytes_by_part

    short, long = peak("yes_no"), peak("yes_no_mean")
    packed = step(SftStage(data=("chat",), global_batch=16, seq_len=128, **CAST), SMALL).bytes_by_part
    assert short["activations"] > packed["activations"]
    assert short.get("logits", 0.0) < packed["logits"] < long["logits"]


def test_recomputation_and_micro_batches_need_less():
    def peak(**resources):
        given = StageResources(**resources)
        stage = PretrainStage(data=("chat",), global_batch=8, seq_len=256, resources=given, **FULL)
        return step(stage, DEEP).bytes_by_part["activations"]

    assert peak(recompute="full") < 0.35 * peak()
    assert peak(micro_batch=2) == pytest.approx(peak() / 4, rel=0.05)
