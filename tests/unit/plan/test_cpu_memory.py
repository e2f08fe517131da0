"""Peaks on processors beside what the engine's tensors took (benchmarks/planner_vs_engine.py)."""

from dataclasses import replace

import planner_case as lab
import pytest

from charter.run.planned import planned_step
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter
from charter.spec.ppo_stage import PpoStage
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
VOCABULARY = Architecture(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=704, vocab_size=24_000)
AGAIN = StageResources(recompute="full")
COMMON = {"init": "base", "steps": 100}
FULL, CAST = {**COMMON, "dtype": "fp32"}, {**COMMON, "dtype": "bf16"}
PAIRS = {"data": ("pairs",), "global_batch": 8, "seq_len": 128}
ROLLOUTS = {
    "policy": "base", "reward": "base", "prompts": ("prompts",), "dtype": "fp32", "rollout_batch": 32, "minibatch": 8,
    "max_prompt_tokens": 64, "max_new_tokens": 64, "min_new_tokens": 64,
}  # fmt: skip
MEASURED = [
    (PretrainStage(data=("chat",), global_batch=8, seq_len=256, **FULL), SMALL, 99_380_000),
    (PreferenceModelStage(data=("pairs",), global_batch=8, seq_len=128, **FULL), SMALL, 75_514_704),
    (SftStage(data=("chat",), global_batch=16, seq_len=128, resources=AGAIN, **FULL), SMALL, 41_646_892),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, resources=AGAIN, **FULL), DEEP, 147_390_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, adapter=Adapter(rank=8), **FULL), WIDE, 111_350_000),
    (PreferenceModelStage(data=("pairs",), global_batch=4, seq_len=128, **FULL), DEEP, 272_980_008),
    (SftStage(data=("chat",), global_batch=8, seq_len=64, **FULL), TINY, 9_350_000),
    (PretrainStage(data=("chat",), global_batch=8, seq_len=256, **CAST), SMALL, 91_697_680),
    (PreferenceModelStage(data=("pairs",), global_batch=8, seq_len=128, **CAST), SMALL, 76_700_000),
    (PreferenceModelStage(data=("pairs",), global_batch=8, seq_len=128, resources=AGAIN, **FULL), SMALL, 62_000_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, resources=AGAIN, **CAST), DEEP, 141_430_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, adapter=Adapter(rank=8), **CAST), WIDE, 99_410_000),
    (PreferenceModelStage(data=("pairs",), global_batch=4, seq_len=128, **CAST), DEEP, 268_950_000),
    (SftStage(data=("chat",), global_batch=8, seq_len=64, **CAST), TINY, 9_100_000),
    (DpoStage(**PAIRS, **FULL), SMALL, 110_396_888),
    (PpoStage(episodes=3200, **ROLLOUTS), SMALL, 104_650_000),
]
"""A quarter of the rows of DPO was prompt, as little as there can be."""


def step(stage, architecture):
    return planned_step(stage, lab.one(stage, HERE, architecture=architecture).stage("stage"))


@pytest.mark.parametrize(("stage", "architecture", "measured"), MEASURED, ids=lambda item: getattr(item, "kind", ""))
def test_the_peak_is_what_the_engine_allocates(stage, architecture, measured):
    assert step(stage, architecture).peak_bytes == pytest.approx(measured, rel=0.02)


SPREAD = [
    (SftStage(data=("chat",), global_batch=4, seq_len=256, **FULL), DEEP, 2, {}, 224_230_000),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, **FULL), DEEP, 2, {"zero": 3}, 153_142_796),
    (SftStage(data=("chat",), global_batch=8, seq_len=128, **FULL), WIDE, 2, {"zero": 2, "micro_batch": 2}, 80_555_016),
    (
        SftStage(data=("chat",), global_batch=4, seq_len=256, **FULL),
        DEEP,
        2,
        {"zero": 3, "recompute": "full"},
        83_830_796,
    ),
    (SftStage(data=("chat",), global_batch=4, seq_len=128, **FULL), VOCABULARY, 2, {"zero": 3}, 204_169_124),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, **FULL), DEEP, 2, {"zero": 3, "context": 2}, 168_318_988),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, **FULL), WIDE, 4, {"zero": 3, "context": 2}, 47_746_092),
    (SftStage(data=("chat",), global_batch=4, seq_len=256, **FULL), WIDE, 2, {"context": 2}, 127_591_708),
    (
        PreferenceModelStage(data=("pairs",), global_batch=4, seq_len=128, **FULL),
        DEEP,
        2,
        {"zero": 3, "context": 2},
        161_100_856,
    ),
]
"""Processes, their layout, and what the fullest of them took."""


@pytest.mark.parametrize(("stage", "architecture", "processes", "layout", "measured"), SPREAD)
def test_processes_that_share_a_model_have_their_parts_of_it(stage, architecture, processes, layout, measured):
    stage = replace(stage, resources=StageResources(**layout))
    assert spread_step(stage, architecture, processes).peak_bytes == pytest.approx(measured, rel=0.02)


def spread_step(stage, architecture, processes):
    here = replace(HERE, accelerators=(f"cpu:{processes}",))
    return planned_step(stage, lab.one(stage, here, architecture=architecture).stage("stage"))


@pytest.mark.parametrize(("layout", "measured"), [({}, 5_863_624), ({"zero": 3}, 5_340_504)])
def test_several_processes_score_a_few_rows_at_a_time(layout, measured):
    """One process scores 64 at a time when a preference model is done, which of a model as small would be the peak."""
    stage = PreferenceModelStage(
        data=("pairs",), global_batch=8, seq_len=64, resources=StageResources(**layout), **FULL
    )
    assert spread_step(stage, TINY, 2).peak_bytes == pytest.approx(measured, rel=0.03)


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
