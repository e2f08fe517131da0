"""Data sets, records of stages and the constitution: what is in them, how labels fell, which principles were used."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.pages.pieces import Piece, PieceJob, answer_piece, piece
from charter.dashboard.reading import ProjectReader
from charter.dashboard.site import ProjectSite
from charter.dashboard.stamped import stamp_of
from charter.data.formats import find_files
from charter.engines.project import load_project
from charter.errors import CharterError
from charter.feedback.constitution import load_constitution
from charter.report.data_page.records import (
    ConstitutionView,
    DataSource,
    constitution_view,
    data_sources,
    uses_of_counts,
    uses_of_summary,
)
from charter.spec.project import Project

SUMMARY = Path("outputs") / "summary.json"


@dataclass(frozen=True, kw_only=True)
class SourceCard:
    """One data set on the page."""

    source: DataSource
    piece: Piece | None
    """Its figures; None where it cannot be read."""


@dataclass(frozen=True, kw_only=True)
class DataPage:
    """The page."""

    cards: tuple[SourceCard, ...]
    constitution: ConstitutionView | None
    constitution_problem: str
    constitution_path: str


def build(context: Context) -> PageValues:
    """The page of a project's data."""
    assert context.reader is not None
    project = _project(context.project.root)
    cards = tuple(
        SourceCard(source=source, piece=_piece(context, source) if not source.problem else None)
        for source in sources_of(context.reader, project)
    )
    view, problem = _constitution(context, project, cards)
    path = "" if project is None or project.constitution is None else project.constitution
    model = DataPage(cards=cards, constitution=view, constitution_problem=problem, constitution_path=path)
    return PageValues(title=f"Data, {context.project.name}", model=model)


def _project(root: Path) -> Project | None:
    try:
        return load_project(root)
    except CharterError:
        return None


def sources_of(reader: ProjectReader, project: Project | None = None) -> tuple[DataSource, ...]:
    """Everything that can be looked at; a source is looked up by its key, never made from one."""
    snapshot = reader.snapshot()
    project = project or _project(snapshot.root)
    stages = [(stage.name, stage.kind, stage.directory) for stage in snapshot.stages]
    summaries = {
        stage.name: reader.files.read(stage.directory / SUMMARY) for stage in snapshot.stages if stage.directory
    }
    return data_sources(project, snapshot.root, stages, summaries)


def _piece(context: Context, source: DataSource) -> Piece:
    address = f"/p/{context.project.key}/data/{source.key}"
    return piece(context, question_of(source), address)


def question_of(source: DataSource) -> PieceJob:
    """Return the job that counts a source, with a state that changes with its files."""
    files = find_files(source.path, "auto" if source.spec is None else source.spec.format).files
    aside = None if source.aside is None else str(source.aside)
    return PieceJob(
        job="count",
        arguments={
            "path": str(source.path),
            "spec": None if source.spec is None else asdict(source.spec),
            "aside": aside,
        },
        state=(*(stamp_of(file) for file in files), aside and stamp_of(aside)),
        template="data_piece.html",
        more={"source": source},
    )


def _constitution(
    context: Context, project: Project | None, cards: tuple[SourceCard, ...]
) -> tuple[ConstitutionView | None, str]:
    if project is None or project.constitution is None:
        return None, ""
    try:
        constitution = load_constitution(context.project.root / project.constitution)
    except CharterError as error:
        return None, str(error)
    uses: dict[str, Mapping[str, int]] = {}
    for card in cards:
        if card.source.kind == "data set":
            continue
        stage_uses = uses_of_summary(card.source.summary) or _counted(context, card.source)
        if stage_uses:
            uses[card.source.name] = stage_uses
    return constitution_view(constitution, uses), ""


def _counted(context: Context, source: DataSource) -> dict[str, int]:
    """Uses as the count of the records has them, where that is done; a critique's summary does not say."""
    question = question_of(source)
    counts: Any = context.site.work.known(question.job, question.arguments, question.state)
    return uses_of_counts(counts["found"]["principles"]) if counts and "found" in counts else {}


async def data_piece(request: Request) -> Response:
    """`GET /p/{project}/data/{source}`: the figures of one source as a piece of the page."""
    site: ProjectSite = request.app.state.site
    reader = site.reader(request.path_params["project"])
    sources = sources_of(reader) if reader else ()
    source = next((item for item in sources if item.key == request.path_params["source"]), None)
    if source is None or source.problem:
        return JSONResponse({"state": "error", "html": "<p>There is no such data any more.</p>"}, 404)
    return await answer_piece(request, question_of(source))


PAGE = Page(name="data", path="/p/{project}/data", template="data.html", build=build, label="Data")
ROUTES = (Route("/p/{project}/data/{source}", data_piece, methods=["GET"]),)
