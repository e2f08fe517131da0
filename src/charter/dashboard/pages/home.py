"""All projects, what each of them does now."""

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.view.home_view import TableQuery, home_view


def build(context: Context) -> PageValues:
    """The first page."""
    snapshots = [reader.snapshot() for reader in context.site.readers()]
    query = None if context.links.static else TableQuery.of(context.asked)
    return PageValues(title="Projects", model=home_view(snapshots, query))


PAGE = Page(name="home", path="/", template="home.html", build=build)
