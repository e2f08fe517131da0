from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog.offer import Market, read_offers
from charter.catalog.price_import import HOSTS_ADDED, NO_ACCELERATOR, PriceFormat, read_prices
from charter.catalog.price_lists import LARGEST_LIST, by_region, list_in, merged, prices_csv
from charter.catalog.price_row import Import, PriceRow
from charter.errors import UsageError

TODAY = date(2026, 11, 20)
AWS = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,"
    "Arch,LocalDiskType,NVMeSupported,LocalDiskSize,LocalDiskCount"
)
GCP = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice"
GPUHUNT = "instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot,disk_size,gpu_vendor,flags"
H100_INFO = (
    "\"{'Gpus': [{'Name': 'H100', 'Count': 8, 'MemoryInfo': {'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 655360}\""
)


def read(header, *lines, cloud="", layout=None):
    about = Import(file="list.csv", imported_on=TODAY, cloud=cloud)
    return read_prices("\n".join((header, *lines, "")), about, layout=layout, today=TODAY)


def written(rows):
    return read_offers(prices_csv(by_region(rows)), "prices.csv")


def aws_line(zone, spot, price="55.04", region="us-east-1"):
    return f"p5.48xlarge,H100,8.0,192.0,2048.0,{H100_INFO},{price},{spot},{region},{zone},x86_64,ssd,True,3800.0,8.0"


def test_zones_of_a_skypilot_catalog_become_one_offer_by_region():
    checked = read(
        AWS, aws_line("a", "18"), aws_line("b", "55.04"), aws_line("c", "16"), aws_line("d", "20"), cloud="aws"
    )
    assert checked.format is PriceFormat.SKYPILOT
    assert [finding.rule for finding in checked.findings] == ["spot-is-on-demand"]
    (offer,) = written(checked.good_rows)
    assert (offer.cloud, offer.instance_type, offer.accelerator, offer.count) == (
        *("aws", "p5.48xlarge"),
        "H100-SXM-80GB",
        8,
    )
    assert (offer.on_demand_usd_per_hour, offer.spot_min_usd_per_hour, offer.spot_usd_per_hour) == (55.04, 16, 18)
    assert offer.spot_zones_at_on_demand == 1
    assert offer.local_disk_bytes == 30.4e12
    assert offer.host_memory_bytes == 2048 * 2**30
    assert offer.provenance.as_of == "2026-11-20"
    assert offer.provenance.source == "SkyPilot catalog list.csv, imported 2026-11-20"


def test_zones_whose_spot_is_the_on_demand_price_make_no_spot_offer():
    (offer,) = written(read(AWS, aws_line("a", "55.04"), cloud="aws").good_rows)
    assert offer.usd_per_hour(Market.SPOT) is None


def test_an_empty_price_is_none_and_not_zero():
    (offer,) = written(read(AWS, aws_line("a", "14", price=""), cloud="aws").good_rows)
    assert offer.on_demand_usd_per_hour is None


def test_machines_without_an_accelerator_are_counted():
    checked = read(AWS, aws_line("a", "18"), "m5.large,,,2.0,8.0,,0.096,0.03,us-east-1,a,x86_64,,False,,", cloud="aws")
    assert checked.left_out == {NO_ACCELERATOR: 1}
    assert len(checked.rows) == 1


def test_a_cloud_without_zones_or_spot_has_fewer_columns():
    header = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
    info = "\"{'Gpus': [{'Count': 8.0, 'MemoryInfo': {'SizeInMiB': 16384}}], 'TotalGpuMemoryInMiB': 16384}\""
    lines = [f"gpu_8x_v100,V100,8.0,92.0,448.0,6.32,{region},{info}," for region in ("us-east-1", "us-west-1")]
    checked = read(header, *lines, cloud="lambda")
    assert checked.findings == ()
    assert [(o.region, o.on_demand_usd_per_hour, o.spot_usd_per_hour) for o in written(checked.good_rows)] == [
        ("us-east-1", 6.32, None),
        ("us-west-1", 6.32, None),
    ]


def test_gcp_accelerators_are_added_to_their_host():
    """us-east4: 78.3724 for the accelerators and 9.46006 for the host make the 87.83246 of the snapshot."""
    checked = read(
        GCP,
        "a3-highgpu-8g,208.0,1872.0,,,,us-east4,us-east4-a,9.46006,3.68077",
        ",,,H100,8,{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}]},us-east4,us-east4-a,78.3724,30.479",
        ",,,T4,1,{'Gpus': [{'MemoryInfo': {'SizeInMiB': 15360}}]},us-east4,us-east4-a,0.35,0.14",
        cloud="gcp",
    )
    assert checked.errors == ()
    whole, part = written(checked.good_rows)
    assert whole.instance_type == "a3-highgpu-8g"
    assert whole.on_demand_usd_per_hour == pytest.approx(87.83246)
    assert whole.spot_usd_per_hour == pytest.approx(34.15977)
    assert whole.vcpus == 208
    assert not part.whole_machine
    assert checked.left_out == {HOSTS_ADDED: 1}


