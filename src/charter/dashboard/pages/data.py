"""Data sets and the constitution, single records with where each came from, samples of what the models said."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from charter.artifacts.sample_prompts import SAMPLE_PROMPTS
from charter.dashboard.pages.pieces import Piece, PieceJob, piece, piece_route
from charter.dashboard.reading import ProjectReader
from charter.dashboard.render import Context, NoSuchPageError, PageValues, Params, WebPage
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot, stamp_of
from charter.data.formats import find_files
from charter.errors import CharterError
from charter.feedback.constitution import load_constitution
from charter.report.data_page.records import (
    PAGE_ROWS,
    ConstitutionView,
    DataSource,
    RecordView,
    constitution_view,
    data_sources,
    last_page,
    record_page,
    record_view,
    uses_of_counts,
    uses_of_summary,
)
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


def build_data(context: Context) -> PageValues:
    """The page of a project's data."""
    assert context.reader is not None
    project, _ = context.reader.project()
    cards = tuple(
        SourceCard(source=source, piece=_piece(context, source) if not source.problem else None)
        for source in sources_of(context.reader)
    )
    view, problem = _constitution(context, project, cards)
    path = "" if project is None or project.constitution is None else project.constitution
    model = DataPage(cards=cards, constitution=view, constitution_problem=problem, constitution_path=path)
    return PageValues(title=f"Data, {context.project.name}", model=model)


def sources_of(reader: ProjectReader) -> tuple[DataSource, ...]:
    """Everything that can be looked at; a source is looked up by its key, never made from one."""
    snapshot, (project, _) = reader.snapshot(), reader.project()
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


def _counted_at(site: ProjectSite, request: Request) -> PieceJob | None:
    reader = site.reader(request.path_params["project"])
    sources = sources_of(reader) if reader else ()
    source = next((item for item in sources if item.key == request.path_params["source"]), None)
    return None if source is None or source.problem else question_of(source)


DATA = WebPage(name="data", path="/p/{project}/data", template="data.html", build=build_data, label="Data")
DATA_ROUTES = (piece_route("/p/{project}/data/{source}", _counted_at, "There is no such data any more."),)


FIND_SECONDS = 60.0
LONGEST_ID = 400


@dataclass(frozen=True, kw_only=True)
class RecordsPage:
    """The page."""

    source: DataSource
    aside: bool
    """Whether it shows what was set aside."""
    records: tuple[RecordView, ...]
    at: int
    before: int | None
    after: int | None
    last: int
    size_bytes: int
    through: float
    """How far through the file the page begins, from 0 to 1."""
    wanted: str
    problem: str


def build_records(context: Context) -> PageValues:
    """The records from the byte that `at` names, or the one with the id that is asked for."""
    assert context.reader is not None
    key = context.params["source"]
    source = next((item for item in sources_of(context.reader) if item.key == key), None)
    if source is None:
        raise NoSuchPageError(f"{context.project.name} has no data called {key!r}; the data page lists what there is")
    if not source.can_be_browsed:
        raise NoSuchPageError(
            f"{source.name} cannot be shown record by record: {source.problem or 'only JSONL files can'}\n"
            f"  charter data convert {source.path} {source.name}.jsonl"
        )
    aside = context.asked("aside") != "" and source.aside is not None
    path = source.aside if aside and source.aside else source.path
    wanted = context.asked("id").strip()[:LONGEST_ID]
    offset, problem = _found(context, path, wanted) if wanted else (_number(context.asked("at")), "")
    page = record_page(path, offset, 1 if wanted and not problem else PAGE_ROWS)
    model = RecordsPage(
        source=source,
        aside=aside,
        records=tuple(map(record_view, page.records)),
        at=page.records[0].offset if page.records else 0,
        before=page.before,
        after=page.after,
        last=last_page(path, PAGE_ROWS),
        size_bytes=page.size_bytes,
        through=(page.records[0].offset if page.records else 0) / max(1, page.size_bytes),
        wanted=wanted,
        problem=problem,
    )
    return PageValues(
        title=f"Records of {source.name}, {context.project.name}", model=model, status=404 if problem else 200
    )


def _found(context: Context, path: Path, wanted: str) -> tuple[int, str]:
    """Return the position of the record with an id; or the first page, and the reason."""
    arguments = {"path": str(path), "id": wanted}
    answer = context.site.work.wait("find", arguments, stamp_of(path), seconds=FIND_SECONDS)
    if "error" in answer:
        return 0, str(answer["error"])
    offset = answer["found"]["offset"]
    if offset is None:
        return 0, f"No record has the id {wanted!r}; an id is looked for whole, and as it is written."
    return int(offset), ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def record_pages(project: Snapshot) -> Iterable[Params]:
    """The first page of the records of every stage; data sets of the file are the reader's own, and stay here."""
    return [
        {"source": f"stage.{stage.name}"}
        for stage in project.stages
        if stage.directory and (stage.directory / "outputs" / "records.jsonl").is_file()
    ]


RECORDS = WebPage(
    name="records",
    path="/p/{project}/records/{source}",
    template="records.html",
    build=build_records,
    each=record_pages,
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


def sample_sources(snapshot: Snapshot) -> list[SampleSource]:
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
        at_least=_limit(asked("least")),
        at_most=_limit(asked("most")),
    )


def _limit(text: str) -> float | None:
    try:
        value = float(text[:LONGEST_TEXT])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def listed_for(
    site: ProjectSite, snapshot: Snapshot, asked: Callable[[str], str], *, limit: int
) -> tuple[SampleList, list[SampleSource]]:
    """Return the samples that an address asks for, of a run or of two, and the sources of the run."""
    sources, wanted = sample_sources(snapshot), wanted_of(asked)
    if asked("view") != "sides":
        return find_samples(sources, wanted, limit=limit), sources
    lists = [(snapshot.label, sources)]
    other = site.reader(asked("with")) if asked("with") else None
    if other is not None and other.found.key != snapshot.key:
        lists.append((other.snapshot().label, sample_sources(other.snapshot())))
    return side_by_side(lists, wanted, limit=limit), sources


def build_samples(context: Context) -> PageValues:
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


SAMPLES = WebPage(
    name="samples", path="/p/{project}/samples", template="samples.html", build=build_samples, label="Samples"
)
