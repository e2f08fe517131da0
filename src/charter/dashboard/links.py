"""Addresses of pages: paths on a server, file names in an export."""

import hashlib
import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from charter.dashboard.page import Params

ASSETS = "/assets/"
API = "/api/v1"


class LiveLinks:
    """Paths on the server."""

    static = False

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def page(self, name: str, /, *, query: Params | None = None, **params: str) -> str:
        """The path of a page."""
        path = self._paths[name]
        for key, value in params.items():
            path = path.replace("{" + key + "}", quote(value, safe=""))
        return f"{path}?{urlencode(query)}" if query else path

    def asset(self, name: str, /) -> str:
        """The path of an asset."""
        return ASSETS + name


PLAIN_LINKS = LiveLinks({"home": "/"})
"""What pages outside the table link to."""


class StaticLinks:
    """File names, all in one directory, so that every link is a name."""

    static = True

    def page(self, name: str, /, *, query: Params | None = None, **params: str) -> str:
        """The file of a page; what a query would change is not in an export."""
        if not params:
            return "index.html" if name == "home" else f"{name}.html"
        parts = [_file_part(value) for value in params.values()]
        return ".".join([parts[0], *([] if name == "run" else [name]), *parts[1:], "html"])

    def asset(self, name: str, /) -> str:
        """The file of an asset."""
        return f"assets/{name}"


def _file_part(value: str) -> str:
    """A value as part of a file name: itself where it is harmless, else with a mark that tells it from others.

    >>> _file_part("sl_cai"), _file_part("../x")
    ('sl_cai', 'x-d6b96a')
    """
    if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", value):
        return value
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", value).strip("-")[:60] or "page"
    return f"{words}-{hashlib.sha256(value.encode()).hexdigest()[:6]}"
