"""Bytes of optimizers, per parameter and in a whole step."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from charter.catalog import models
from charter.errors import UsageError
from charter.physics import precision as kinds
from charter.physics.memory import training_memory
from charter.physics.precision import OPTIMIZERS, with_optimizer
from charter.physics.shapes import count_parameters
from charter.spec.layout import Layout, ZeroStage

LLAMA = models.get("Llama-3.1-8B").architecture
BASES = (kinds.FSDP_MIXED, kinds.ZERO_PAPER, kinds.MEGATRON, kinds.FP32, kinds.PURE_BF16)
SCALES = 2 * 4 / 256
"""Bytes per parameter of the fp32 scales of two 8-bit moments."""
SUMS = 2 * 4 / 2048
"""Bytes per parameter of fp32 row and column sums of a square matrix of 2,048 rows."""


@pytest.mark.parametrize(
    ("precision", "weights", "gradients", "optimizer"),
    [
        (with_optimizer(kinds.FSDP_MIXED, "adam8bit"), 4, 4, 2 + SCALES),
        (with_optimizer(kinds.PURE_BF16, "adam8bit"), 2, 2, 2 + SCALES),
        (with_optimizer(kinds.FSDP_MIXED, "adam-bf16"), 4, 4, 4),
        (with_optimizer(kinds.FSDP_MIXED, "adafactor"), 4, 4, SUMS),
        (with_optimizer(kinds.PURE_BF16, "adafactor"), 2, 2, SUMS),
        (with_optimizer(kinds.FSDP_MIXED, "adafactor-momentum"), 4, 4, 4 + SUMS),
        (with_optimizer(kinds.FSDP_MIXED, "sgd"), 4, 4, 4),
        (with_optimizer(kinds.PURE_BF16, "sgd"), 2, 2, 2),
        (with_optimizer(kinds.MEGATRON, "adam8bit"), 2, 4, 6 + SCALES),
        (with_optimizer(kinds.ZERO_PAPER, "sgd-plain"), 2, 2, 4),
        (with_optimizer(kinds.ZERO_PAPER, "lion"), 2, 2, 8),
    ],
)
def test_bytes_per_parameter(precision, weights, gradients, optimizer):
    assert (precision.parameter_bytes, precision.gradient_bytes) == (weights, gradients)
    assert precision.optimizer_bytes == optimizer
    assert precision.state_bytes == weights + gradients + optimizer


@pytest.mark.parametrize("base", BASES)
def test_adam_is_what_precisions_are_written_with(base):
    assert with_optimizer(base, "adam") is base
    for name in OPTIMIZERS:
        changed = with_optimizer(base, name)
        assert with_optimizer(changed, "adam").optimizer_bytes == base.optimizer_bytes
        assert changed.compute_bytes == base.compute_bytes
        assert changed is base or OPTIMIZERS[name].source in changed.source


def test_the_optimizer_state_of_a_step_is_bytes_times_parameters():
    size = count_parameters(LLAMA).total
    layout = Layout(data=8, zero=ZeroStage.PARAMETERS)
    for precision in (
        kinds.FSDP_MIXED,
        with_optimizer(kinds.FSDP_MIXED, "adam8bit"),
        with_optimizer(kinds.FSDP_MIXED, "adafactor"),
    ):
        memory = training_memory(LLAMA, layout, seq_len=512, precision=precision)
        assert memory.optimizer_bytes == pytest.approx(precision.optimizer_bytes * size / 8)


@given(st.sampled_from(BASES), st.sampled_from(sorted(OPTIMIZERS)), st.sampled_from([1, 4]), st.sampled_from(ZeroStage))
def test_no_optimizer_needs_more_than_adam(base, name, data, zero):
    """Adafactor's momentum has 32 bits even where Adam's moments have 16."""
    assume(base is not kinds.PURE_BF16 or name != "adafactor-momentum")
    layout = Layout(data=data, zero=zero)
    adam, other = (
        training_memory(LLAMA, layout, seq_len=512, precision=precision).total_bytes
        for precision in (base, with_optimizer(base, name))
    )
    assert other <= adam * (1 + 1e-12)


def test_an_unknown_optimizer_names_the_known_ones():
    with pytest.raises(UsageError, match=r"'adamax' is not known; one of adam, .*adafactor"):
        with_optimizer(kinds.FP32, "adamax")
