"""Runs of several projects side by side, and the settings of a project's sweeps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from charter.dashboard.page import Context, Page, PageValues, Params
from charter.dashboard.pages.pieces import Piece, PieceJob, answer_piece, piece
from charter.dashboard.reading import ProjectReader
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot, stamp_of

MOST = 6
"""Runs side by side: more do not fit on a page."""


@dataclass(frozen=True, kw_only=True)
class ProjectChoice:
    """A project that can be chosen."""

    key: str
    label: str
    name: str
    state: str
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class ComparePage:
    """The page."""

    choices: tuple[ProjectChoice, ...]
    piece: Piece | None
    """The comparison; None while fewer than two are chosen."""
    remark: str


def build(context: Context) -> PageValues:
    """The page: choices, and the comparison of those that are chosen (`run=KEY`, the first is the base)."""
    readers = [reader for reader in context.site.readers() if reader.snapshot().ledger.attempts]
    run_keys = context.all_asked("run")
    if context.links.static and not run_keys:
        run_keys = tuple(reader.found.key for reader in readers[:MOST])
    chosen = chosen_of(readers, run_keys)
    result = None
    if len(chosen) > 1:
        address = "/compare/piece?" + "&".join(f"run={reader.found.key}" for reader in chosen)
        result = piece(context, question_of(chosen), address)
    model = ComparePage(
        choices=tuple(
            ProjectChoice(
                key=reader.found.key,
                label=reader.found.label,
                name=reader.snapshot().name,
                state=state_of(reader),
                chosen=reader in chosen,
            )
            for reader in readers
        ),
        piece=result,
        remark=f"Only the first {MOST} of those chosen are compared." if len(set(run_keys)) > MOST else "",
    )
    return PageValues(title="Compare runs", model=model, charts={} if result is None else result.charts)


def state_of(reader: ProjectReader) -> str:
    """The state of a run as a whole."""
    states = {stage.state for stage in reader.snapshot().stages}
    if states == {"done"}:
        return "done"
    return next((state for state in ("running", "failed", "waiting", "interrupted") if state in states), "interrupted")


def chosen_of(readers: Sequence[ProjectReader], keys: Sequence[str]) -> list[ProjectReader]:
    """The readers of some keys, in the order of the keys, each once."""
    by_key = {reader.found.key: reader for reader in readers}
    return [by_key[key] for key in dict.fromkeys(keys) if key in by_key][:MOST]


def question_of(chosen: Sequence[ProjectReader]) -> PieceJob:
    """Return the job that fills the page, with a state that changes when a stage of one of the runs ends."""
    snapshots = [reader.snapshot() for reader in chosen]
    labels = [reader.found.label for reader in chosen]
    state = tuple(
        (tuple((stage.name, stage.state) for stage in item.stages), item.ledger.attempts) for item in snapshots
    )
    return PieceJob(
        job="compare",
        arguments={"roots": [str(item.root) for item in snapshots], "labels": labels},
        state=state,
        template="compare_piece.html",
        charts=_charts,
    )


def _charts(found: Any) -> dict[str, Any]:
    data = found["charts"]
    return {
        "figures": {"runs": data["runs"], "panels": data["figures"]},
        "overlays": {"runs": data["runs"], "panels": data["overlays"]},
    }


async def compare_piece(request: Request) -> Response:
    """`GET /compare/piece?run=KEY&run=KEY`: the comparison as a piece of the page."""
    site: ProjectSite = request.app.state.site
    chosen = chosen_of(site.readers(), request.query_params.getlist("run"))
    if len(chosen) < 2:
        return JSONResponse({"state": "error", "html": "<p>Choose two runs that there are.</p>"}, 404)
    return await answer_piece(request, question_of(chosen))


STAGE_ENDS = ("stage_done", "run_done", "run_stopped")


def build_sweeps(context: Context) -> PageValues:
    """The page of a project's sweeps: settings over their seeds, with the figures of `charter report --sweep`."""
    project = context.project
    tables = piece(context, sweeps_of(project), f"/p/{project.key}/sweeps/piece") if project.sweeps else None
    return PageValues(title=f"Sweeps, {project.name}", model=tables)


def sweeps_of(project: Snapshot) -> PieceJob:
    """Return the job that fills the page, with a state that changes with the file and when a stage of a point ends."""
    last = next((str(event.get("time")) for event in reversed(project.events) if event.get("event") in STAGE_ENDS), "")
    return PieceJob(
        job="sweeps",
        arguments={"root": str(project.root)},
        state=(stamp_of(project.root / "charter.yaml"), project.ledger.attempts, last),
        template="sweeps_piece.html",
    )


async def sweeps_piece(request: Request) -> Response:
    """`GET /p/{project}/sweeps/piece`: the tables as a piece of the page."""
    site: ProjectSite = request.app.state.site
    reader = site.reader(request.path_params["project"])
    if reader is None:
        return JSONResponse({"state": "error", "html": "<p>There is no such project any more.</p>"}, 404)
    return await answer_piece(request, sweeps_of(reader.snapshot()))


def _once_if_any(project: Snapshot) -> Iterable[Params]:
    return ({},) if project.sweeps else ()


PAGE = Page(name="compare", path="/compare", template="compare.html", build=build)
SWEEPS = Page(name="sweeps", path="/p/{project}/sweeps", template="sweeps.html", build=build_sweeps, each=_once_if_any)
ROUTES = (
    Route("/compare/piece", compare_piece, methods=["GET"]),
    Route("/p/{project}/sweeps/piece", sweeps_piece, methods=["GET"]),
)
