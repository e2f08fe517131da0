"""Rajbhandari et al. 2020 (ZeRO), figure 1: 7.5e9 parameters on 64 accelerators, decimal GB."""

import pytest

from charter.estimate.memory.states import model_state
from charter.estimate.node.network import zero_traffic_elements
from charter.estimate.precision import ZERO_PAPER
from charter.spec.layout import ZeroStage

FIGURE_1_GB = {
    ZeroStage.NONE: 120,
    ZeroStage.OPTIMIZER: 31.4,
    ZeroStage.GRADIENTS: 16.6,
    ZeroStage.PARAMETERS: 1.9,
}


@pytest.mark.parametrize(("zero", "published_gb"), FIGURE_1_GB.items())
def test_matches_zero_figure_1(zero, published_gb):
    state = model_state(7.5e9, data_parallel=64, zero=zero, precision=ZERO_PAPER)
    assert state.total_bytes / 1e9 == pytest.approx(published_gb, abs=0.05)


def test_stage_3_sends_half_as_much_again():
    traffic = [zero_traffic_elements(7.5e9, zero) / 7.5e9 for zero in ZeroStage]
    assert traffic == [2, 2, 2, 3]
