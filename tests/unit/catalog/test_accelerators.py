import pytest

from charter.catalog import accelerators
from charter.catalog.accelerators import get, parse_request, processor
from charter.errors import UsageError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "H100-SXM-80GB"),
        ("H100-80GB", "H100-SXM-80GB"),
        ("H100-SXM-80GB", "H100-SXM-80GB"),
        ("h100", "H100-SXM-80GB"),
        ("NVIDIA H100", "H100-SXM-80GB"),
        ("A100", "A100-SXM-40GB"),
        ("A100-80GB", "A100-SXM-80GB"),
        ("V100", "V100-SXM2-16GB"),
        ("V100-SXM-32GB", "V100-SXM2-32GB"),
        ("L4", "L4"),
        ("H200", "H200-SXM-141GB"),
        ("B200", "B200-SXM-180GB"),
        ("GB200", "GB200-NVL72-186GB"),
        ("H20-96GB", "H20-96GB"),
        ("RTX6000Pro", "RTX-PRO-6000-Blackwell"),
        ("tpu-v5e", "TPU-v5e"),
        ("tpu-v5litepod", "TPU-v5e"),
        ("MI300X", "MI300X-192GB"),
    ],
)
def test_names_people_write_resolve_to_one_catalog_name(written, name):
    assert get(written).name == name


def test_every_catalog_name_resolves_to_itself():
    assert [get(item.name).name for item in accelerators.catalog()] == [item.name for item in accelerators.catalog()]
    assert len(accelerators.catalog()) == 78


def test_unknown_names_get_a_suggestion():
    with pytest.raises(UsageError, match=r"did you mean .*H100.*\? \(`charter catalog gpus` lists all\)$"):
        get("H10O")


def test_requests_carry_a_count():
    assert parse_request("H100:8") == ("H100-SXM-80GB", 8)
    assert parse_request("cpu") == ("cpu", 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("H100:0", "give 1 accelerator or more, like H100:8"),
        ("H100:eight", "number of accelerators"),
        ("H100:-1", "number of accelerators"),
        ("A100:8,H100:8", "is several types"),
    ],
)
def test_a_count_that_is_no_number_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_request(text)


def test_memory_is_what_the_device_reports_where_that_is_known():
    b200 = get("B200")
    assert b200.memory_is_reported
    assert b200.memory_bytes == 183359 * 2**20
    unreported = get("Trainium2")
    assert not unreported.memory_is_reported
    assert unreported.memory_bytes == 96e9


def test_links_are_per_direction_and_networks_in_bytes():
    h100 = get("H100")
    assert h100.scaleup_bytes_per_second == 450e9
    assert h100.scaleout_bytes_per_second_per_node == 400e9


def test_a_package_of_two_devices_is_its_devices():
    mi250x = get("MI250X")
    assert mi250x.memory_bytes == 65_520 * 2**20
    assert mi250x.devices_per_node == 16
    assert mi250x.peak_flops_per_second("bf16") == pytest.approx(191.5e12)


def test_a_missing_dtype_runs_at_the_next_one_the_device_has():
    v100 = get("V100")
    assert v100.peak_flops_per_second("bf16") == v100.peak_flops_per_second("fp16") == 125e12
    assert get("A100").peak_flops_per_second("fp8") == 312e12
    with pytest.raises(UsageError, match="fp7"):
        v100.peak_flops_per_second("fp7")


def is_plausible(item):
    return (
        7e9 < item.memory_bytes < 310e9
        and 2.5e11 <= item.memory_bytes_per_second <= 1e13
        and all(1e12 < rate < 2e16 for rate in item.dense_flops_per_second.values())
        and all(0.5 < share < 1 for share in item.matmul_ceiling.values())
    )


def test_figures_are_plausible_and_have_a_source():
    assert [item for item in accelerators.catalog() if not is_plausible(item)] == []
    assert [item.name for item in accelerators.catalog() if not item.provenance.source] == []
    assert {item.provenance.confidence for item in accelerators.catalog()} <= {"S", "M", "L"}


def test_measured_ceilings_belong_to_devices_of_the_catalog():
    measured = {item.name for item in accelerators.catalog() if item.matmul_ceiling}
    assert {"A100-SXM-80GB", "H100-SXM-80GB", "B200-SXM-180GB", "MI300X-192GB", "Gaudi3-128GB"} <= measured
    assert get("A100-80GB").matmul_ceiling["bf16"] == pytest.approx(271.2 / 312)


def test_a_processor_is_an_accelerator_with_measured_figures():
    cpu = processor(flops_per_second=1e11, memory_bytes_per_second=2e10, memory_bytes=8e9, cores=2)
    assert cpu.peak_flops_per_second("bf16") == 1e11
    assert cpu.provenance.confidence == "measured here"
