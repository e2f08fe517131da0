"""The golden recipes: their plans in short, their exports, and the generated part of their pages.

.venv/bin/python tools/recipes.py writes all of it anew. Look at the difference before committing it.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from charter.engines.project import load_project
from charter.plan.plan import Plan
from charter.plan.project_plan import plan_project
from charter.plan.stage_plan import StagePlan, stage_line
from charter.report.handover import HandoverExport, export_handover
from charter.report.handover_pages import GUARANTEES
from charter.spec.stage import TRAINS
from charter.units import GIB
from generated import write_part

ROOT = Path(__file__).resolve().parent.parent
RECIPES, PAGES = ROOT / "recipes", ROOT / "docs" / "recipes"
PLANS, EXPORTS = ROOT / "tests" / "golden" / "recipes", ROOT / "tests" / "golden" / "handover"
NOT_GOLDEN = ("plan.json", "README.md")
"""Files of an export that follow prices and estimates."""
HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One project of `recipes/`, and the stages of it that are exported."""

    name: str
    exports: tuple[tuple[str, str], ...]
    """Stage and engine."""

    @property
    def directory(self) -> Path:
        """Where its charter.yaml lies."""
        return RECIPES / self.name

    @property
    def page(self) -> Path:
        """Its walk-through."""
        return PAGES / f"{self.name}.md"


ALL = (
    Recipe(name="8b-on-8xh100", exports=(("helpful", "trl"), ("helpful", "deepspeed"), ("ppo", "verl"))),
    Recipe(name="70b-on-64xh100", exports=(("helpful", "megatron"), ("helpful", "nemo_rl"), ("ppo", "openrlhf"))),
    Recipe(
        name="70b-on-mixed-spot", exports=(("helpful", "deepspeed"), ("helpful", "accelerate"), ("ppo", "openrlhf"))
    ),
    Recipe(name="405b-on-1024", exports=(("helpful", "megatron"), ("ppo", "openrlhf"))),
)


@cache
def plan_of(recipe: Recipe) -> Plan:
    """The plan of a recipe at the bundled prices."""
    return plan_project(load_project(recipe.directory), recipe.directory)


@cache
def export_of(recipe: Recipe, stage: str, engine: str) -> HandoverExport:
    """One stage of a recipe in an engine."""
    return export_handover(load_project(recipe.directory), recipe.directory, stage, engine)


def short_plan(recipe: Recipe) -> dict[str, Any]:
    """The plan as a golden file holds it."""
    plan = plan_of(recipe)
    total = None if plan.usd is None else plan.usd.to_json()
    return {"name": plan.name, "stages": [dict(stage_line(stage)) for stage in plan.stages], "usd": total}


def golden_files(recipe: Recipe, stage: str, engine: str) -> Mapping[str, str]:
    """The texts of an export that follow only the renderer and the layout."""
    return {name: text for name, text in export_of(recipe, stage, engine).files.items() if name not in NOT_GOLDEN}


def export_dir(recipe: Recipe, stage: str, engine: str) -> Path:
    """Where the golden files of an export lie."""
    return EXPORTS / recipe.name / f"{stage}-{engine}"


def page_part(recipe: Recipe) -> str:
    """The plan and the exports of a recipe as the page shows them."""
    return "\n".join(["", *_plan_table(plan_of(recipe)), "", *_exports(recipe), ""])


def _plan_table(plan: Plan) -> Iterator[str]:
    yield "| stage | engine | on | layout | peak, GiB | hours, p50-p90 | cost, p50-p90 |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for stage in plan.stages:
        yield _plan_row(stage)
    seconds, cost = plan.timeline("p50").total_seconds, plan.usd
    late = plan.timeline("p90").total_seconds
    money = "" if cost is None else f"${cost.p50 / 1e6:,.0f}-{cost.p90 / 1e6:,.0f}"
    yield f"| total | | | | | {seconds / HOUR:,.1f}-{late / HOUR:,.1f} | {money} |"


def _plan_row(stage: StagePlan) -> str:
    option, usd = stage.option, stage.usd
    peak = f"{option.peak.total_bytes / GIB:.1f} of {option.capacity_bytes / GIB:.1f}"
    hours = f"{option.seconds.p50 / HOUR:,.1f}-{option.seconds.p90 / HOUR:,.1f}"
    money = "" if usd is None else f"${usd.p50 / 1e6:,.0f}-{usd.p90 / 1e6:,.0f}"
    engine = option.engine if stage.kind in TRAINS else ""
    layout = _cell(option.layout_label)
    return f"| {stage.name} | {engine} | {option.label} | {layout} | {peak} | {hours} | {money} |"


def _exports(recipe: Recipe) -> Iterator[str]:
    yield "| export | planned as | fields: as they are, computed, the engine's own way, Charter's | resumed |"
    yield "| --- | --- | --- | --- |"
    for stage, engine in recipe.exports:
        exported = export_of(recipe, stage, engine)
        command = f"`charter artifacts export {stage} --engine {engine} -C recipes/{recipe.name}`"
        numbers = ", ".join(str(exported.counts.get(how, 0)) for how in ("as_is", "computed", "same", "charter"))
        planned = f"{exported.planned.option.label}; {_cell(exported.planned.option.layout_label)}"
        yield f"| {command} | {planned} | {numbers} | {GUARANTEES[exported.rendered.resume.guarantee]} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> int:
    """Write golden plans, golden exports and pages."""
    PLANS.mkdir(exist_ok=True)
    for recipe in ALL:
        text = json.dumps(short_plan(recipe), indent=1) + "\n"
        (PLANS / f"{recipe.name}.json").write_text(text, encoding="utf-8")
        for stage, engine in recipe.exports:
            target = export_dir(recipe, stage, engine)
            shutil.rmtree(target, ignore_errors=True)
            for name, content in golden_files(recipe, stage, engine).items():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_text(content, encoding="utf-8")
        write_part(recipe.page, page_part(recipe))
        print(f"wrote {recipe.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
