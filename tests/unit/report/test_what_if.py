import dataclasses
import json
import shlex
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog import models
from charter.errors import UsageError
from charter.plan.make import make_plan
from charter.report.what_if import MOST_CHARACTERS, WhatIfQuestion, change_text, command, memory_by_role, plan_view
from charter.spec.project import Project


def test_controls_become_values_of_charter_yaml(project):
    asked = WhatIfQuestion.of(
        {"accelerators": "A100-80GB:8, H100:8", "market": "spot", "deadline": "3d", "budget": "$500", "nodes": "2"}
    )
    assert asked.overrides(project) == (
        "resources.accelerators=[A100-80GB:8, H100:8]",
        "resources.use_spot=true",
        "deadline=3d",
        "budget.limit=$500",
        "resources.num_nodes=2",
        "resources.max_nodes=2",
    )
    assert WhatIfQuestion.of({}) == WhatIfQuestion()
    assert WhatIfQuestion.of({"deadline": " none ", "budget": "NONE"}).overrides(project) == (
        "deadline=null",
        "budget=null",
    )


def test_a_link_asks_the_same_again():
    asked = WhatIfQuestion.of({"market": "spot", "more": "pipeline.sft.steps=5\nresources.regions=[eu-west-1]"})
    assert WhatIfQuestion.of(dict(parse_qsl(asked.query()))) == asked


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"nodes": "two"}, "is not a whole number"),
        ({"market": "free"}, "the market is spot, on_demand or any"),
        ({"deadline": "3d; data.chat.path=/etc/passwd"}, "holds a semicolon"),
        ({"more": "data.chat.path=/etc/passwd"}, "here can be changed"),
        ({"more": "constitution=/etc/passwd"}, "here can be changed"),
        ({"more": "pipeline.sft.data=[/etc/passwd]"}, "here can be changed"),
        ({"more": "models.base.model=/etc"}, "here can be changed"),
        ({"more": "storage.ledger=postgresql://h/d"}, "here can be changed"),
        ({"more": "nonsense"}, "write a setting like"),
    ],
)
def test_what_cannot_be_meant_or_names_a_file_is_refused(project, given_, words):
    with pytest.raises(UsageError, match=words):
        WhatIfQuestion.of(given_).overrides(project)


def test_long_and_odd_values_are_refused_at_once():
    with pytest.raises(UsageError, match="takes up to"):
        WhatIfQuestion.of({"budget": "9" * (MOST_CHARACTERS + 1)})
    with pytest.raises(UsageError, match="control characters"):
        WhatIfQuestion.of({"budget": "5\x00"})


@given(st.dictionaries(st.sampled_from(["accelerators", "market", "deadline", "nodes", "more"]), st.text(max_size=60)))
def test_anything_typed_is_an_answer_or_a_usage_error(typed):
    project = Project(name="x", models={}, data={}, pipeline={})
    try:
        found = WhatIfQuestion.of(typed).overrides(project)
    except UsageError:
        return
    assert all(item.partition("=")[1] for item in found)


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1), max_size=3))
def test_the_command_can_be_pasted_into_a_shell(values):
    changes = [f"deadline={value}" for value in values]
    parts = shlex.split(command(changes, "my lab"))
    assert parts == ["charter", "plan", "my lab", *(part for item in changes for part in ("--set", item))]


@pytest.fixture(scope="module")
def h100(project):
    """The same project on newer accelerators alone."""
    resources = dataclasses.replace(project.resources, accelerators=("H100:8",))
    changed = dataclasses.replace(project, resources=resources)
    architectures = {name: models.get("Llama-3.1-8B").architecture for name in project.models}
    return make_plan(changed, architectures=architectures, data_facts={})


def test_a_change_is_shown_beside_the_plan_as_it_is(plan, h100):
    found = plan_view(h100, plan, changed=["resources.accelerators=[H100:8]"], command="charter plan")
    by_name = {item.name: item for item in found.totals}
    ratio = h100.project_usd.p50 / plan.project_usd.p50
    assert by_name["Cost"].change == change_text(ratio, 1.0)
    changed = {stage.name: stage for stage in found.stages if stage.hardware_before}
    assert changed
    assert all("H100" in stage.hardware and stage.hardware_before for stage in changed.values())
    assert [limit.name for limit in found.limits] == ["Budget", "Deadline"]


def test_without_a_change_nothing_is_called_changed(plan):
    found = plan_view(plan, plan)
    assert not any(item.change for item in found.totals)
    assert not any(stage.hardware_before or stage.seconds_change or stage.usd_change for stage in found.stages)
    assert json.loads(json.dumps(dataclasses.asdict(found), allow_nan=False))["name"] == plan.name


def test_every_rejection_has_its_reason(plan):
    found = plan_view(plan, plan)
    assert all(item.reason and item.option for item in found.refused)


def test_memory_by_role_adds_up_to_the_peak(plan):
    found = memory_by_role(plan)
    rows = {row["stage"]: row for row in found["rows"]}
    for stage in plan.stages:
        if stage.name in rows and not stage.option.groups:
            row = rows[stage.name]
            assert sum(row["roles"].values()) == pytest.approx(stage.option.peak.total_bytes)
            assert row["capacity"] == stage.option.capacity_bytes
            for role, parts in row["parts"].items():
                assert sum(parts.values()) == pytest.approx(row["roles"][role])
    assert set().union(*(row["roles"] for row in found["rows"])) <= set(found["roles"])


def test_small_moves_are_no_change():
    assert change_text(100.4, 100.0) == "unchanged"
    assert change_text(90.0, 100.0) == "-10 %"
    assert change_text(None, 100.0) == ""
    assert change_text(0.0, 0.0) == "unchanged"
