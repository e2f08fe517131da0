"""The plan of a project, what it would be with a change, and how far it was off. Computed aside; nothing is written."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from charter.catalog.price_book import PriceBook
from charter.dashboard.pages.pieces import Piece, PieceJob, hear, piece, project_piece
from charter.dashboard.render import Context, PageValues, WebPage, environment
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot, stamp_of
from charter.errors import UsageError
from charter.report.plan_cells import planned
from charter.report.what_if import WhatIfQuestion
from charter.spec import PROJECT_FILE
from charter.spec.project import Project
from charter.units import format_bytes, format_seconds, format_usd

MARKETS = (("spot", "spot"), ("on_demand", "on demand"), ("auto", "whichever is cheaper"))
OBJECTIVES = (("cheapest", "cheapest"), ("fastest", "fastest"), ("balanced", "balanced"))
State = Literal["ready", "loading", "error"]


@dataclass(frozen=True, kw_only=True)
class InFile:
    """Values of `charter.yaml` for each control, in words: shown where a control is empty."""

    accelerators: str = "as in charter.yaml"
    market: str = "as in charter.yaml"
    deadline: str = "none"
    budget: str = "none"
    nodes: str = "planned"
    max_nodes: str = ""
    objective: str = "as in charter.yaml"


@dataclass(frozen=True, kw_only=True)
class KeptPlan:
    """The plan that a run has kept, in words: what its page, its report and its cost are measured against."""

    seconds: str
    """From the first start to the last end."""
    usd: str
    stages: tuple[tuple[str, str, str, str, str], ...]
    """Name, hardware, peak memory, time and cost of each."""


def kept_plan(plan: Mapping[str, Any]) -> KeptPlan:
    """Return the words of a `plan.json`."""
    total = planned(plan.get("total") or {})
    return KeptPlan(
        seconds=_ends(format_seconds(total.p50.seconds), format_seconds(total.p90.seconds)),
        usd=_ends(format_usd(total.p50.usd), format_usd(total.p90.usd)),
        stages=tuple(map(_kept_stage, plan.get("stages") or ())),
    )


def _kept_stage(stage: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    number = f"{stage['count']} x " if stage.get("count") else ""
    hardware = " ".join(part for part in (f"{number}{stage.get('accelerator', '')}", stage.get("infra")) if part)
    amount, peak = planned(stage), stage.get("enough_bytes", stage.get("peak_bytes"))
    seconds = _ends(format_seconds(amount.p50.seconds), format_seconds(amount.p90.seconds))
    usd = _ends(format_usd(amount.p50.usd), format_usd(amount.p90.usd))
    return (str(stage.get("name")), hardware, format_bytes(peak) if peak else "", seconds, usd)


def _ends(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, kw_only=True)
class PlanPage:
    """The page."""

    question: WhatIfQuestion
    in_file: InFile
    accelerators: tuple[str, ...]
    """Known ones, to choose from."""
    state: State
    kept: KeptPlan | None = None
    """That of a run that has started."""
    markets: tuple[tuple[str, str], ...] = MARKETS
    objectives: tuple[tuple[str, str], ...] = OBJECTIVES
    result: Mapping[str, Any] | None = None
    error: str = ""


def in_file(project: Project | None) -> InFile:
    """The values of a project for the controls."""
    if project is None:
        return InFile()
    resources = project.resources
    named = [*resources.accelerators, *(name for place in resources.any_of for name in place.accelerators)]
    markets = {True: "spot", False: "on demand", "auto": "whichever is cheaper"}
    return InFile(
        accelerators=", ".join(dict.fromkeys(named)) or "any that fits",
        market=markets[resources.use_spot],
        deadline=format_seconds(project.deadline) if project.deadline else "none",
        budget=format_usd(project.budget.limit) if project.budget else "none",
        nodes=str(resources.num_nodes) if resources.num_nodes else "planned",
        max_nodes=str(resources.max_nodes),
        objective=project.objective,
    )


READ = (PROJECT_FILE, "prices.csv", "calibration.json", "constitution.yaml")
"""Files of a project that change its plan; data sets are looked at again after `FRESH_SECONDS`."""
FRESH_SECONDS = 600
PLAN_SECONDS = 300.0
FRAGMENT = "plan_result.html"


def build_plan(context: Context) -> PageValues:
    """The page: with its result where that is known, else it asks for it."""
    root = context.project.root
    page = _page(root, dict(context.query), context)
    charts = {} if page.result is None else page.result["charts"]
    return PageValues(title=f"Plan, {context.project.name}", model=page, charts=charts)


def _page(root: Path, query: Mapping[str, str], context: Context) -> PlanPage:
    assert context.reader is not None
    project, _ = context.reader.project()
    before = context.project.plan
    shown: dict[str, Any] = {
        "in_file": in_file(project),
        "accelerators": known_accelerators(),
        "kept": None if before is None else kept_plan(before),
    }
    try:
        question = WhatIfQuestion.of(query)
    except UsageError as error:
        return PlanPage(question=WhatIfQuestion(), state="error", error=str(error), **shown)
    questions = (*_asked(root, question),)
    waits = context.links.static or "wait" in query
    answer = context.site.work.wait(*questions, seconds=PLAN_SECONDS) if waits else context.site.work.known(*questions)
    if answer is None:
        return PlanPage(question=question, state="loading", **shown)
    if "error" in answer:
        return PlanPage(question=question, state="error", error=str(answer["error"]), **shown)
    return PlanPage(question=question, state="ready", result=answer["found"], **shown)


def _asked(root: Path, question: WhatIfQuestion) -> tuple[str, dict[str, Any], object]:
    state = (*(stamp_of(root / name) for name in READ), int(time.time() / FRESH_SECONDS))
    return "plan", {"root": str(root), "question": asdict(question), "state": state}, state


def known_accelerators() -> tuple[str, ...]:
    """Whole machines to choose from, newest names first as the catalog has them."""
    offers = PriceBook.bundled().offers()
    return tuple(dict.fromkeys(f"{item.accelerator}:{item.count}" for item in offers))


async def what_if(request: Request) -> Response:
    """`POST /p/{project}/plan/what-if`: the result of a question as a piece of the page."""
    site: ProjectSite = request.app.state.site
    reader = site.reader(request.path_params["project"])
    if reader is None:
        return JSONResponse({"state": "error", "html": _fragment(error="there is no such project any more")}, 404)
    try:
        form = parse_qsl((await request.body()).decode("utf-8", "replace"), max_num_fields=20)
        question = WhatIfQuestion.of(dict(form))
    except (UsageError, ValueError) as error:
        return JSONResponse({"state": "error", "html": _fragment(error=str(error)), "query": ""})
    job, arguments, state = _asked(reader.found.root, question)
    heard = await hear(request, site.work, job, arguments, state, hold_seconds=PLAN_SECONDS)
    return _response(heard.found, question)


def _response(found: Mapping[str, Any] | None, question: WhatIfQuestion) -> Response:
    query = question.query()
    if found is None:
        error = f"no plan within {PLAN_SECONDS:.0f} s; name fewer accelerators or places, or ask charter plan"
        return JSONResponse({"state": "error", "html": _fragment(error=error), "query": query})
    if "error" in found:
        return JSONResponse({"state": "error", "html": _fragment(error=str(found["error"])), "query": query})
    result = found["found"]
    return JSONResponse(
        {"state": "ready", "html": _fragment(result=result), "charts": result["charts"], "query": query}
    )


def _fragment(*, result: Mapping[str, Any] | None = None, error: str = "") -> str:
    template = environment().get_template(FRAGMENT)
    return template.render(result=result, error=error, state="error" if error else "ready")


def before_the_start(project: Snapshot) -> PieceJob:
    """Return the job that plans a project as its file is, for the page of a run that has not started."""
    job, arguments, state = _asked(project.root, WhatIfQuestion())
    return PieceJob(job=job, arguments=arguments, state=state, template="run_plan.html")


PLAN = WebPage(name="plan", path="/p/{project}/plan", template="plan.html", build=build_plan, label="Plan")
PLAN_ROUTES = (
    Route("/p/{project}/plan/what-if", what_if, methods=["POST"]),
    project_piece("/p/{project}/plan/piece", before_the_start),
)


@dataclass(frozen=True, kw_only=True)
class AccuracyPage:
    """The page."""

    piece: Piece
    ran: bool


def build_accuracy(context: Context) -> PageValues:
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


ACCURACY = WebPage(
    name="accuracy", path="/p/{project}/accuracy", template="accuracy.html", build=build_accuracy, label="Accuracy"
)
ACCURACY_ROUTES = (project_piece("/p/{project}/accuracy/piece", question_of),)
