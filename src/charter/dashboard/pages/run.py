"""The run: its pipeline, how far it is, what it costs now."""

from charter.dashboard.page import Context, Page, View
from charter.dashboard.view.run_view import run_view


def build(context: Context) -> View:
    """The run page."""
    project = context.project
    return View(title=project.name, model=run_view(project))


PAGE = Page(name="run", path="/p/{project}", template="run.html", build=build, label="Run")
