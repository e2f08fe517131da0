"""The end of the HTML report: what the plan rests on, what it did not take, and what computed the run."""

from charter.report.markup import Markup, esc, join, section, table
from charter.report.overview import Overview
from charter.report.read import RunFiles
from charter.report.sections import stage_name


def assumptions(run: RunFiles) -> Markup:
    """Return the assumptions of the plan, with source and date."""
    rows = [
        (item.get("name", ""), _plain(item.get("value")), item.get("source", ""), item.get("as_of") or "")
        for item in (run.plan or {}).get("assumptions", [])
    ]
    head = ("Assumption", "Value", "Source", "As of")
    return section("Assumptions", table(head, rows, numeric=()) if rows else "")


def _plain(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def rejected(view: Overview) -> Markup:
    """The options that the plan did not take, with the reason of each."""
    rows = [
        (stage_name(view, stage.name), item.get("option", ""), item.get("reason", ""))
        for stage in view.stages
        for item in stage.planned_stage.get("rejected") or []
    ]
    shown = table(("Stage", "Option", "Reason"), rows) if rows else ""
    return section(
        "Options not taken", f"<details><summary>{len(rows)} options</summary>{shown}</details>" if rows else ""
    )


def versions(run: RunFiles, *, charter_version: str) -> Markup:
    """Return the versions of the software that computed the run, and the files that could not be read."""
    all_versions = {"report made by charter": charter_version, **run.versions}
    notes = join(f"<p>{esc(note)}</p>" for note in run.notes)
    return section("Versions", table(("Part", "Version"), list(all_versions.items())), notes)
