"""Estimate against actual: how far the plan was off, and what the next plan will use."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.pages.pieces import Piece, PieceJob, answer_piece, piece
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class AccuracyPage:
    """The page."""

    piece: Piece
    ran: bool


def build(context: Context) -> PageValues:
    """The page of a project."""
    project = context.project
    tables = piece(context, question_of(project), f"/p/{project.key}/accuracy/piece")
    model = AccuracyPage(piece=tables, ran=project.ledger.attempts > 0)
    return PageValues(title=f"Estimate and actual, {project.name}", model=model, charts=tables.charts)


def question_of(project: Snapshot) -> PieceJob:
    """Return the job that fills the page, with a state that changes when a stage ends, not with every step."""
    done = tuple((stage.name, stage.state) for stage in project.stages)
    return PieceJob(
        job="accuracy",
        arguments={"root": str(project.root)},
        state=(done, project.ledger.attempts),
        template="accuracy_piece.html",
        more={"root": project.label},
        charts=lambda found: {"ratios": found["charts"]} if "charts" in found else {},
    )


async def accuracy_piece(request: Request) -> Response:
    """`GET /p/{project}/accuracy/piece`: the tables as a piece of the page."""
    site: ProjectSite = request.app.state.site
    reader = site.reader(request.path_params["project"])
    if reader is None:
        return JSONResponse({"state": "error", "html": "<p>There is no such project any more.</p>"}, 404)
    return await answer_piece(request, question_of(reader.snapshot()))


PAGE = Page(name="accuracy", path="/p/{project}/accuracy", template="accuracy.html", build=build, label="Accuracy")
ROUTES = (Route("/p/{project}/accuracy/piece", accuracy_piece, methods=["GET"]),)
