import pytest

from charter.catalog.accelerators import catalog, get
from charter.catalog.offer import Market
from charter.catalog.price_book import PriceBook, usd_per_pflop_hour, values

# Price per dense bf16 PFLOP-hour: dated list prices over data-sheet peaks, worked out by hand to one decimal.
PUBLISHED = [
    ("A100-80GB", 4.10, 13.1),
    ("TPU-v5p", 4.20, 9.2),
    ("A100", 2.74, 8.8),
    ("A100", 1.99, 6.4),
    ("A100-80GB", 1.29, 4.1),
    ("H100", 6.88, 7.0),
    ("H100", 3.99, 4.0),
    ("H100", 2.95, 3.0),
    ("H100", 2.29, 2.3),
    ("TPU-v5e", 1.20, 6.1),
    ("H200", 7.91, 8.0),
    ("H200", 3.50, 3.5),
    ("B200", 14.24, 6.3),
    ("B200", 6.69, 3.0),
    ("B200", 5.50, 2.4),
    ("B200", 4.89, 2.2),
    ("B300", 17.80, 7.9),
    ("B300", 6.99, 3.1),
    ("MI300X", 3.45, 2.6),
    ("TPU-v6e", 2.70, 2.9),
    ("H100", 1.76, 1.8),
    ("H100", 1.25, 1.3),
    ("B200", 2.90, 1.3),
    ("TPU-v5p", 0.78, 1.7),
]


@pytest.mark.parametrize(("name", "usd_per_hour", "expected"), PUBLISHED)
def test_price_per_dense_pflop_hour(name, usd_per_hour, expected):
    assert round(usd_per_pflop_hour(usd_per_hour, get(name)), 1) == expected


@pytest.mark.parametrize(
    ("name", "cloud", "expected"),
    [
        ("H100", "aws", 7.0),
        ("H100", "nebius", 3.0),
        ("B200", "verda", 2.2),
        ("TPU-v5p", "gcp", 9.2),
        ("A100", "aws", 8.8),
    ],
)
def test_the_same_figures_come_out_of_the_bundled_prices(name, cloud, expected):
    found = PriceBook.bundled().offers(name, cloud=cloud, market=Market.ON_DEMAND)
    cheapest = min(offer.usd_per_accelerator_hour(Market.ON_DEMAND) for offer in found)
    assert round(usd_per_pflop_hour(cheapest, get(name)), 1) == expected


def test_the_cheapest_whole_machine_is_taken():
    (h100,) = values([get("H100")], PriceBook.bundled(), Market.ON_DEMAND)
    assert (h100.offer.cloud, h100.usd_per_accelerator_hour) == ("verda", 2.29)
    assert h100.usd_per_measured_pflop_hour == pytest.approx(2.29 / 0.9894 / (794.5 / 989))
    assert h100.usd_per_terabyte_per_second_hour == pytest.approx(2.29 / 3.35)
    assert all(value.offer is None or value.offer.whole_machine for value in _all(Market.SPOT))


def test_accelerator_without_offers_has_no_price_instead_of_zero():
    (gaudi,) = values([get("Gaudi3")], PriceBook.bundled(), Market.ON_DEMAND)
    assert gaudi.usd_per_accelerator_hour is None
    assert gaudi.usd_per_pflop_hour is gaudi.usd_per_measured_pflop_hour is None
    assert gaudi.usd_per_terabyte_per_second_hour is None


def test_a_measured_pflop_is_never_cheaper_than_a_peak_one():
    both = [v for v in _all(Market.ON_DEMAND) if v.usd_per_measured_pflop_hour is not None]
    assert len(both) >= 8
    assert all(v.usd_per_measured_pflop_hour > v.usd_per_pflop_hour for v in both)


def _all(market):
    return values(catalog(), PriceBook.bundled(), market)
