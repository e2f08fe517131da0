"""Traps of data sheets and catalogs that the tables must not fall into."""

import pytest

from charter.catalog.accelerators import get
from charter.catalog.price_book import offers
from charter.catalog.price_import import tpu_slice
from charter.units import GIB, MIB


@pytest.mark.parametrize(
    ("name", "dtype", "dense", "headline"),
    [
        ("L4", "bf16", 121, 242),
        ("L40S", "bf16", 362, 733),
        ("H100", "bf16", 989.4, 1979),
        ("H200", "fp8", 1978.9, 3958),
        ("B200", "bf16", 2250, 4500),
        ("MI300X", "bf16", 1307.4, 2615),
        ("Trainium2", "bf16", 667, 2563),
    ],
)
def test_rates_are_dense_and_not_the_sparse_headline(name, dtype, dense, headline):
    tera = get(name).dense_flops_per_second[dtype] / 1e12
    assert tera == pytest.approx(dense, rel=0.001)
    assert tera < 0.6 * headline


@pytest.mark.parametrize(("name", "tera"), [("RTX3090", 71.2), ("RTX4090", 165.2)])
def test_consumer_cards_have_the_rate_with_fp32_accumulation(name, tera):
    assert get(name).peak_flops_per_second("fp16") == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("H200", 140.4), ("B200", 179.06), ("B300", 268.6), ("A6000", 48.0), ("MI325X", 256.0), ("TPU-v5p", 95.7)],
)
def test_memory_is_what_devices_report_in_mebibytes(name, gib):
    assert get(name).memory_bytes / GIB == pytest.approx(gib, abs=0.05)


@pytest.mark.parametrize("name", ["MI250", "MI250X"])
def test_a_package_of_two_dies_is_two_devices_of_64_gigabytes(name):
    assert get(name).memory_bytes == 65_520 * 2**20


@pytest.mark.parametrize(
    ("name", "chips"),
    [
        ("tpu-v5p-8192", ("TPU-v5p", 4096)),
        ("tpu-v4-8", ("TPU-v4", 4)),
        ("tpu-v3-8", ("TPU-v3", 4)),
        ("tpu-v2-8", ("TPU-v2", 4)),
        ("tpu-v5litepod-16", ("TPU-v5e", 16)),
        ("tpu-v6e-8", ("TPU-v6e", 8)),
        ("v5p-8", ("TPU-v5p", 4)),
        ("V100-16GB", None),
        ("H100", None),
    ],
)
def test_tpu_slices_are_named_by_cores_up_to_v5p_and_by_chips_from_v5e(name, chips):
    assert tpu_slice(name) == chips
    if chips is not None:
        assert get(chips[0]).name == chips[0]


def test_export_variants_differ_in_links_or_compute():
    assert get("H800").scaleup_bytes_per_second < get("H100").scaleup_bytes_per_second
    assert get("H800").peak_flops_per_second("bf16") == get("H100").peak_flops_per_second("bf16")
    assert get("A800").scaleup_bytes_per_second == 200e9
    h20 = get("H20")
    assert h20.peak_flops_per_second("bf16") == 148e12
    assert h20.memory_bytes_per_second > get("H100").memory_bytes_per_second


def test_the_network_belongs_to_the_instance():
    assert get("A100").scaleout_bytes_per_second_per_node == 200e9, "the reference node has 1,600 Gbit/s"
    p4d = [offer for offer in offers("A100", cloud="aws") if offer.instance_type == "p4d.24xlarge"]
    assert {offer.network_bytes_per_second for offer in p4d} == {50e9}, "p4d has 400 Gbit/s"


def test_a_reported_memory_of_the_snapshot_is_exact():
    assert get("B300").memory_bytes == 275040 * MIB