def test_defect_of_accelerators_is_reported_despite_host_price():
    checked = read(
        GCP,
        "a3-highgpu-8g,208.0,1872.0,,,,us-east4,us-east4-a,30.0,3.0",
        ",,,H100,8,,us-east4,us-east4-a,33.6,42.71",
        cloud="gcp",
    )
    assert [finding.rule for finding in checked.errors] == ["spot-above-on-demand"]


def test_a_tpu_slice_is_named_by_cores_and_rented_by_chips():
    checked = read(GCP, ",,,tpu-v5p-8192,1,tpu-v5p-8192,us-east5,us-east5-a,17203.2,3196.9", cloud="gcp")
    (offer,) = written(checked.good_rows)
    assert (offer.accelerator, offer.count) == ("TPU-v5p", 4096)
    assert offer.usd_per_accelerator_hour(Market.ON_DEMAND) == pytest.approx(4.20)


@pytest.mark.parametrize(
    ("name", "mib", "instance", "resolved"),
    [
        ("A100-80GB", 81920, "p4de.24xlarge", "A100-SXM-80GB"),
        ("A100", 40960, "p4d.24xlarge", "A100-SXM-40GB"),
        ("H100", 81920, "gpu_1x_h100_pcie", "H100-PCIe-80GB"),
        ("H100", 95830, "Standard_NC40ads_H100_v5", "H100-NVL-94GB"),
        ("A100-80GB", 81920, "Standard_NC24ads_A100_v4", "A100-PCIe-80GB"),
        ("V100-32GB", 32768, "p3dn.24xlarge", "V100-SXM2-32GB"),
    ],
)
def test_names_are_settled_by_memory_and_instance(name, mib, instance, resolved):
    line = f"{instance},{name},1,12,85,{{'Gpus': [{{'MemoryInfo': {{'SizeInMiB': {mib}}}}}]}},3.5,1.5,here,zone,,,,,"
    checked = read(AWS, line, cloud="azure")
    assert [row.accelerator for row in checked.rows] == [resolved]
    assert checked.errors == ()


def test_every_bad_row_of_a_file_is_told_at_once_with_its_line():
    checked = read(
        AWS,
        aws_line("a", "18"),
        aws_line("b", "60"),
        aws_line("c", "cheap"),
        "p5,H100",
        "g3,M60,1,16,122,,1.14,0.4,us-east-1,d,,,,,",
        "Standard_ND96isr_H100_v5,H100,12,96,1900,,98.32,,eastus,e,,,,,",
        cloud="aws",
    )
    assert [(finding.row, finding.rule) for finding in checked.errors] == [
        (3, "spot-above-on-demand"),
        (4, "not-a-number"),
        (5, "ragged-row"),
        (6, "unknown-accelerator"),
        (7, "impossible-count"),
    ]
    assert [row.number for row in checked.good_rows] == [2]


@pytest.mark.parametrize(("price", "usd"), [("1,018.50", [1018.5]), ("98,32", [])])
def test_a_decimal_comma_is_no_price(price, usd):
    line = f'Standard_ND96isr_H100_v5,H100,8,96,1900,,"{price}",,eastus,e,,,,,'
    checked = read(AWS, line, cloud="azure")
    assert [row.on_demand for row in checked.good_rows] == usd
    assert [finding.rule for finding in checked.errors] == ([] if usd else ["not-a-number", "no-price"])


def test_a_catalog_that_does_not_name_its_cloud_needs_one():
    with pytest.raises(UsageError, match="--cloud aws"):
        read(AWS, aws_line("a", "18"))
    with pytest.raises(UsageError, match="--cloud aws"):
        read(GPUHUNT, "i1,us,0.5,30,240,1,A10,24.0,False,,nvidia,")


def test_gpuhunt_lines_of_spot_and_on_demand_are_one_offer():
    checked = read(
        GPUHUNT,
        "gpu_8x_h100,us,31.92,208,1800.0,8,H100,80.0,False,,nvidia,",
        "gpu_8x_h100,us,12.0,208,1800.0,8,H100,80.0,True,,nvidia,",
        "a100,us,2.0,30,240.0,1,A100,80.0,False,,nvidia,",
        "cpu,us,0.2,4,16.0,0,,,False,,,",
        cloud="lambdalabs",
    )
    assert checked.errors == ()
    first, second = written(checked.good_rows)
    assert (first.cloud, first.on_demand_usd_per_hour, first.spot_usd_per_hour) == ("lambda", 31.92, 12.0)
    assert second.accelerator == "A100-SXM-80GB"
    assert checked.left_out == {NO_ACCELERATOR: 1}


def test_gpuhunt_memory_is_checked():
    checked = read(GPUHUNT, "x,us,20.0,208,1800.0,8,MI325X,288.0,False,,amd,", cloud="vultr")
    assert [finding.rule for finding in checked.errors] == ["memory-mismatch"]


