"""Settings of the site that `make site` builds from these pages with Sphinx: search included, nothing from a network.

index.md is the one list of pages. A page of a repository needs no directives to be read on a forge, so the navigation
is derived here from the lists of links that readers see there.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent

project = "Charter"
author = "The Charter authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "Charter"
html_copy_source = False
html_show_copyright = False
myst_heading_anchors = 4
exclude_patterns = ["examples"]
BESIDE = ("README", "CONTRIBUTING", "CHANGELOG", "THIRD_PARTY_NOTICES")
"""Pages at the root of the repository that pages of the site link to; a reader finds them there."""
LISTS: dict[str, str | None] = {"index": "## ", "decisions/README": None}
"""Pages whose links make up the navigation, with what begins a room of its own."""


def _navigation(text: str, room: str | None) -> str:
    """Return hidden trees of the pages that a page links to, a tree for each room."""
    parts = re.split(rf"^{room}(.*)$", text, flags=re.MULTILINE) if room else ["", "", text]
    trees = []
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        pages = [link.removesuffix(".md") for link in re.findall(r"\]\(([^)\s#]+\.md)\)", body) if "../" not in link]
        caption = f":caption: {title}\n" if title else ""
        trees.append(f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(pages) + "\n```\n")
    return "".join(trees)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add the navigation to its pages, and turn links to files beside the site into their names."""
    if docname in LISTS:
        source[0] += _navigation(source[0], LISTS[docname])
    source[0] = re.sub(rf"\[([^\]]+)\]\((?:\.\./)+(?:{'|'.join(BESIDE)})\.md[^)]*\)", r"\1", source[0])
    source[0] = re.sub(r"^```csv$", "```text", source[0], flags=re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Connect the reader of sources."""
    app.connect("source-read", _read)
