"""Formulas of papers that the vectorised time model must keep: bubbles, rings, roofline, kernel quantisation.

Seen failing under mutations of production lines (tests that fail):
- physics/step_seconds.py, `(stages - 1) / chunks` -> `stages / chunks`: 4 of 13.
"""

import numpy as np
import pytest

from charter.catalog.accelerators import get
from charter.physics.columns import array
from charter.physics.devices import TILES, DeviceColumns, Group, shape_share
from charter.physics.step_seconds import bubble_seconds, slowest_stage


def group(size: float, near: float | None = None, up: float = 100.0, out: float = 10.0) -> Group:
    own = size if near is None else near
    columns = {"size": size, "inside": own, "near": own, "scaleup": up, "bridge": up, "scaleout": out, "latency": 0.0}
    return Group(**{name: array(value) for name, value in columns.items()})


@pytest.mark.parametrize(("pipeline", "micro", "chunks"), [(8, 64, 1), (8, 64, 2), (64, 512, 1), (35, 280, 3)])
def test_the_bubble_over_ideal_time_is_narayanans(pipeline, micro, chunks):
    """(p - 1) / (v m): Narayanan et al. 2021, section 2.2."""
    share = bubble_seconds(array(pipeline), array(chunks), array(1.0)) / micro
    assert share == pytest.approx((pipeline - 1) / (chunks * micro))


def test_zero_bubble_schedules_are_a_third():
    """ZB1P leaves a third of the bubble of 1F1B (sail-sg/zero-bubble, README): three chunks' worth."""
    plain, zero = (bubble_seconds(array(8), array(chunks), array(1.0)) for chunks in (1, 3))
    assert zero == pytest.approx(plain / 3)


def test_an_uneven_pipeline_is_no_slower_than_its_fullest_stage():
    layers, head = array([80.0, 77.0, 126.0]), array(2.0)
    slow = slowest_stage(layers, array(16.0), array(1.0), head)
    assert np.all(slow >= np.ceil(layers / 16))
    assert slow.tolist() == [7.0, 5.0, 8.0]


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_an_all_reduce_is_the_ring_of_patarasuk_and_yuan(ranks):
    """2 (n - 1) / n S / W, half of it for a reduce-scatter or an all-gather."""
    ring = group(ranks)
    assert ring.reduce_seconds(array(1000.0)) == pytest.approx(2 * (ranks - 1) / ranks * 10.0)
    assert ring.gather_seconds(array(1000.0)) == pytest.approx((ranks - 1) / ranks * 10.0)
    assert group(1).reduce_seconds(array(1000.0)) == 0


def test_rings_beyond_the_node_share_its_cards():
    """Eight ranks of a group in each node use eight cards; one rank per node only its own."""
    whole, alone = group(64, near=8), group(64, near=1)
    assert whole.ring == 80.0
    assert alone.ring == 10.0
    assert group(8, up=50.0).ring == 50.0


def test_a_token_crosses_the_network_once_per_node():
    """DeepSeek-V3 (arXiv:2412.19437), section 3.2.2: copies beyond the first travel inside the node."""
    many, one = (group(64, near=8).exchange_seconds(array(1000.0), array(copies)) for copies in (8.0, 1.0))
    assert many < one


def test_tile_and_wave_quantisation_follow_nvidias_guide():
    """One tile more than fits in a wave costs a second wave (Matrix Multiplication Background User's Guide)."""
    tall, wide, _ = TILES[0]
    units, inner = array(108), array(8192)
    full = shape_share(array(tall * 108), array(wide), inner, units, array(0.0))
    over = shape_share(array(tall * 109), array(wide), inner, units, array(0.0))
    assert full == pytest.approx(1.0)
    assert over < 0.95 * full
    assert shape_share(array(8192), array(8192), array(64), units, array(150.0)) < 0.6 * full


def test_the_measured_ceiling_is_the_rate():
    """matmul_ceilings.csv: A100 SXM 271.2 and H100 794.5 TFLOP/s in bf16."""
    assert DeviceColumns.of(get("A100-80GB")).rate_16 / 1e12 == pytest.approx(271.2)
    assert DeviceColumns.of(get("H100")).rate_16 / 1e12 == pytest.approx(794.5, rel=1e-3)
