"""All projects, what each of them does now."""

from charter.dashboard.page import Context, Page, View
from charter.dashboard.view.home_view import home_view


def build(context: Context) -> View:
    """The first page."""
    snapshots = [reader.snapshot() for reader in context.site.readers()]
    return View(title="Projects", model=home_view(snapshots))


PAGE = Page(name="home", path="/", template="home.html", build=build)
