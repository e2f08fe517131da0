import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.job import compute_buckets, managed_multiplier
from charter.cost.storage import (
    GCP_EGRESS,
    S3_STANDARD,
    StageBytes,
    StorageTier,
    internet_egress,
    transfer_usd,
    weights_only_count,
)
from charter.errors import UsageError
from charter.units import SECONDS_PER_DAY

MONTH_SECONDS = 730 * 3600.0
GB = 1e9


@given(
    useful=st.floats(0, 1e6),
    checkpoint=st.floats(0, 1e5),
    lost=st.floats(0, 1e5),
    waiting=st.floats(0, 1e5),
)
def test_the_buckets_of_a_run_make_its_billed_hours(useful, checkpoint, lost, waiting):
    billed = useful + checkpoint + lost + waiting
    terms = {"useful": useful, "checkpoint": checkpoint, "billed": billed, "waiting": waiting}
    found = compute_buckets(**terms)
    assert found.lost_and_restart == pytest.approx(lost, abs=1e-9 * billed)
    assert found.total == pytest.approx(billed, rel=1e-9, abs=1e-9)
    assert min(found.useful, found.checkpoint, found.lost_and_restart, found.idle) >= 0


@pytest.mark.parametrize(
    "given_",
    [
        {"useful": 90, "checkpoint": 20, "billed": 100},
        {"useful": 1, "checkpoint": -1, "billed": 1},
    ],
)
def test_refuses_buckets_that_cannot_be(given_):
    with pytest.raises(UsageError):
        compute_buckets(**given_)


def test_retention_of_the_worked_13b_example():
    # Reference on cost, 4.4: 182 GB every 30 minutes for 14 hours; 3 full + 7 weights-only of 26 GB, two months: $33.
    # The example keeps all of it for two months; here the full ones go when the run ends, which saves most of it.
    assert weights_only_count(28, every=4) == 7
    everything = StageBytes(full_bytes=0, weights_only_bytes=0, result_bytes=(3 * 182 + 7 * 26) * GB, days=0)
    usd = everything.usd(2 * MONTH_SECONDS, while_running=S3_STANDARD, afterwards=S3_STANDARD)
    assert usd == pytest.approx(33, abs=0.6)
    policy = StageBytes(full_bytes=3 * 182 * GB, weights_only_bytes=7 * 26 * GB, result_bytes=0, days=2 * 730 / 24)
    assert policy.usd(14 * 3600, while_running=S3_STANDARD, afterwards=S3_STANDARD) == pytest.approx(8.6, abs=0.1)


def test_week_in_cold_storage_is_billed_for_the_minimum():
    cold = StorageTier(name="Glacier Instant", usd_per_gb_month=0.004, minimum_days=90)
    kept = [
        StageBytes(full_bytes=0, weights_only_bytes=0, result_bytes=100 * GB, days=days).usd(
            0, while_running=S3_STANDARD, afterwards=cold
        )
        for days in (7, 90, 180)
    ]
    assert kept[0] == kept[1] < kept[2]


@given(
    full=st.floats(0, 1e13),
    weights=st.floats(0, 1e13),
    results=st.floats(0, 1e13),
    days=st.floats(0, 365),
    seconds=st.floats(0, 1e7),
)
def test_equal_tiers_with_another_name_cost_the_same(full, weights, results, days, seconds):
    twin = StorageTier(name="twin", usd_per_gb_month=S3_STANDARD.usd_per_gb_month)
    kept = StageBytes(full_bytes=full, weights_only_bytes=weights, result_bytes=results, days=days)
    together = kept.usd(seconds, while_running=S3_STANDARD, afterwards=S3_STANDARD)
    assert kept.usd(seconds, while_running=S3_STANDARD, afterwards=twin) == pytest.approx(together, rel=1e-9, abs=1e-9)
    by_hand = (full + weights / 2 + results) / GB * seconds + (weights + results) / GB * days * SECONDS_PER_DAY
    assert together == pytest.approx(by_hand / MONTH_SECONDS * S3_STANDARD.usd_per_gb_month, rel=1e-9, abs=1e-9)


def test_managed_services_charge_on_their_own_cloud_only():
    assert managed_multiplier("sagemaker", cloud="aws", accelerator="A10G-24GB") == 1.30
    assert managed_multiplier("sagemaker", cloud="aws", accelerator="B200-SXM-180GB") == 1.15
    assert managed_multiplier("vertex", cloud="gcp", accelerator="H100-SXM-80GB") == 1.15
    assert managed_multiplier("azure_ml", cloud="azure", accelerator="H100-SXM-80GB") == 1.0
    assert managed_multiplier("vertex", cloud="aws", accelerator="H100-SXM-80GB") == 1.0
    with pytest.raises(UsageError, match="sagemaker, vertex, azure_ml"):
        managed_multiplier("colab", cloud="gcp", accelerator="T4")


def test_google_egress_uses_three_tiers():
    # 0.12 to 1 TB, 0.11 to 10 TB, 0.08 beyond; terabytes of 1,024 GB.
    assert transfer_usd(12_000 * GB, GCP_EGRESS) == pytest.approx(1024 * 0.12 + 9216 * 0.11 + 1760 * 0.08)
    assert transfer_usd(1e15, internet_egress("lambda")) == 0
