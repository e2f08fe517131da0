"""Samples: what the models of a run said, with search and filters."""

from dataclasses import dataclass

from charter.dashboard.page import Context, Page, View
from charter.report.samples import SampleList, SampleSource, Wanted, find_samples, has_samples

SHOWN = 20
MOST_SHOWN = 200
LONGEST_TEXT = 200


@dataclass(frozen=True, kw_only=True)
class SamplesView:
    """The page."""

    wanted: Wanted
    list: SampleList
    stages: tuple[str, ...]
    """With samples, in the order of the pipeline."""
    shown: int
    more: int | None
    """How many the next page shows; None where there are no more."""


def build(context: Context) -> View:
    """The samples that the form asks for."""
    sources = [
        SampleSource(stage=stage.name, kind=stage.kind, directory=stage.directory)
        for stage in context.project.stages
        if stage.directory is not None
    ]
    sources = [source for source in sources if has_samples(source)]
    wanted = Wanted(
        stage=context.asked("stage")[:LONGEST_TEXT],
        text=context.asked("text").strip()[:LONGEST_TEXT],
        principle=context.asked("principle")[:LONGEST_TEXT],
        disagreeing=context.asked("disagreeing") != "",
    )
    number = context.asked("shown")
    shown = min(MOST_SHOWN, max(1, int(number))) if number.isdecimal() and len(number) < 5 else SHOWN
    samples = find_samples(sources, wanted, limit=shown)
    has_more = not samples.is_complete and len(samples.samples) == shown and shown < MOST_SHOWN
    model = SamplesView(
        wanted=wanted,
        list=samples,
        stages=tuple(source.stage for source in sources),
        shown=shown,
        more=min(MOST_SHOWN, 2 * shown) if has_more else None,
    )
    return View(title=f"Samples, {context.project.name}", model=model)


PAGE = Page(name="samples", path="/p/{project}/samples", template="samples.html", build=build, label="Samples")
