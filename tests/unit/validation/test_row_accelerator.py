"""Accelerators of measurement tables, as they print them."""

from dataclasses import replace

import pytest

from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.measurement import Measurement, Refusal


def found(gpu, memory=None):
    return accelerator_of(Measurement(id="X-1", metric="step_time_s", value=1.0, gpu=gpu, mem_gb=memory))


@pytest.mark.parametrize(
    ("gpu", "memory", "name"),
    [
        ("A100", 80, "A100-SXM-80GB"),
        ("A100", 40, "A100-SXM-40GB"),
        ("A100 80GB PCIe", 80, "A100-PCIe-80GB"),
        ("8xA100", 80, "A100-SXM-80GB"),
        ("V100", 32, "V100-SXM2-32GB"),
        ("Tesla V100-SXM2-32GB", 32, "V100-SXM2-32GB"),
        ("H100 PCIe", 80, "H100-PCIe-80GB"),
        ("H100 NVL", 94, "H100-NVL-94GB"),
        ("H100", 94, "H100-NVL-94GB"),
        ("H200", 141, "H200-SXM-141GB"),
        ("H20-96GB", 96, "H20-96GB"),
        ("GH200", None, "GH200-96GB"),
        ("GB200", 192, "GB200-NVL72-186GB"),
        ("B200-180GB", 180, "B200-SXM-180GB"),
        ("48GB GPU", 48, "RTX-A6000"),
        ("A6000-48GB", 48, "RTX-A6000"),
        ("A40-48GB", 48, "A40"),
        ("RTX6000Pro", 96, "RTX-PRO-6000-Blackwell"),
        ("RTX 6000 Ada", 48, "RTX-6000-Ada"),
        ("RTX 2080 Ti", 11, "RTX2080Ti"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX4090"),
        ("RTX 5090", 32, "RTX5090"),
        ("P100", 16, "P100-SXM2-16GB"),
        ("MI210", 64, "MI210-64GB"),
        ("MI250", 128, "MI250-128GB"),
        ("MI350X", 288, "MI350X-288GB"),
        ("Gaudi 3", 128, "Gaudi3-128GB"),
        ("TPU v4-128", 32, "TPU-v4"),
        ("TPU v3-8", None, "TPU-v3"),
        ("TPU v7", 192, "TPU7x"),
        ("Ascend 910B", 64, "Ascend-910B"),
    ],
)
def test_names_as_tables_print_them(gpu, memory, name):
    assert found(gpu, memory).name == name


def test_the_memory_of_the_row_wins_where_no_variant_has_it():
    h20 = found("H20-141GB", 141)
    assert h20.name == "H20-96GB"
    assert h20.memory_bytes == 141e9
    assert found("B200", 192).memory_bytes == found("B200").memory_bytes


def test_half_a_package_keeps_its_own_memory():
    assert found("MI250", 128).memory_bytes == found("MI250", 64).memory_bytes == 65_520 * 2**20


@pytest.mark.parametrize(("gpu", "memory"), [("M2 Ultra", 192), ("consumer GPU", 24)])
def test_unknown_ones_are_refused_and_the_list_is_named(gpu, memory):
    with pytest.raises(Refusal, match=r"is called .*`charter catalog gpus` lists all"):
        found(gpu, memory)


def test_the_nearest_name_of_the_catalog_is_suggested():
    with pytest.raises(Refusal, match="did you mean H100-SXM-80GB"):
        found("H10O-SXM-80GB", 80)


def test_a_blank_cell_is_refused():
    with pytest.raises(Refusal, match="gpu is blank"):
        found("")


def test_a_lower_power_limit_slows_what_computes():
    usual = found("H100-SXM-80GB")
    row = Measurement(id="X-1", metric="step_time_s", value=1.0, gpu="H100-SXM-80GB", device_power_watts=500.0)
    capped = accelerator_of(row)
    share = capped.peak_flops_per_second("fp8") / usual.peak_flops_per_second("fp8")
    assert 500 / 700 < share < 1
    assert capped.memory_bytes_per_second == usual.memory_bytes_per_second
    assert accelerator_of(replace(row, device_power_watts=700.0)).peak_flops_per_second("bf16") == pytest.approx(
        usual.peak_flops_per_second("bf16")
    )
