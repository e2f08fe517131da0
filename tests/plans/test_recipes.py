"""The golden recipes: they fit, plan and export as they did, and their pages say what the plan says."""

import json
from pathlib import Path

import pytest
import yaml
from plan_differences import differences

import generated
import recipes

EXPORTS = [(recipe, stage, engine) for recipe in recipes.ALL for stage, engine in recipe.exports]
RECIPES = pytest.mark.parametrize("recipe", recipes.ALL, ids=lambda recipe: recipe.name)
AGAIN = "regenerate: .venv/bin/python tools/recipes.py"


@RECIPES
def test_every_stage_fits_where_it_is_planned(recipe):
    plan = recipes.plan_of(recipe)
    assert [stage.name for stage in plan.stages] == list(
        yaml.safe_load((recipe.directory / "charter.yaml").read_text())["pipeline"]
    )
    for stage in plan.stages:
        assert stage.option.peak.total_bytes <= stage.option.capacity_bytes
    assert plan.budget_verdict == "ok"
    assert plan.deadline_verdict == "ok"


@RECIPES
def test_the_plan_is_the_golden_one(recipe):
    golden = json.loads((recipes.PLANS / f"{recipe.name}.json").read_text())
    found = differences(json.loads(json.dumps(recipes.short_plan(recipe))), golden)
    assert not found, "\n".join([*found[:20], AGAIN])


@pytest.mark.parametrize(
    ("recipe", "stage", "engine"), EXPORTS, ids=[f"{recipe.name}-{stage}-{engine}" for recipe, stage, engine in EXPORTS]
)
def test_the_export_is_the_golden_one(recipe, stage, engine):
    where = recipes.export_dir(recipe, stage, engine)
    golden = {str(path.relative_to(where)): path.read_text() for path in where.rglob("*") if path.is_file()}
    assert golden
    assert dict(recipes.golden_files(recipe, stage, engine)) == golden, AGAIN


@RECIPES
def test_each_is_exported_to_two_engines_with_nothing_dropped(recipe):
    assert len({engine for _, engine in recipe.exports}) >= 2
    for stage, engine in recipe.exports:
        made = recipes.export_of(recipe, stage, engine)
        assert sum(made.counts.values()) == len(made.rendered.mapping)
        assert made.planned.option.engine == engine


@RECIPES
def test_the_page_says_what_the_plan_says(recipe):
    page = recipe.page.read_text()
    assert generated.with_part(page, recipes.page_part(recipe)) == page, AGAIN
    assert len(page.partition(generated.BEGIN)[0].splitlines()) < 45
    for line in page.splitlines():
        if line.startswith("charter "):
            assert line.rstrip().endswith(f"-C recipes/{recipe.name}") or f"-C recipes/{recipe.name} " in line


def test_every_directory_is_a_recipe_and_every_golden_file_belongs_to_one():
    names = {recipe.name for recipe in recipes.ALL}
    assert {path.name for path in recipes.RECIPES.iterdir()} == names
    assert {path.stem for path in recipes.PAGES.glob("*.md")} == names
    assert {path.stem for path in recipes.PLANS.iterdir()} == names
    dirs = {path.relative_to(recipes.EXPORTS) for path in recipes.EXPORTS.glob("*/*")}
    assert dirs == {Path(recipe.name) / f"{stage}-{engine}" for recipe, stage, engine in EXPORTS}
