import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.job import commitment_break_even_utilisation, job_usd, micro_usd, split_micro_usd, usd
from charter.cost.monte_carlo import add, exactly, lognormal
from charter.cost.storage import AWS_EGRESS, S3_STANDARD, StorageTier, StoredBytes, storage_usd, transfer_usd
from charter.errors import UsageError
from charter.physics.terms import Interval

MONTH_SECONDS = 730 * 3600.0

# DeepSpeed-Chat, table 1 (8 x A100-80GB, Azure ND96amsr at $32.77 per hour): hours, printed usd. The hours
# are printed to two digits, so a row may be off by 3 %.
DEEPSPEED_CHAT = [(4.1, 132), (9, 290), (18, 580), (50.4, 1620)]


@pytest.mark.parametrize(("hours", "printed_usd"), DEEPSPEED_CHAT)
def test_matches_the_dollars_of_deepspeed_chat(hours, printed_usd):
    found = job_usd(accelerators=8, hours=hours, usd_per_accelerator_hour=32.77 / 8)
    assert found == pytest.approx(printed_usd, rel=0.03)


def test_matches_the_dollars_of_deepseek_v3():
    assert job_usd(accelerators=1, hours=2_788_000, usd_per_accelerator_hour=2.0) == 5_576_000


def test_five_thousand_a800_for_a_year_cost_about_100_million():
    # Worked example 9: 5,000 A800 for a year, close to USD 100 M, is 2.28 per GPU-hour.
    assert job_usd(accelerators=5000, hours=8760, usd_per_accelerator_hour=2.28) == pytest.approx(1e8, rel=0.002)


def test_tpu_v5p_slice_divides_to_the_chip_price():
    # v5p-8192 is 4,096 chips (the name counts cores) at 17,203.2 usd per hour.
    price = 17203.2 / 4096
    assert job_usd(accelerators=1, hours=1, usd_per_accelerator_hour=price) == pytest.approx(4.20)


@given(
    accelerators=st.integers(0, 10_000),
    hours=st.floats(0, 1e5),
    price=st.floats(0, 100),
    factor=st.floats(0, 50),
)
def test_cost_is_linear_in_hours_and_price(accelerators, hours, price, factor):
    once = job_usd(accelerators=accelerators, hours=hours, usd_per_accelerator_hour=price)
    assert job_usd(accelerators=accelerators, hours=hours * factor, usd_per_accelerator_hour=price) == pytest.approx(
        once * factor, rel=1e-9, abs=1e-9
    )
    assert job_usd(accelerators=accelerators, hours=hours, usd_per_accelerator_hour=price * factor) == pytest.approx(
        once * factor, rel=1e-9, abs=1e-9
    )


def test_refuses_negative_quantities():
    with pytest.raises(UsageError, match="-1 accelerators"):
        job_usd(accelerators=-1, hours=1, usd_per_accelerator_hour=1)


@pytest.mark.parametrize(
    ("amount", "micro"), [(0.0000005, 0), (0.0000015, 2), (0.0000025, 2), (0.0000035, 4), (1.1, 1_100_000)]
)
def test_rounds_half_to_even(amount, micro):
    assert micro_usd(amount) == micro


def test_any_finite_amount_has_micro_usd():
    assert micro_usd(1e300) == 10**306
    assert micro_usd(-1.5e40) == -15 * 10**45


@pytest.mark.parametrize("amount", [float("nan"), float("inf")])
def test_refuses_what_is_not_money(amount):
    with pytest.raises(UsageError, match="not an amount"):
        micro_usd(amount)


@given(st.integers(-(10**15), 10**15))
def test_micro_usd_survives_the_round_trip(micro):
    assert micro_usd(usd(micro)) == micro


@given(total=st.integers(0, 10**12), weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_shares_add_up_and_are_within_one_unit_of_exact(total, weights):
    if sum(weights) <= 0:
        with pytest.raises(UsageError):
            split_micro_usd(total, weights)
        return
    shares = split_micro_usd(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) <= 1.01


def test_commitments_and_spot_break_even_at_the_reference_shares():
    one, three = (
        commitment_break_even_utilisation(committed_usd_per_hour=price, on_demand_usd_per_hour=3.673)
        for price in (2.314, 1.286)
    )
    assert (round(one, 2), round(three, 2)) == (0.63, 0.35)


def test_storage_matches_the_worked_13b_example():
    # 728 GB for two months in S3 Standard: about $33; 28 full checkpoints of 182 GB instead: $234.
    few = StoredBytes(num_bytes=728e9, seconds=2 * MONTH_SECONDS)
    all_full = StoredBytes(num_bytes=28 * 182e9, seconds=2 * MONTH_SECONDS)
    assert storage_usd([few], S3_STANDARD) == pytest.approx(33, abs=0.6)
    assert storage_usd([all_full], S3_STANDARD) == pytest.approx(234, abs=1)


def test_short_lived_bytes_bill_the_minimum_duration():
    infrequent = StorageTier(name="S3 Standard-IA", usd_per_gb_month=0.0125, minimum_days=30)
    day = storage_usd([StoredBytes(num_bytes=1e12, seconds=86400)], infrequent)
    month = storage_usd([StoredBytes(num_bytes=1e12, seconds=30 * 86400)], infrequent)
    assert day == month


def test_egress_of_bloom_checkpoint_costs_about_207_usd():
    assert transfer_usd(2.3e12, AWS_EGRESS) == pytest.approx(207, abs=1)


@given(first=st.floats(0, 5e14), second=st.floats(0, 5e14))
def test_egress_in_two_parts_costs_the_same(first, second):
    parts = transfer_usd(first, AWS_EGRESS) + transfer_usd(second, AWS_EGRESS, already_bytes=first)
    assert parts == pytest.approx(transfer_usd(first + second, AWS_EGRESS), rel=1e-9, abs=1e-6)


@given(median=st.floats(0, 1e9), sigmas=st.lists(st.floats(0, 1), max_size=5))
def test_quantiles_rise(median, sigmas):
    found = lognormal(median, *sigmas)
    assert found.p10 <= found.p50 <= found.p90


def test_no_spread_gives_one_number():
    assert lognormal(5.0) == exactly(5.0)


def test_variances_of_independent_factors_add():
    assert lognormal(1.0, 0.3, 0.4).p90 == pytest.approx(lognormal(1.0, 0.5).p90)


def test_quantiles_of_dependent_parts_add():
    total = add([Interval(p10=1, p50=2, p90=4), Interval(p10=10, p50=20, p90=40)])
    assert (total.p10, total.p50, total.p90) == (11, 22, 44)
