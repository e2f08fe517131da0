"""Buttons of the pages: approve a stage, stop a run at a checkpoint, start it again.

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


BUTTONS: Mapping[str, Callable[[ProjectReader, Form, str], None]] = {
    "approve": _approve,
    "stop": _stop,
    "start": _start,
}


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
    except CharterError as error:
        return error_page(409, "This was not done", str(error))
    return RedirectResponse(f"/p/{key}", status_code=303)


ACTIONS = (Route("/p/{project}/do/{button}", act, methods=["POST"]),)
