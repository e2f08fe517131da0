"""What a plan advises: how much less work keeps a budget, and how many spare nodes are worth having."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from charter.plan.make import budget_advice
from charter.report.plan_notes import risk_sentence
from charter.report.plan_table import _risk
from charter.spec.project import Project, Resources
from charter.spec.sections import RiskSettings
from charter.spec.stage import DpoStage, SftStage

SFT = SftStage(init="base", data=("chat",), steps=9000)
DPO = DpoStage(init="sft", data=("pairs",), steps=1000)


def stage(name, usd):
    return SimpleNamespace(name=name, usd=SimpleNamespace(p90=usd * 10**6), counters=SimpleNamespace(records=0.0))


@pytest.mark.parametrize(
    ("budget", "wanted"),
    [
        # $80 leave 80 - 40 of $60 for sft and 80 - 60 of $40 for dpo.
        (80.0, ["sft with steps: 6_000 (planned: 9_000)", "dpo with steps: 500 (planned: 1_000)"]),
        (50.0, ["sft with steps: 1_500 (planned: 9_000)"]),
        (30.0, ["$30.00 pays for about 30% of the work"]),
    ],
)
def test_the_rest_of_the_plan_is_paid_before_a_stage_shrinks(budget, wanted):
    plan = SimpleNamespace(
        usd=SimpleNamespace(p90=100 * 10**6), budget_usd=budget, stages=[stage("sft", 60), stage("dpo", 40)]
    )
    resources = Resources(infra="aws", use_spot="auto")
    project = Project(name="p", models={}, data={}, pipeline={"sft": SFT, "dpo": DPO}, resources=resources)
    lines = budget_advice(plan, project)
    assert len(lines) == len(wanted)
    assert all(line.startswith(start) for line, start in zip(lines, wanted, strict=True))


@pytest.mark.parametrize(
    ("settings", "infra", "advised"),
    [
        (RiskSettings(), "on_prem", 0),
        (RiskSettings(), "aws", 0),
        (RiskSettings(spares=2), "on_prem", 2),
        (RiskSettings(failures_per_node_day=0.05), "on_prem", 1),
    ],
)
def test_every_view_says_the_same_number_of_spare_nodes(lab, settings, infra, advised):
    resources = Resources(infra=infra, accelerators=("H100:8",), num_nodes=4)
    plan = lab.one(SFT, resources, risk=settings)
    made = plan.stages[0]
    spares = made.risk.spares
    assert spares.nodes == advised
    said = [part for part in risk_sentence(made.risk).split("; ") if "spare" in part]
    many = replace(made.risk, spent=replace(made.risk.spent, interruptions=1234.4))
    assert "1,234 interruptions expected" in risk_sentence(many)
    assert said == ([f"{advised} spare node{'s' if advised > 1 else ''}"] if advised else [])
    table = _risk(made)[-1]
    cells = [list(column.cells) for column in table.columns]
    row = [str(cell) for cell in next(line for line in zip(*cells, strict=True) if str(line[0]) == "spare nodes")]
    assert row[1] == str(advised)
    if settings.spares == "auto":
        assert row[2].endswith(f"best: {advised}")
        assert spares.worth.pays == (advised > 0)
        waits = [item for item in plan.assumptions if item.name.startswith("wait for the repair")]
        assert len(waits) == (infra == "on_prem")
