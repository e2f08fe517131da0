import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.resilience.failures import (
    LLAMA3_H100,
    META_RSC1_A100,
    mean_between_failures_seconds,
    spare_nodes,
    transfer_seconds,
)

# nodes, failures per 1,000 node-days, repair days | spares for 99 % (reference, section 2.6)
SPARES = [
    (8, 6.5, 3, 2),
    (64, 2.34, 3, 3),
    (128, 6.5, 3, 7),
    (128, 15.6, 1, 6),
    (128, 15.6, 4, 15),
    (2048, 3.79, 2, 25),
    (2048, 6.5, 3, 55),
]


@pytest.mark.parametrize(("nodes", "rate", "repair", "spares"), SPARES)
def test_spares_match_the_reference_rows(nodes, rate, repair, spares):
    assert spare_nodes(num_nodes=nodes, failures_per_node_day=rate / 1000, repair_days=repair) == spares


def test_llama3_job_fails_every_three_hours():
    mean = mean_between_failures_seconds(num_nodes=2048, failures_per_node_day=LLAMA3_H100.per_node_day)
    assert mean / 3600 == pytest.approx(3.09, abs=0.005)


def test_meta_rate_gives_its_own_projection_at_16384_gpus():
    mean = mean_between_failures_seconds(num_nodes=2048, failures_per_node_day=META_RSC1_A100.per_node_day)
    assert mean / 3600 == pytest.approx(1.80, abs=0.01)


def test_rates_of_independent_causes_add():
    both = mean_between_failures_seconds(num_nodes=24, failures_per_node_day=0.1, preemptions_per_hour=0.4)
    assert both == pytest.approx(3600 / 0.5)


@given(size=st.floats(1e6, 1e13), writers=st.integers(1, 512))
def test_more_writers_save_in_proportion_faster(size, writers):
    seconds = transfer_seconds(size, bytes_per_second_per_writer=1e9, num_writers=writers)
    assert seconds * writers == pytest.approx(transfer_seconds(size, bytes_per_second_per_writer=1e9))
