"""One self-contained HTML page of a plan or a run: style, charts and data in the file, nothing loaded."""

from datetime import UTC, datetime

from charter import __version__
from charter.report import sections
from charter.report.data import chart_data
from charter.report.markup import document, script_json
from charter.report.overview import overview
from charter.report.read import RunFiles
from charter.report.sections import header


def report_html(run: RunFiles, *, now: float) -> str:
    """The whole page; `now` is the time that it says it was made at."""
    view = overview(run)
    charts = chart_data(run, view)
    ran = view.totals.attempts > 0
    stamp = datetime.fromtimestamp(now, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = (
        header(view, title=run.project, subtitle=f"{'Run' if ran else 'Plan'} report, {stamp}"),
        sections.results(run, charts["results"], charts["measured"]),
        sections.rewards(run),
        sections.stage_table(view),
        sections.spending(view, charts),
        sections.timeline(charts),
        sections.curves(view, charts),
        sections.memory(run, view, charts),
        sections.ledger(view, run.accounted),
        sections.rejected(view),
        sections.assumptions(run),
        sections.versions(run, charter_version=__version__),
    )
    return document(title=f"{run.project} - Charter report", body="".join(body), data=script_json(charts))
