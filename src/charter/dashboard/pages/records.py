"""Single records of a data set, a page at a time, with where each came from."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from charter.dashboard.page import Context, NoSuchPageError, Page, PageValues, Params
from charter.dashboard.pages.data import sources_of
from charter.dashboard.snapshot import Snapshot
from charter.dashboard.stamped import stamp_of
from charter.report.data_page.records import DataSource, RecordView, last_page, record_page, record_view

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


def build(context: Context) -> PageValues:
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
    page = record_page(path, offset, 1 if wanted and not problem else 20)
    model = RecordsPage(
        source=source,
        aside=aside,
        records=tuple(map(record_view, page.records)),
        at=page.records[0].offset if page.records else 0,
        before=page.before,
        after=page.after,
        last=last_page(path),
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


def each(project: Snapshot) -> Iterable[Params]:
    """The first page of the records of every stage; data sets of the file are the reader's own, and stay here."""
    return [
        {"source": f"stage.{stage.name}"}
        for stage in project.stages
        if stage.directory and (stage.directory / "outputs" / "records.jsonl").is_file()
    ]


PAGE = Page(name="records", path="/p/{project}/records/{source}", template="records.html", build=build, each=each)
