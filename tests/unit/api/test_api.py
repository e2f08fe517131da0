import json
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

import charter.api as api
from charter.catalog.price_book import PriceBook
from charter.errors import SpecError, UsageError
from charter.spec.layout import Adapter, Layout, ZeroStage

FILE = {
    "name": "demo",
    "models": {"base": "meta-llama/Llama-3.1-8B"},
    "data": {"chat": {"path": "chat.jsonl", "rows": 40_000, "mean_tokens": 300}},
    "pipeline": {"sft": {"kind": "sft", "init": "base", "data": ["chat"], "global_batch": 128, "seq_len": 2048}},
    "resources": {"infra": "aws", "accelerators": ["H100:8"], "max_nodes": 2},
}


def test_a_mapping_and_a_file_give_the_same_plan(tmp_path):
    (tmp_path / "charter.yaml").write_text(json.dumps(FILE))
    wanted = api.plan(FILE).to_json()
    assert api.plan(tmp_path).to_json() == wanted
    assert api.plan(str(tmp_path / "charter.yaml")).to_json() == wanted
    assert api.plan(api.project(FILE)).to_json() == wanted
    assert FILE["models"] == {"base": "meta-llama/Llama-3.1-8B"}


def test_overrides_and_objective_are_those_of_the_command_line():
    slow = api.plan(FILE, overrides=["resources.max_nodes=1"])
    fast = api.plan(FILE, objective="fastest")
    assert slow.stages[0].option.num_nodes == 1
    assert (fast.objective, fast.stages[0].option.num_nodes) == ("fastest", 2)
    with pytest.raises(SpecError, match="objective"):
        api.plan(FILE, overrides=["objective=quickest"])


def test_prices_are_those_that_are_given():
    book = PriceBook.bundled()
    dear = replace(
        book,
        rows=tuple(
            replace(row, on_demand_usd_per_hour=row.on_demand_usd_per_hour and 2 * row.on_demand_usd_per_hour)
            for row in book.rows
        ),
    )
    fixed = ["resources.num_nodes=1"]
    once, twice = api.plan(FILE, overrides=fixed), api.plan(FILE, overrides=fixed, prices=dear)
    assert twice.stages[0].option.usd.p50 == pytest.approx(2 * once.stages[0].option.usd.p50)


def test_old_prices_are_noted_only_when_the_day_is_known():
    def stale(**given):
        return [item for item in api.plan(FILE, **given).assumptions if item.name.startswith("stale price")]

    assert stale() == []
    assert len(stale(today=date(2030, 1, 1))) == 1


def test_a_prices_file_beside_the_project_is_used(tmp_path):
    (tmp_path / "charter.yaml").write_text(json.dumps(FILE))
    header = "cloud,instance_type,accelerator,count,region,ondemand_usd_h,spot_usd_h_median_az,spot_usd_h_min_az,"
    header += "reserved_1y_usd_h,reserved_3y_usd_h,vcpu,ram_gib,network_gbit_s,local_nvme_gb,ondemand_usd_per_acc_h,"
    header += "as_of,confidence,source,note\n"
    row = "aws,p5.48xlarge,H100,8,us-east-9,8.0,,,,,,,3200,,,2026-11,seen,our contract,\n"
    (tmp_path / "prices.csv").write_text(header + row)
    option = api.plan(tmp_path).stages[0].option
    assert (option.price.usd_per_hour, option.price.region) == (1.0, "us-east-9")


def test_estimate_is_the_memory_of_the_command_and_the_step_of_the_plan():
    found = api.estimate("meta-llama/Llama-3.1-8B", "H100:8", seq_len=2048)
    adapter = api.estimate("meta-llama/Llama-3.1-8B", "H100:8", seq_len=2048, adapter=Adapter(rank=16))
    assert adapter.memory.total_bytes < found.memory.total_bytes
    assert found.step.seconds.p10 < found.step.total < found.step.seconds.p90
    assert sum(term.value for term in found.step.terms) == pytest.approx(found.step.total)
    assert found.hours(3600 * found.step.tokens_per_second) == pytest.approx(1.0)
    more = api.estimate("meta-llama/Llama-3.1-8B", "H100:8", seq_len=2048, layout=Layout(data=8, micro_batch=4))
    assert more.memory.total_bytes > found.memory.total_bytes
    assert not more.fits


def test_a_layout_of_another_size_is_refused():
    with pytest.raises(UsageError, match="uses 4 accelerators, H100:8 has 8"):
        api.estimate("meta-llama/Llama-3.1-8B", layout=Layout(data=4, zero=ZeroStage.PARAMETERS))


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no"):
        api.plan(tmp_path / "nothing")


def test_a_page_shows_itself_in_a_notebook():
    shown = api.page(api.plan(FILE), now=datetime(2026, 11, 20, tzinfo=UTC))._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "demo" in shown
