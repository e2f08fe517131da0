"""Bytes and calls by which generator and training take turns: counted from what each stack moves."""

import pytest

from charter.catalog import accelerators, models
from charter.physics.columns import array
from charter.physics.precision import FSDP_MIXED, ZERO_PAPER
from charter.physics.runs import RlConstants, RlPhases, rl_stack_named, rl_step_terms
from charter.physics.weight_handover import (
    PAGED_BYTES_PER_SECOND,
    gather_seconds,
    handover_seconds,
    host_link,
    shared_seconds,
    weight_tensors,
)

H100 = accelerators.get("H100")
LLAMA = models.get("meta-llama/Llama-3.1-8B").architecture
PARAMETERS = 8.03e9
VERL, NEMO_RL, OPENRLHF = (rl_stack_named(name).turns for name in ("verl", "nemo-rl", "openrlhf"))


def test_verl_moves_its_32_bit_shards_out_and_back():
    """verl's generator drops its weights, so nothing else crosses the host link."""
    seconds = shared_seconds(VERL, LLAMA, H100, ranks=32, generator_tensor=1, precision=FSDP_MIXED)
    assert seconds == pytest.approx(2 * 4 * PARAMETERS / 32 / PAGED_BYTES_PER_SECOND, rel=0.01)


def test_openrlhf_moves_its_generators_weights_out_and_back():
    """The trainer of OpenRLHF stays where it is."""
    for tensor in (1, 4):
        seconds = shared_seconds(OPENRLHF, LLAMA, H100, ranks=8, generator_tensor=tensor, precision=FSDP_MIXED)
        assert seconds == pytest.approx(2 * 2 * PARAMETERS / tensor / host_link(H100), rel=0.01)


def test_nemo_rl_moves_weights_and_optimizer_too():
    few, many = (
        shared_seconds(NEMO_RL, LLAMA, H100, ranks=ranks, generator_tensor=8, precision=FSDP_MIXED) for ranks in (8, 64)
    )
    generator = 2 * 2 * PARAMETERS / 8 / host_link(H100)
    assert few == pytest.approx(2 * (4 + 8) * PARAMETERS / 8 / PAGED_BYTES_PER_SECOND + generator, rel=0.01)
    assert few - generator == pytest.approx(8 * (many - generator), rel=0.01)


def test_an_offloaded_policy_moves_more_often():
    beside, away = (VERL.passes(policy=True, offloaded=flag) for flag in (False, True))
    assert away.weights > beside.weights
    assert away.optimizer > beside.optimizer == 0
    assert VERL.passes(policy=False, offloaded=False).weights == 0


def test_shards_in_32_bits_take_twice_as_long_to_gather():
    wide, narrow, whole = (
        handover_seconds(LLAMA, H100, ranks=32, sharded=sharded, precision=precision)
        for precision, sharded in ((FSDP_MIXED, True), (ZERO_PAPER, True), (ZERO_PAPER, False))
    )
    assert wide == pytest.approx(2 * narrow, rel=0.01)
    assert whole == 0
    apart = handover_seconds(LLAMA, H100, ranks=16, sharded=False, precision=ZERO_PAPER, receivers=16)
    assert apart == pytest.approx(gather_seconds(H100, 32, 2 * PARAMETERS), rel=0.01)


def test_experts_are_gathered_one_of_each_rank_together():
    mixture = models.get("Qwen3-30B-A3B").architecture
    assert weight_tensors(mixture) > 48 * 128 * 3
    assert weight_tensors(mixture, expert=16) < weight_tensors(mixture) / 10


def phases(move: float) -> RlPhases:
    one = array(1.0)
    return RlPhases(
        generate=one,
        score=one,
        update=one,
        gather=one,
        calls=array(100.0),
        resamples=array(0.0),
        side_by_side=array(0.0),
        switches=one,
        overhead=one,
        move=array(move),
    )


def test_taking_turns_is_charged_once():
    constants = RlConstants()
    short, long = (rl_step_terms(phases(move), constants) for move in (1.0, 3.0))
    assert float(long.total - short.total) == pytest.approx(2.0)
    assert float(short.part("offload")) == pytest.approx(1.0)
    assert float(short.part("switch")) == pytest.approx(float(constants.switch_seconds))
    assert float(short.part("other")) == pytest.approx(float(constants.overhead_seconds))
