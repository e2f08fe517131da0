"""All pages as files: the same templates, with styles and scripts beside them and nothing from elsewhere."""

import time
from collections.abc import Iterator
from pathlib import Path

from charter.artifacts import durable
from charter.dashboard.app import ASSET_FILES, asset_bytes
from charter.dashboard.links import StaticLinks
from charter.dashboard.page import Context
from charter.dashboard.reading import ProjectReader
from charter.dashboard.render import render_page
from charter.dashboard.settings import Settings
from charter.dashboard.site import ProjectSite
from charter.dashboard.table import PAGES
from charter.errors import UsageError

MARK = "charter-export.txt"
_WORDS = "Pages written by `charter ui --export`; the next export into this directory replaces them.\n"


def export_pages(settings: Settings, out: Path) -> int:
    """Write every page of every project into a directory; returns how many. An earlier export there is replaced."""
    check_place(out)
    site, links = ProjectSite(settings), StaticLinks()
    readers = site.readers()
    if not readers:
        places = ", ".join(str(root) for root in settings.roots)
        raise UsageError(f"there is no project below {places}; `charter init --template cai-tiny DIR` writes one")
    durable.make_dir(out / "assets")
    durable.write_file(out / MARK, _WORDS)
    for name in ASSET_FILES:
        durable.write_file(out / links.asset(name), asset_bytes(name))
    written: set[str] = set()
    for name, text in pages_of(site, readers, time.time()):
        durable.write_file(out / name, text)
        written.add(name)
    for old in out.glob("*.html"):
        if old.name not in written:
            old.unlink()
    return len(written)


def check_place(out: Path) -> None:
    """UsageError for a directory that holds something else than an earlier export."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--export {out}: is a file; give a directory")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise UsageError(f"--export {out}: holds other files; give an empty or a new directory")


def pages_of(site: ProjectSite, readers: tuple[ProjectReader, ...], now: float) -> Iterator[tuple[str, str]]:
    """File name and text of every page."""
    links = StaticLinks()
    for page in PAGES:
        if not page.of_project:
            context = Context(site=site, links=links, now=now)
            yield links.page(page.name), render_page(page, context, page.build(context), pages=PAGES)
            continue
        for reader in readers:
            for params in page.each(reader.snapshot()):
                name = links.page(page.name, query=None, project=reader.found.key, **params)
                context = Context(site=site, links=links, now=now, params=params, reader=reader)
                yield name, render_page(page, context, page.build(context), pages=PAGES)
