"""Views to HTML: one Jinja environment, everything escaped unless a template of ours made it."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from charter import __version__
from charter.dashboard.links import PLAIN_LINKS
from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.view.words import ago, percent, short_seconds, state_word
from charter.report.markup import script_json
from charter.units import format_bytes, format_count, format_seconds, format_usd


@cache
def environment() -> Environment:
    """The environment of all templates."""
    jinja = Environment(
        loader=PackageLoader("charter.dashboard", "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    jinja.filters.update(
        bytes=format_bytes,
        count=format_count,
        seconds=format_seconds,
        usd=format_usd,
        percent=percent,
        ago=ago,
        iso=iso,
        clock=clock,
        short_seconds=short_seconds,
        state_word=state_word,
    )
    return jinja


def render_page(page: Page, context: Context, view: PageValues, *, pages: Sequence[Page], version: str = "") -> str:
    """A whole page among `pages`; `version` is of what was read."""
    project = context.project if page.of_project else None
    return (
        environment()
        .get_template(page.template)
        .render(
            page=page,
            view=view.model,
            title=view.title,
            version=version,
            charts=Markup(script_json(view.charts)),
            project=project,
            nav=[item for item in pages if item.label] if project else [],
            links=context.links,
            now=context.now,
            charter_version=__version__,
            csrf=context.csrf,
            acts=context.acts,
        )
    )


def render_plain(template: str, **values: Any) -> str:
    """A page outside the table: errors, sign-in."""
    return environment().get_template(template).render(charter_version=__version__, **values)


def error_page(status: int, title: str, message: str, *, steps: Sequence[str] = ()) -> Response:
    """An error as a page like the others."""
    page = render_plain("error.html", title=title, message=message, steps=steps, links=PLAIN_LINKS, status=status)
    return HTMLResponse(page, status_code=status)


def iso(unix_seconds: float) -> str:
    """A moment for machines."""
    return datetime.fromtimestamp(unix_seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def clock(unix_seconds: float) -> str:
    """A moment for people, in UTC as everywhere in Charter."""
    return datetime.fromtimestamp(unix_seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def json_text(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
