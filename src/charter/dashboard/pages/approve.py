"""Approval of a stage: samples of what it reads, and the button."""

import os
from dataclasses import dataclass, replace

from charter.dashboard.page import Context, NoSuchPageError, Page, PageValues
from charter.engines.project import load_project
from charter.errors import CharterError
from charter.run.actions import check_approvable
from charter.run.approval import Sampled, read_approval, samples_of
from charter.run.graph import build_pipeline

SHOWN = 5
"""Records of each input."""


@dataclass(frozen=True, kw_only=True)
class ApprovalView:
    """The page."""

    stage: str
    kind: str
    fingerprint: str = ""
    inputs: tuple[Sampled, ...] = ()
    approved_by: str = ""
    """Empty where nobody has yet."""
    refusal: str = ""
    """Why it cannot be approved now; empty where it can."""


def build(context: Context) -> PageValues:
    """Samples of what the stage reads, drawn by its fingerprint, so that everybody sees the same."""
    project, name = context.project, context.params["stage"]
    root = context.reader.found.root if context.reader else None
    listed = project.stage(name)
    if root is None or listed is None:
        raise NoSuchPageError(f"{project.name} has no stage {name!r}")
    model = ApprovalView(stage=name, kind=listed.kind)
    try:
        pipeline = build_pipeline(load_project(root, env=dict(os.environ)), root)
        stage = pipeline.stage(name)
        given = read_approval(stage, root)
        model = replace(model, fingerprint=stage.asked_fingerprint, approved_by=given.by if given else "")
        check_approvable(pipeline, stage)
        model = replace(model, inputs=tuple(samples_of(stage, SHOWN, seed=pipeline.project.seed)))
    except CharterError as error:
        model = replace(model, refusal=str(error))
    return PageValues(title=f"Approve {name}, {project.name}", model=model)


PAGE = Page(
    name="approve", path="/p/{project}/approve/{stage}", template="approve.html", build=build, each=lambda _: ()
)
