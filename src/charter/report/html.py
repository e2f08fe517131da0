"""One self-contained HTML page of a plan or a run: style, charts and data in the file, nothing loaded."""

import base64
import hashlib
from datetime import UTC, datetime
from importlib.resources import files

from charter import __version__
from charter.report import endnotes, sections
from charter.report.data import chart_data
from charter.report.heading import header
from charter.report.markup import esc, script_json
from charter.report.overview import overview
from charter.report.read import RunFiles

ASSETS = "charter.report.assets"


def report_html(run: RunFiles, *, now: float) -> str:
    """The whole page; `now` is the time that it says it was made at.

    The content security policy lets nothing be loaded and only the page's own scripts run, by their hash: text
    of a run cannot become a script even if escaping failed.
    """
    view = overview(run)
    charts = chart_data(run, view)
    ran = view.totals.attempts > 0
    made = datetime.fromtimestamp(now, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = (
        header(view, title=run.project, subtitle=f"{'Run' if ran else 'Plan'} report, {made}"),
        sections.results(run, charts["results"]),
        sections.stage_table(view),
        sections.spending(view, charts),
        sections.timeline(charts),
        sections.curves(view, charts),
        sections.memory(view, charts),
        sections.ledger(view, run.accounted),
        endnotes.rejected(view),
        endnotes.assumptions(run),
        endnotes.versions(run, charter_version=__version__),
    )
    return _page(title=f"{run.project} - Charter report", body="".join(body), data=script_json(charts))


def _page(*, title: str, body: str, data: str) -> str:
    scripts = [_asset("chart.umd.min.js"), _asset("report.js")]
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{esc(title)}</title><style>{_asset('report.css')}</style></head>\n"
        f"<body><main>{body}</main>\n"
        f'<script type="application/json" id="data">{data}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body></html>\n"
    )


def _asset(name: str) -> str:
    return files(ASSETS).joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
