import importlib.util
import json
from pathlib import Path

import pytest
from plan_differences import differences

_SPEC = importlib.util.spec_from_file_location("template_plans", Path(__file__).parent / "template_plans.py")
assert _SPEC is not None
assert _SPEC.loader is not None
template_plans = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(template_plans)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    return {
        name: template_plans.plan_of(name, tmp_path_factory.mktemp("plans") / name) for name in template_plans.NAMES
    }


@pytest.mark.parametrize("name", template_plans.NAMES)
def test_plan_is_the_golden_one(plans, name):
    golden = json.loads((template_plans.PLANS / f"{name}.json").read_text(encoding="utf-8"))
    found = differences(json.loads(json.dumps(plans[name])), golden)
    assert not found, "\n".join(found[:20]) + "\nregenerate: .venv/bin/python tests/golden/template_plans.py"


@pytest.mark.parametrize("name", template_plans.NAMES)
def test_parts_of_a_template_plan_sum_to_its_totals(plans, name):
    stages, total = plans[name]["stages"], plans[name]["total"]
    assert total["storage_bytes"] == sum(stage["storage_bytes"] for stage in stages)
    for quantile in ("p10", "p50", "p90"):
        hours = [stage["gpu_hours"][quantile] for stage in stages]
        assert total["gpu_hours"][quantile] == pytest.approx(sum(hours), abs=1e-5 * len(stages))
        prices = [stage["usd"][quantile] for stage in stages]
        if total["usd"][quantile] is None:
            assert None in prices
        else:
            micro = [round(price * 1e6) for price in prices]
            assert round(total["usd"][quantile] * 1e6) == sum(micro)


@pytest.mark.parametrize("name", template_plans.NAMES)
def test_every_stage_of_a_template_fits_and_says_why_others_do_not(plans, name):
    for stage in plans[name]["stages"]:
        assert stage["fits"]
        assert 0 <= stage["peak_bytes"] <= stage["capacity_bytes"]
        assert stage["seconds"]["p10"] <= stage["seconds"]["p50"] <= stage["seconds"]["p90"]
        assert all(item["option"] and item["reason"] for item in stage["rejected"])
        memory = sum(stage["breakdown"]["memory_bytes"].values())
        assert memory == pytest.approx(stage["peak_bytes"], abs=20)
        assert sum(stage["breakdown"]["seconds"].values()) == pytest.approx(stage["seconds"]["p50"], abs=1e-3)


@pytest.mark.parametrize("name", template_plans.NAMES)
def test_assumptions_of_a_template_plan_name_their_source(plans, name):
    assert plans[name]["assumptions"]
    assert all(item["name"] and item["source"] for item in plans[name]["assumptions"])
