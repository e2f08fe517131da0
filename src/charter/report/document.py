"""The frame of every page: style, scripts and data in the file, a policy that lets nothing else in."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from charter.report.markup import esc

ASSETS = "charter.report.assets"
CHART_LIBRARY, REPORT_SCRIPT, REPORT_STYLE = "chart.umd.min.js", "report.js", "report.css"


def document(*, title: str, body: str, data: str, scripts: Sequence[str] = (), styles: Sequence[str] = ()) -> str:
    """A page of `body`, already escaped, with `data` as JSON for its scripts.

    `scripts` and `styles` are assets beside those of every page. The content security policy lets nothing be loaded
    and only the page's own scripts run, by their hash: text of a run cannot become a script even if escaping failed.
    """
    sources = [_asset(name) for name in (CHART_LIBRARY, *scripts, REPORT_SCRIPT)]
    style = "".join(_asset(name) for name in (REPORT_STYLE, *styles))
    hashes = " ".join(f"'sha256-{_sha256(source)}'" for source in sources)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{esc(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{body}</main>\n"
        f'<script type="application/json" id="data">{data}</script>\n'
        + "".join(f"<script>{source}</script>\n" for source in sources)
        + "</body></html>\n"
    )


def _asset(name: str) -> str:
    return files(ASSETS).joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
