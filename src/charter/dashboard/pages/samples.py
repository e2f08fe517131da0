"""Samples: what the models of a run said, with search and filters."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from charter.artifacts.sample_prompts import SAMPLE_PROMPTS
from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot
from charter.report.samples import (
    ORDERS,
    Order,
    SampleFilter,
    SampleList,
    SampleSource,
    find_samples,
    has_samples,
    side_by_side,
)

SHOWN = 20
MOST_SHOWN = 200
LONGEST_TEXT = 200


@dataclass(frozen=True, kw_only=True)
class SamplesView:
    """The page."""

    wanted: SampleFilter
    list: SampleList
    stages: tuple[str, ...]
    """With samples, in the order of the pipeline."""
    shown: int
    more: int | None
    """How many the next page shows; None where there are no more."""
    sides: bool
    """Whether the answers of all stages to a prompt stand side by side."""
    has_steps: bool
    """Whether a model in training has answered."""
    others: tuple[tuple[str, str, bool], ...]
    """Key and name of each other run that may stand beside this one, and whether it does."""

    def query(self, **changes: str) -> dict[str, str]:
        """Return the parameters of this page's address, changed; what is empty is left out."""
        wanted = self.wanted
        params = {"text": wanted.text, "stage": wanted.stage, "principle": wanted.principle, "order": wanted.order}
        params |= {"disagreeing": "1" if wanted.disagreeing else "", "flagged": "1" if wanted.flagged else ""}
        limits = {"least": wanted.at_least, "most": wanted.at_most}
        params |= {"reward": wanted.reward, **{name: "" if end is None else f"{end:g}" for name, end in limits.items()}}
        params |= {"view": "sides" if self.sides else "", "with": next((key for key, _, on in self.others if on), "")}
        return {name: value for name, value in (params | changes).items() if value}


def sources_of(snapshot: Snapshot) -> list[SampleSource]:
    """Return the stages of a run that have written something to read."""
    sources = [
        SampleSource(stage=stage.name, kind=stage.kind, directory=stage.directory)
        for stage in snapshot.stages
        if stage.directory is not None
    ]
    return [source for source in sources if has_samples(source)]


def wanted_of(asked: Callable[[str], str]) -> SampleFilter:
    """Return what the parameters of an address ask for."""
    order = asked("order")
    orders: dict[str, Order] = {name: name for name in ORDERS}
    return SampleFilter(
        stage=asked("stage")[:LONGEST_TEXT],
        text=asked("text").strip()[:LONGEST_TEXT],
        principle=asked("principle")[:LONGEST_TEXT],
        disagreeing=asked("disagreeing") != "",
        order=orders.get(order, ""),
        flagged=asked("flagged") != "",
        reward=asked("reward")[:LONGEST_TEXT],
        at_least=_number(asked("least")),
        at_most=_number(asked("most")),
    )


def _number(text: str) -> float | None:
    try:
        value = float(text[:LONGEST_TEXT])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def listed_for(
    site: ProjectSite, snapshot: Snapshot, asked: Callable[[str], str], *, limit: int
) -> tuple[SampleList, list[SampleSource]]:
    """Return the samples that an address asks for, of a run or of two, and the sources of the run."""
    sources, wanted = sources_of(snapshot), wanted_of(asked)
    if asked("view") != "sides":
        return find_samples(sources, wanted, limit=limit), sources
    lists = [(snapshot.label, sources)]
    other = site.reader(asked("with")) if asked("with") else None
    if other is not None and other.found.key != snapshot.key:
        lists.append((other.snapshot().label, sources_of(other.snapshot())))
    return side_by_side(lists, wanted, limit=limit), sources


def build(context: Context) -> PageValues:
    """The samples that the form asks for."""
    snapshot = context.project
    number = context.asked("shown")
    shown = min(MOST_SHOWN, max(1, int(number))) if number.isdecimal() and len(number) < 5 else SHOWN
    samples, sources = listed_for(context.site, snapshot, context.asked, limit=shown)
    has_more = not samples.is_complete and len(samples.samples) == shown and shown < MOST_SHOWN
    with_key = context.asked("with")
    model = SamplesView(
        wanted=wanted_of(context.asked),
        list=samples,
        stages=tuple(source.stage for source in sources),
        shown=shown,
        more=min(MOST_SHOWN, 2 * shown) if has_more else None,
        sides=context.asked("view") == "sides",
        has_steps=any((source.directory / SAMPLE_PROMPTS).exists() for source in sources),
        others=tuple(
            (reader.found.key, reader.found.label, reader.found.key == with_key)
            for reader in context.site.readers()
            if reader.found.key != snapshot.key
        ),
    )
    return PageValues(title=f"Samples, {snapshot.name}", model=model)


PAGE = Page(name="samples", path="/p/{project}/samples", template="samples.html", build=build, label="Samples")
