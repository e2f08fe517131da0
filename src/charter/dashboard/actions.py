"""Buttons of the pages: approve or repeat a stage, stop and start a run or a sweep, raise a budget, flag a sample.

The same functions as those of `charter approve`, `stop` and `run`; a request has passed the guard before it comes here.
"""

import os
from collections.abc import Callable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from charter.dashboard.reading import ProjectReader
from charter.dashboard.render import error_page
from charter.dashboard.settings import OPERATOR, Settings
from charter.errors import CharterError, UsageError

Form = Mapping[str, str]


def may_act(settings: Settings, role: str) -> bool:
    """Return True if somebody in that role may press buttons."""
    return settings.acts and role == OPERATOR


def _approve(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.engines.project import load_project
    from charter.run.actions import approve_stage
    from charter.run.graph import build_pipeline

    root = reader.found.root
    pipeline = build_pipeline(load_project(root, env=dict(os.environ)), root)
    if form.get("stage", "") not in pipeline.stages:
        raise UsageError(f"there is no stage {form.get('stage', '')!r} any more; reload the page")
    stage = pipeline.stages[form["stage"]]
    # What was looked at is what is approved: a file that has changed meanwhile makes another fingerprint.
    if form.get("fingerprint", "") != stage.asked_fingerprint:
        raise UsageError(f"stage {stage.name} has changed since this page was shown; look at its samples again")
    approve_stage(pipeline, stage, note=form.get("note", "").strip(), by=by)


def _stop(reader: ProjectReader, _: Form, by: str) -> None:
    from charter.run.actions import stop_beside

    stop_beside(reader.found.root, by=by)


def _start(reader: ProjectReader, _: Form, by: str) -> None:
    from charter.run.actions import start

    start(reader.found.root, by=by)


def _sweep(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.run.actions import start

    start(reader.found.root, sweep=form.get("sweep", ""), by=by)


def _raise(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.run.actions import raise_budget

    raise_budget(reader.found.root, form.get("limit", ""), by=by)


def _rerun(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.engines.project import load_project
    from charter.run.actions import rerun_stage, start
    from charter.run.graph import build_pipeline

    root = reader.found.root
    rerun_stage(build_pipeline(load_project(root, env=dict(os.environ)), root), form.get("stage", ""), by=by)
    start(root, by=by)


def _note(reader: ProjectReader, form: Form, by: str) -> None:
    from charter.run.actions import note_sample

    sample = form.get("sample", "")
    if not sample:
        raise UsageError("there is no sample to flag")
    note = form.get("note", "").strip()[:LONGEST_NOTE]
    stage, flagged = form.get("stage", ""), bool(form.get("flagged"))
    note_sample(reader.found.root, sample, flagged=flagged, note=note, stage=stage, by=by)


LONGEST_NOTE = 500
BUTTONS: Mapping[str, Callable[[ProjectReader, Form, str], None]] = {
    "approve": _approve,
    "stop": _stop,
    "start": _start,
    "note": _note,
    "sweep": _sweep,
    "raise": _raise,
    "rerun": _rerun,
}

RETURNS_TO: Mapping[str, str] = {"note": "/samples"}
"""Where a button leads that is not on the page of the run."""


async def act(request: Request) -> Response:
    """`POST /p/{project}/do/{button}`: do it, then show the run again."""
    site, key = request.app.state.site, request.path_params["project"]
    reader, button = site.reader(key), BUTTONS.get(request.path_params["button"])
    if reader is None or button is None:
        return error_page(404, "Not found", "There is no such project, or no such button.")
    if not may_act(site.settings, request.state.role):
        return error_page(
            403, "You may look, not act", "The token that let you in is a viewer's, or buttons are off here."
        )
    form: Form = getattr(request.state, "form", {})
    from charter.run.approval import who_is_here

    try:
        await run_in_threadpool(button, reader, form, f"{who_is_here()}, in the dashboard")
        # The page that follows shows what was done, not the snapshot of half a second ago.
        await run_in_threadpool(lambda: reader.snapshot(wait=True))
        request.app.state.shown.forget(reader.found.key)
    except CharterError as error:
        return error_page(409, "This was not done", str(error))
    page = RETURNS_TO.get(request.path_params["button"], "")
    return RedirectResponse(f"/p/{key}{page}", status_code=303)


ACTIONS = (Route("/p/{project}/do/{button}", act, methods=["POST"]),)
