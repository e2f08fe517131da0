"""A page: an address, and a function from a snapshot to the values that its template prints.

To add one: a view model (pure, in `report` or `dashboard/view`), a module in `dashboard/pages` with a `PAGE`, a
template, and its name in `PAGES` of `dashboard/app.py`. Navigation, live updates, export and the tests of every page
follow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from charter.dashboard.reading import ProjectReader
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot
from charter.errors import CharterError

Params = Mapping[str, str]


class NoSuchPageError(CharterError):
    """There is nothing at that address."""

    exit_code = 2
    label = "usage"


class Links(Protocol):
    """Addresses of pages and files, on a server or in a directory of files."""

    static: bool
    """Whether the pages are files: then nothing is live and no form can be sent."""

    def page(self, name: str, /, *, query: Params | None = None, **params: str) -> str:
        """The address of a page by its name and the parameters of its path."""

    def asset(self, name: str, /) -> str:
        """The address of a style or a script."""


@dataclass(frozen=True, kw_only=True)
class PageValues:
    """Values of a page, for its template."""

    title: str
    model: Any
    """The view model; `view` in the template."""
    charts: Mapping[str, Any] = field(default_factory=dict)
    """What the page's charts draw, by the name that `data-chart` gives; becomes JSON."""
    status: int = 200


@dataclass(frozen=True, kw_only=True)
class Context:
    """Sources that a page may read."""

    site: ProjectSite
    links: Links
    now: float
    """Unix seconds."""
    params: Params = field(default_factory=dict)
    query: Sequence[tuple[str, str]] = ()
    reader: ProjectReader | None = None
    csrf: str = ""
    """What forms and scripts must send back; empty in an export."""
    acts: bool = False
    """Whether this reader's pages have buttons."""

    @property
    def project(self) -> Snapshot:
        """The project whose page it is; NoSuchPageError on pages without one."""
        if self.reader is None:
            raise NoSuchPageError("this page belongs to no project")
        return self.reader.snapshot()

    def asked(self, name: str, default: str = "") -> str:
        """The first value of a query parameter."""
        return next((value for key, value in self.query if key == name), default)

    def all_asked(self, name: str) -> tuple[str, ...]:
        """All values of a query parameter."""
        return tuple(value for key, value in self.query if key == name)


def _once(_: Snapshot) -> Iterable[Params]:
    return ({},)


@dataclass(frozen=True, kw_only=True)
class Page:
    """One kind of page."""

    name: str
    path: str
    """`/p/{project}/cost`; with `{project}` it belongs to one project."""
    template: str
    build: Callable[[Context], PageValues]
    label: str = ""
    """Its entry in the project's navigation; none when empty."""
    each: Callable[[Snapshot], Iterable[Params]] = _once
    """The parameters, beside the project, of every such page: what an export writes."""

    @property
    def of_project(self) -> bool:
        """Return True if it belongs to one project."""
        return "{project}" in self.path
