"""Small pieces of HTML. Everything that comes from a run goes through `esc` or `script_json`."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Protocol


class Markup(str):
    """Text that is HTML already; `esc` leaves it alone."""

    __slots__ = ()


def esc(value: object) -> str:
    """`value` as text that is safe between tags and inside quoted attributes.

    >>> esc('<script>"')
    '&lt;script&gt;&quot;'
    """
    return value if isinstance(value, Markup) else html.escape(str(value), quote=True)


def script_json(value: object) -> str:
    """`value` as JSON that is safe inside a <script> element: no character there can end it.

    >>> script_json("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def join(parts: Iterable[str]) -> Markup:
    """Pieces of HTML one after another."""
    return Markup("".join(parts))


def section(title: str, *parts: str, note: str = "") -> Markup:
    """A titled section; nothing when all its parts are empty."""
    body = "".join(parts)
    if not body:
        return Markup("")
    remark = f'<p class="note">{esc(note)}</p>' if note else ""
    anchor = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    return Markup(f'<section id="{esc(anchor)}"><h2>{esc(title)}</h2>{remark}{body}</section>')


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Sequence[int] = (), foot: Sequence[object] = ()
) -> Markup:
    """A table that scrolls sideways by itself; `numeric` columns are set to the right."""
    classes = [' class="num"' if column in numeric else "" for column in range(len(head))]

    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}{c}>{esc(v)}</{tag}>" for v, c in zip(cells, classes, strict=True)) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    footer = f"<tfoot>{line(foot, 'td')}</tfoot>" if foot else ""
    header = "<tr>" + "".join(f'<th scope="col"{c}>{esc(v)}</th>' for v, c in zip(head, classes, strict=True)) + "</tr>"
    return Markup(f'<div class="scroll"><table><thead>{header}</thead><tbody>{body}</tbody>{footer}</table></div>')


def folded(summary: str, body: str) -> Markup:
    """`body` behind a line to open it by."""
    return Markup(f"<details><summary>{esc(summary)}</summary>{body}</details>")


def card(name: str, value: str, note: str) -> Markup:
    """A figure with its name above and a remark below."""
    return Markup(
        f'<div class="card"><p class="name">{esc(name)}</p><p class="value">{esc(value)}</p>'
        f'<p class="note">{esc(note)}</p></div>'
    )


class Named(Protocol):
    """A stage of a run or plan."""

    @property
    def name(self) -> str:
        """As in `charter.yaml`."""


class HasStages(Protocol):
    """A run or plan."""

    @property
    def stages(self) -> Sequence[Named]:
        """In the order of the pipeline, which gives them their colours."""


def stage_name(view: HasStages, name: str) -> Markup:
    """A stage's name behind a dot in its colour."""
    names = [stage.name for stage in view.stages]
    colour = f"s{names.index(name) % 12}" if name in names else "other"
    return Markup(f'<span class="stage"><span class="dot {colour}"></span>{esc(name)}</span>')


def plain_value(value: object) -> str:
    """The value of an assumption: a number to four digits, or what else it is.

    >>> plain_value(1234567.0), plain_value(0.123456), plain_value(None), plain_value("bf16")
    ('1,234,567', '0.1235', '', 'bf16')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def chart(kind: str, *, label: str, height: int, caption: str = "", index: int | None = None) -> Markup:
    """A place for a chart that the page's script draws; without a script it is not shown."""
    which = "" if index is None else f' data-index="{index}"'
    text = f"<figcaption>{esc(caption)}</figcaption>" if caption else ""
    return Markup(
        f'<figure class="chart" data-chart="{esc(kind)}"{which}>'
        f'<div class="canvas" style="height:{height}px"><canvas role="img" aria-label="{esc(label)}"></canvas></div>'
        f"{text}</figure>"
    )


# -------- The frame of every page: style, scripts and data in the file, a policy that lets nothing else in.

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
    below = f'\n<script type="application/json" id="data">{data}</script>\n'
    below += "".join(f"<script>{source}</script>\n" for source in sources)
    return _page(title, body, style=style, policy=f"; img-src data:; script-src {hashes}", below=below)


def still_document(*, title: str, body: str, style: str) -> str:
    """A page of `body`, already escaped, on which no script runs; `style` follows that of every page."""
    return _page(title, body, style=_asset(REPORT_STYLE) + style, policy="", below="")


def _page(title: str, body: str, *, style: str, policy: str, below: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f"""content="default-src 'none'; style-src 'unsafe-inline'{policy}">"""
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{esc(title)}</title><style>{style}</style></head>\n"
        f"<body><main>{body}</main>{below}</body></html>\n"
    )


def _asset(name: str) -> str:
    return files(ASSETS).joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
