"""All projects, what each of them does now."""

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.view.home_view import TableQuery, home_view


def build(context: Context) -> PageValues:
    """The first page."""
    if context.links.static:
        return PageValues(title="Projects", model=home_view([item.snapshot() for item in context.site.readers()]))
    snapshots, unread = context.site.snapshots()
    return PageValues(title="Projects", model=home_view(snapshots, TableQuery.of(context.asked), unread=unread))


PAGE = Page(name="home", path="/", template="home.html", build=build)
