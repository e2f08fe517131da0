"""Rajbhandari et al. 2020 (ZeRO): figure 1 and the traffic of section 7, by what a plan computes.

Seen failing under mutations of production lines (tests that fail):
- physics/memory_shape.py, zero_sharded, `zero >= since` -> `>`: 3 of the 4 rows of figure 1;
- physics/node.py, `2 * precision.compute_bytes` -> `1 *`: the traffic.
"""

import pytest

from charter.catalog import models
from charter.physics.memory import training_memory
from charter.physics.node import network_bytes_per_step
from charter.physics.precision import ZERO_PAPER
from charter.physics.shapes import count_parameters
from charter.physics.stacks import PROFILES
from charter.spec.layout import Layout, ZeroStage

MODEL = models.get("Llama-3.1-8B").architecture
NATIVE = PROFILES["native"]


@pytest.mark.parametrize(("zero", "published_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_planned_state_matches_zero_figure_1(zero, published_gb):
    """7.5e9 parameters on 64 accelerators, mixed-precision Adam, decimal GB; per parameter, so of any model."""
    memory = training_memory(MODEL, Layout(data=64, zero=ZeroStage(zero)), seq_len=1024, precision=ZERO_PAPER)
    terms = memory.phases["end of backward"]  # the peak of stages 2 and 3 lies before all gradients exist
    state = sum(term.value for term in terms if term.part in {"parameters", "gradients", "optimizer"})
    assert 7.5 * state / count_parameters(MODEL).total == pytest.approx(published_gb, abs=0.05)


def test_stage_3_sends_half_as_much_again():
    traffic = [
        network_bytes_per_step(
            MODEL, Layout(data=4096, zero=zero), seq_len=1024, stack=NATIVE, precision=ZERO_PAPER
        ).total
        for zero in ZeroStage
    ]
    elements = [sent / 2 / count_parameters(MODEL).total for sent in traffic]  # 16-bit elements
    assert elements == pytest.approx([2, 2, 2, 3], rel=0.001)
