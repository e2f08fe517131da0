"""`/api/v1`: what the pages show, as JSON and CSV for scripts. Read-only, behind the same guard as the pages.

Names are added within a version, never renamed or removed; another meaning is another version.
"""

import csv
import io
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from charter import __version__
from charter.dashboard.pages.data import listed_for
from charter.dashboard.pages.home import ProjectRow, TableQuery, home_view
from charter.dashboard.reading import ProjectReader
from charter.dashboard.render import API
from charter.dashboard.site import ProjectSite
from charter.dashboard.view.run_parts import event_lines, stage_files
from charter.dashboard.view.run_view import StageRow, run_view
from charter.errors import CharterError
from charter.ledger.focus_check import cell_text
from charter.run.events import actions_of
from charter.run.paths import run_dir
from charter.tracking.base import metrics_file, read_metrics
from charter.tracking.progress import EVENTS_FILE

MOST_SAMPLES = 10_000
MOST_ROWS = 100_000
"""Of metrics in one answer; `after` asks for those behind a step."""
Json = dict[str, Any]


class NotThereError(CharterError):
    """Nothing has this name."""


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One address: what it answers, in words for the document and as a function."""

    path: str
    summary: str
    answer: Callable[[ProjectSite, Mapping[str, str], Callable[[str], str]], Any]
    """Of the site, the parameters of the path and those of the query."""
    query: Mapping[str, str]
    """Parameters of the query, with what they mean."""
    columns: str
    """Name of the list that becomes a table where the address ends in `.csv`."""


def runs(site: ProjectSite, _: Mapping[str, str], query: Callable[[str], str]) -> Json:
    """Return the table of projects as the first page shows it."""
    view = home_view([reader.snapshot() for reader in site.readers()], TableQuery.of(query))
    return {
        "runs": [_run(row) for row in view.rows],
        "matching": view.matching,
        "page": view.query.page,
        "pages": view.pages,
    }


def run(site: ProjectSite, path: Mapping[str, str], _: Callable[[str], str]) -> Json:
    """Return one run with its stages."""
    snapshot = _reader(site, path).snapshot()
    view = run_view(snapshot)
    return {
        "key": snapshot.key,
        "name": snapshot.name,
        "state": view.state,
        "phase": view.phase.value,
        "done_share": view.share,
        "spent_usd": view.money.spent_usd,
        "limit_usd": view.money.limit_usd,
        "forecast_usd": view.money.forecast_usd,
        "seconds_left": view.eta.run_seconds,
        "interruptions": view.interruptions,
        "lost_seconds": view.lost_seconds,
        "stages": [_stage(row) for row in view.rows],
    }


def metrics(site: ProjectSite, path: Mapping[str, str], query: Callable[[str], str]) -> Json:
    """Return the logged metrics of a stage, one row for each line, the oldest first."""
    snapshot = _reader(site, path).snapshot()
    stage = snapshot.stage(path["stage"])
    if stage is None:
        raise NotThereError(f"no stage {path['stage']!r} in {snapshot.name!r}")
    after = _whole_number(query("after"))
    points = () if stage.directory is None else read_metrics(metrics_file(stage.directory))
    rows = [{"step": point.step, "time": point.time, **point.values} for point in points if point.step > after]
    return {"stage": stage.name, "metrics": rows[:MOST_ROWS], "more": len(rows) > MOST_ROWS}


def samples(site: ProjectSite, path: Mapping[str, str], query: Callable[[str], str]) -> Json:
    """Return what the models of a run said, as the page of samples shows it."""
    listed, _ = listed_for(site, _reader(site, path).snapshot(), query, limit=MOST_SAMPLES)
    rows = [sample.to_json() for sample in listed.samples]
    for row in rows:
        row["parts"] = {part["label"]: part["text"] for part in row["parts"]}
    return {"samples": rows, "complete": listed.is_complete}


def actions(site: ProjectSite, path: Mapping[str, str], _: Callable[[str], str]) -> Json:
    """Return everything that people did to a run, the newest first."""
    lines = event_lines(actions_of(run_dir(_reader(site, path).found.root) / EVENTS_FILE), most=MOST_ROWS)
    return {"actions": [{"time": it.time, "by": it.by, "stage": it.stage, "what": it.text} for it in lines]}


def files(site: ProjectSite, path: Mapping[str, str], _: Callable[[str], str]) -> Json:
    """Return every file that a run has published, with the stage that made it."""
    reader = _reader(site, path)
    stages = stage_files(reader.snapshot(), reader.files.read)
    return {"files": [asdict(file) for stage in stages for file in stage.files][:MOST_ROWS]}


def _run(row: ProjectRow) -> Json:
    return {
        "key": row.key,
        "name": row.name,
        "place": row.label,
        "owner": row.owner,
        "tags": dict(row.tags),
        "state": row.state,
        "phase": row.phase.value,
        "stages_done": row.done,
        "stages": row.stages,
        "done_share": row.share,
        "spent_usd": row.money.spent_usd,
        "limit_usd": row.money.limit_usd,
        "seconds_left": row.eta_seconds,
        "last_event_at": row.last_at,
    }


def _stage(row: StageRow) -> Json:
    return {
        "name": row.name,
        "kind": row.stage.kind,
        "state": row.state,
        "phase": row.stage.phase.value,
        "step": row.stage.step,
        "target_step": row.stage.target_step,
        "unit": row.stage.unit,
        "seconds": row.seconds,
        "planned_seconds": row.planned_seconds,
        "seconds_left": row.left_seconds,
        "spent_usd": row.usd,
        "attempts": row.attempts,
    }


def _reader(site: ProjectSite, path: Mapping[str, str]) -> ProjectReader:
    reader = site.reader(path["run"])
    if reader is None:
        raise NotThereError(f"no run has the key {path['run']!r}; {API}/runs lists them")
    return reader


def _whole_number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else -1


TABLE_QUERY = {
    "q": "words in name, place, owner or tags",
    "state": "running, failed, waiting, interrupted, pending or done",
    "sort": "name, state, progress, spent or last",
    "falling": "1: the largest first",
    "tag": "only those with this tag, as `name: value` or a word",
    "group": "name, owner, state, or the name of a tag: runs that agree in it stand together",
    "page": "from 1, of 50 runs",
}
CALLS = (
    ApiCall(path="/runs", summary="The table of runs", answer=runs, query=TABLE_QUERY, columns="runs"),
    ApiCall(path="/runs/{run}", summary="One run with its stages", answer=run, query={}, columns="stages"),
    ApiCall(
        path="/runs/{run}/stages/{stage}/metrics",
        summary="The logged metrics of a stage",
        answer=metrics,
        query={"after": "only steps behind this one"},
        columns="metrics",
    ),
    ApiCall(
        path="/runs/{run}/actions", summary="What people did to a run", answer=actions, query={}, columns="actions"
    ),
    ApiCall(
        path="/runs/{run}/files", summary="The files that a run has published", answer=files, query={}, columns="files"
    ),
    ApiCall(
        path="/runs/{run}/samples",
        summary="What the models said",
        answer=samples,
        query={
            "stage": "of this stage alone",
            "text": "with this text",
            "principle": "under this principle",
            "disagreeing": "1: only where orders or models differ",
            "flagged": "1: only what a reader has flagged",
            "order": "changed, longest or shortest",
            "view": "sides: the answers of all stages to a prompt in one row",
            "with": "key of a run beside it, with view=sides",
        },
        columns="samples",
    ),
)


def openapi() -> Json:
    """Return the document that describes the calls (OpenAPI 3.1)."""
    paths: Json = {}
    for call in CALLS:
        names = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ] + [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in call.query.items()
        ]
        answers: Json = {"200": {"description": "what there is"}, "404": {"description": "no such run or stage"}}
        for path, form in ((call.path, "application/json"), (f"{call.path}.csv", "text/csv")):
            described = {**answers, "200": {"description": call.summary, "content": {form: {}}}}
            paths[API + path] = {"get": {"summary": call.summary, "parameters": parameters, "responses": described}}
    about = {"title": "Charter's dashboard", "version": __version__, "description": "What the pages show, read-only."}
    return {"openapi": "3.1.0", "info": about, "paths": paths}


def _routes(call: ApiCall) -> Iterable[BaseRoute]:
    """One address for JSON, one for CSV."""

    def endpoint(as_csv: bool) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            site: ProjectSite = request.app.state.site
            query = request.query_params
            try:
                content = await run_in_threadpool(
                    call.answer, site, dict(request.path_params), lambda name: query.get(name, "")
                )
            except NotThereError as error:
                return JSONResponse({"error": str(error)}, status_code=404)
            if not as_csv:
                return JSONResponse(content, headers={"cache-control": "no-store"})
            name = call.columns
            headers = {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
            return Response(csv_of(content[name]), media_type="text/csv; charset=utf-8", headers=headers)

        return answer

    # The longer one first: a name in a path may end in `.csv` only here.
    yield Route(f"{API}{call.path}.csv", endpoint(True), methods=["GET"])
    yield Route(f"{API}{call.path}", endpoint(False), methods=["GET"])


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Return rows as CSV with all their columns; a text that a spreadsheet would compute is quoted as text.

    >>> csv_of([{"a": 1, "b": None}, {"a": "=1+1"}])
    "a,b\r\n1,\r\n'=1+1,\r\n"
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return out.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        value = "; ".join(f"{key}: {item}" for key, item in value.items())
    return cell_text(value)


async def _document(_: Request) -> Response:
    return JSONResponse(openapi())


ROUTES: tuple[BaseRoute, ...] = (
    *(Route(path, _document, methods=["GET"]) for path in (API, f"{API}/openapi.json")),
    *(route for call in CALLS for route in _routes(call)),
)