CONTRACT = "cloud,instance_type,accelerator,count,region,usd_per_hour,usd_per_accelerator_hour,market,valid_until,note"


def test_a_contract_by_accelerator_and_one_by_instance_type():
    checked = read(
        CONTRACT,
        "lambda,,H100:8,,,,2.35,,2027-06-30,one year",
        "aws,p5.48xlarge,,,us-east-1,30.0,,reserved_1y,,",
        "nebius,,H200,,,,2.0,,,a whole node where no count is given",
    )
    assert checked.findings == ()
    first, second, third = written(checked.good_rows)
    assert (first.count, first.on_demand_usd_per_hour, first.region) == (8, 18.8, "all")
    assert first.is_contract
    assert first.valid_until == "2027-06-30"
    assert (second.accelerator, second.count, second.reserved_1y_usd_per_hour) == ("H100-SXM-80GB", 8, 30.0)
    assert second.on_demand_usd_per_hour is None
    assert (third.count, third.on_demand_usd_per_hour) == (8, 16.0)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("aws,,H100:8,,,2.35,,,,", "implausible-price"),
        ("aws,,H100:8,,,18.8,18.8,,,", "arithmetic"),
        ("aws,,H100:8,4,,18.8,,,,", "arithmetic"),
        ("aws,,H100:8,,,,,,,", "no-price"),
        ("aws,,H100:8,,,18.8,,futures,,", "unknown-market"),
        ("aws,,H100:8,,,18.8,,,31.12.2027,", "not-a-date"),
        ("aws,p9.48xlarge,,,,18.8,,,,", "unknown-accelerator"),
        ("aws,,,,,18.8,,,,", "unknown-accelerator"),
        (",,H100:8,,,18.8,,,,", "missing-cell"),
    ],
)
def test_problems_of_a_contract_are_found(line, rule):
    assert rule in [finding.rule for finding in read(CONTRACT, line).errors]


def test_a_contract_that_ends_before_it_begins_is_refused():
    header = "cloud,accelerator,usd_per_hour,valid_from,valid_until"
    (finding,) = read(header, "aws,H100:8,18.8,2027-01-01,2026-12-31").errors
    assert "valid_from 2027-01-01 is after valid_until 2026-12-31" in finding.message


def test_an_unknown_header_is_refused_with_the_layouts():
    with pytest.raises(UsageError, match=r"no known layout.*\n.*InstanceType"):
        read("name,price", "x,1")


def test_a_layout_that_the_header_contradicts_is_refused():
    with pytest.raises(UsageError, match="--format gpuhunt needs the columns instance_name"):
        read(AWS, aws_line("a", "18"), cloud="aws", layout=PriceFormat.GPUHUNT)


def test_second_import_replaces_same_offers_and_keeps_others():
    old = [PriceRow(number=2, cloud="aws", instance_type=name, accelerator="L4", known=True, count=1, region="r",
                    on_demand=1.0) for name in ("a", "b")]  # fmt: skip
    new = [PriceRow(number=2, cloud="aws", instance_type="a", accelerator="L4", known=True, count=1, region="r",
                    on_demand=2.0)]  # fmt: skip
    assert [(row.instance_type, row.on_demand) for row in merged(old, new)] == [("b", 1.0), ("a", 2.0)]


PRICES = st.floats(10, 200).map(lambda price: round(price, 4))


@given(st.lists(st.tuples(PRICES, PRICES), min_size=1, max_size=6))
def test_what_is_written_reads_back_with_the_same_prices(zones):
    rows = [
        PriceRow(
            number=index + 2, cloud="aws", instance_type="m", accelerator="H100-SXM-80GB", known=True, count=8,
            region="r", zone=str(index), on_demand=max(pair), spot=min(pair), as_of="2026-11-20",
            confidence="imported", source="test",
        )
        for index, pair in enumerate(zones)
    ]  # fmt: skip
    (region,) = by_region(rows)
    if region.spot is not None and region.spot > (region.on_demand or 0):
        return  # medians of spot and of on-demand may cross when zones differ this much
    (offer,) = read_offers(prices_csv([region]), "prices.csv")
    assert offer.on_demand_usd_per_hour == pytest.approx(region.on_demand, abs=1e-6)
    own = [min(pair) for pair in zones if min(pair) != max(pair)]
    assert offer.spot_min_usd_per_hour == (pytest.approx(min(own), abs=1e-6) if own else None)
    assert offer.spot_zones_at_on_demand == len(zones) - len(own)


def test_a_file_that_is_no_price_list_is_not_parsed(tmp_path):
    with (tmp_path / "list.csv").open("wb") as file:
        file.truncate(LARGEST_LIST + 1)
    with pytest.raises(UsageError, match="longer than 64 MiB"):
        list_in(tmp_path / "list.csv")
