"""`charter catalog gpus` from the outside."""

import json

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import UsageError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def charter(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(
        app, ["catalog", "gpus", *map(str, arguments)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def names(*arguments: object) -> list[str]:
    return [item["name"] for item in json.loads(charter(*arguments, "--json"))["accelerators"]]


def test_gpus_alone_means_list_and_with_a_name_show():
    assert charter() == charter("list")
    assert charter("H100") == charter("show", "H100")
    assert names("H100") == names("--json", "H100") == ["H100-SXM-80GB"]
    assert len(names()) == 78


def test_a_name_of_several_cards_names_the_others():
    assert "others     A100-PCIe-40GB, A100-PCIe-80GB, A100-SXM-80GB, which A100 could mean too" in charter("A100")
    assert "could mean" not in charter("A100-SXM-80GB")


def test_the_json_keeps_its_names_and_adds_prices():
    (h100,) = json.loads(charter("show", "H100", "--json"))["accelerators"]
    assert h100["dense_flops_per_second"]["bf16"] == pytest.approx(989.4e12)
    assert h100["best_price"]["on_demand"]["cloud"] == "verda"
    assert h100["best_price"]["on_demand"]["usd_per_pflop_hour"] == pytest.approx(2.29 / 0.9894)
    (gaudi,) = json.loads(charter("show", "Gaudi3", "--json"))["accelerators"]
    assert gaudi["best_price"] == {"on_demand": None, "spot": None}


def test_the_list_sorts_by_price_per_pflop_with_unpriced_ones_last():
    found = json.loads(charter("--sort", "price-per-pflop", "--json"))["accelerators"]
    priced = [item["best_price"]["on_demand"] for item in found]
    figures = [price["usd_per_pflop_hour"] for price in priced if price]
    assert figures == sorted(figures)
    assert found[0]["name"] == "B200-SXM-180GB"
    assert not any(priced[len(figures) :])


@pytest.mark.parametrize(("key", "first"), [("memory", "MI350X-288GB"), ("price", "T4"), ("name", "A10")])
def test_other_sorts(key, first):
    assert names("--sort", key)[0] == first


def test_an_unknown_sort_lists_the_keys():
    with pytest.raises(UsageError, match="did you mean price"):
        charter("--sort", "prize")


def test_a_comparison_has_one_column_each_and_the_units():
    text = charter("compare", "H100", "B200", "TPU-v5p")
    assert text.splitlines()[0].split() == ["H100-SXM-80GB", "B200-SXM-180GB", "TPU-v5p"]
    line = next(line for line in text.splitlines() if line.startswith("$/dense PFLOP-h"))
    assert line.split()[-3:] == ["2.31", "2.17", "9.15"]
    assert "$/TB/s-h (decode)" in text
    assert names("compare", "H100", "B200", "--sort", "price-per-pflop") == ["B200-SXM-180GB", "H100-SXM-80GB"]


def test_one_accelerator_shows_its_best_prices_with_provider_and_date():
    text = charter("show", "MI300X")
    assert "$3.45 per hour (crusoe all, per GPU, as of 2026-08-19)" in text
    assert "$2.64 per dense PFLOP-h, $5.13 per measured PFLOP-h, $0.65 per TB/s-h" in text


def test_a_projects_prices_are_used(tmp_path):
    header = "cloud,instance_type,accelerator,count,region,ondemand_usd_h,as_of,confidence,source"
    (tmp_path / "prices.csv").write_text(f"{header}\nmine,box,H100,8,all,8,2026-11-01,contract,mail\n")
    assert "$1.00 per hour (mine all, box, as of 2026-11-01, contract)" in charter("show", "H100")
