"""Plans of stages that several processes of this machine share (`cpu:2`)."""

import planner_case as lab
import pytest

from charter.run.planned import planned_step
from charter.spec.architecture import Architecture
from charter.spec.project import Resources
from charter.spec.stage import GenerateStage, PretrainStage
from charter.spec.stage_base import StageResources

SMALL = Architecture(
    hidden_size=128, num_layers=4, num_heads=4, num_kv_heads=2, intermediate_size=352, vocab_size=1024,
    tied_embeddings=True,
)  # fmt: skip
PARAMETERS = 1024 * 128 + 4 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 352 + 2 * 128) + 128
GRADIENTS = 4 * PARAMETERS


def planned(accelerators, **changes):
    stage = PretrainStage(
        init="base", data=("chat",), steps=100, dtype="fp32", **{"global_batch": 8, "seq_len": 256} | changes
    )
    resources = Resources(infra="local", accelerators=(accelerators,), cpus=2)
    return stage, lab.one(stage, resources, architecture=SMALL).stage("stage")


def test_every_process_holds_a_copy_and_its_share_of_the_batch():
    stage, two = planned("cpu:2")
    half = planned("cpu", global_batch=4)[1].option.peak
    parts = two.option.peak.by_part()
    for part in ("parameters", "optimizer", "activations", "overhead"):
        assert parts[part] == pytest.approx(2 * half.by_part()[part]), part
    assert parts["gradients"] >= 2 * GRADIENTS
    assert two.option.place.hardware == "cpu:2"
    assert two.option.layout_label == "dp2 mb4"
    assert planned_step(stage, two).peak_bytes == pytest.approx((two.option.peak.total_bytes - parts["overhead"]) / 2)


def test_gradients_stay_as_the_buckets_that_are_summed():
    """One process frees them at the end of each step and passes its fullest moment without them."""
    alone, two = (planned(name, global_batch=batch)[1].option.peak for name, batch in (("cpu", 4), ("cpu:2", 8)))
    grown = two.by_part()["gradients"] / 2 - alone.by_part()["gradients"]
    assert grown == pytest.approx(GRADIENTS)


def test_work_is_divided_and_gradients_are_summed():
    _, two = planned("cpu:2")
    _, half = planned("cpu", global_batch=4, resources=StageResources(cpus=1))
    (summed,) = [term for term in two.option.time_terms if term.name.endswith("gradients between processes")]
    assert summed.value == pytest.approx(100 * GRADIENTS / 1e9)
    both = sum(term.value for term in two.option.time_terms)
    assert both - summed.value == pytest.approx(sum(term.value for term in half.option.time_terms))


def test_stages_that_do_not_train_have_one_process():
    stage = GenerateStage(policy="base", prompts=("prompts",), max_new_tokens=16)
    found = lab.one(stage, Resources(infra="local", accelerators=("cpu:2",), cpus=2), architecture=SMALL)
    assert found.stage("stage").option.place.processes == 1


def test_recomputation_does_the_forward_pass_again():
    """Operations from 1 + 4 to 2 + 4; arithmetic by a third of what is not the head."""
    plain, again = (
        {
            term.name: term.value
            for term in planned("cpu", resources=StageResources(cpus=1, recompute=how))[1].option.time_terms
        }
        for how in (None, "full")
    )
    assert again["train model: operations"] == pytest.approx(6 / 5 * plain["train model: operations"])
    assert 1.2 < again["train model: arithmetic"] / plain["train model: arithmetic"] < 4 / 3
    assert again["train model: memory traffic"] > plain["train model: memory traffic"]
