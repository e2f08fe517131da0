"""The cost of a run: past, now, forecast."""

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.view.cost_view import burn_chart, cost_view


def build(context: Context) -> PageValues:
    """The cost page."""
    project = context.project
    view = cost_view(project)
    return PageValues(title=f"Cost, {project.name}", model=view, charts={"burn": burn_chart(project, view)})


PAGE = Page(name="cost", path="/p/{project}/cost", template="cost.html", build=build, label="Cost")
