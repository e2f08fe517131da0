"""All projects, what each of them does now; runs of several side by side, and the settings of sweeps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from charter.artifacts.stage_state import Phase
from charter.dashboard.pages.pieces import Piece, PieceJob, piece, piece_route, project_piece
from charter.dashboard.reading import ProjectReader
from charter.dashboard.render import Context, PageValues, Params, WebPage
from charter.dashboard.site import ProjectSite
from charter.dashboard.snapshot import Snapshot, State, stamp_of, tone_of
from charter.dashboard.view.run_parts import eta_of
from charter.dashboard.view.run_view import Money, money_of, run_share
from charter.spec import PROJECT_FILE

_ORDER: tuple[State, ...] = ("running", "failed", "waiting", "interrupted", "pending", "done")
ROWS_PER_PAGE = 50
"""Rows that a screen or two hold; the browser lays them out in a few milliseconds."""


@dataclass(frozen=True, kw_only=True)
class ProjectRow:
    """One project."""

    key: str
    name: str
    label: str
    owner: str | None
    tags: tuple[tuple[str, str], ...]
    phase: Phase
    state: State
    done: int
    stages: int
    share: float
    money: Money
    eta_seconds: float | None
    last_at: float | None
    running: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TableQuery:
    """Part of the table that is wanted; every link of the page is one, so that a part can be handed on."""

    search: str = ""
    state: str = ""
    tag: str = ""
    """One tag, as pages print it; any where it is empty."""
    group: str = ""
    """`name`, `owner`, `state` or the name of a tag: runs that agree in it stand together."""
    sort: str = ""
    """A column; what runs first, then what needs somebody, where none is named."""
    falling: bool = False
    page: int = 1

    @staticmethod
    def of(wish: Callable[[str], str]) -> "TableQuery":
        """Read an address; what makes no sense there is as if it were not."""
        number = wish("page")
        return TableQuery(
            search=wish("q").strip()[:200],
            state=wish("state") if wish("state") in _ORDER else "",
            tag=wish("tag").strip()[:200],
            group=wish("group").strip()[:200],
            sort=wish("sort") if wish("sort") in SORTS else "",
            falling=wish("falling") == "1",
            page=max(1, int(number)) if number.isascii() and number.isdecimal() and len(number) < 7 else 1,
        )

    def params(self, **changes: Any) -> Mapping[str, str]:
        """Return the address of the same part with some changes; another part begins at its first page."""
        other = replace(self, **({"page": 1} | changes))
        texts = {"q": other.search, "state": other.state, "tag": other.tag, "group": other.group, "sort": other.sort}
        texts |= {"falling": "1" if other.falling else "", "page": str(other.page) if other.page > 1 else ""}
        return {name: text for name, text in texts.items() if text}

    def sorted_by(self, column: str) -> Mapping[str, str]:
        """Return the address of the table sorted by a column: the other way round where it is so already."""
        return self.params(sort=column, falling=not self.falling if self.sort == column else column in FALLING_FIRST)


SORTS: Mapping[str, Callable[[ProjectRow], Any]] = {
    "name": lambda row: row.name.casefold(),
    "state": lambda row: _ORDER.index(row.state),
    "progress": lambda row: row.share,
    "spent": lambda row: row.money.spent_usd or 0.0,
    "last": lambda row: row.last_at or 0.0,
}
FALLING_FIRST = ("progress", "spent", "last")
"""Columns of which the largest is looked for."""


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Rows of a page that agree in what the table is grouped by."""

    name: str
    rows: tuple[ProjectRow, ...]
    all: int
    """Projects of the group, on whichever page they stand."""
    spent_usd: float | None


@dataclass(frozen=True, kw_only=True)
class HomeView:
    """One page of the table, and figures over all projects."""

    rows: tuple[ProjectRow, ...]
    groups: tuple[RunGroup, ...]
    """The same rows by group; one group without a name where the table has none."""
    groupings: tuple[str, ...]
    """What the table can be grouped by."""
    query: TableQuery
    matching: int
    """Projects that the search and the filter leave."""
    pages: int
    all: int
    states: tuple[tuple[State, int], ...]
    """States that there are, with how many projects are in each."""
    running: int
    per_hour_usd: float
    spent_usd: float | None
    """None where no project has a price."""
    needs_somebody: int
    """Failed, or waiting for approval."""
    unread: int
    """Projects that are not among these, since they are still being read."""


def home_view(snapshots: Sequence[Snapshot], query: TableQuery | None = None, *, unread: int = 0) -> HomeView:
    """Return one page of the table; all of it without a query, as an export has it."""
    rows = sorted(map(_row, snapshots), key=lambda row: (_ORDER.index(row.state), -(row.last_at or 0)))
    wish = query or TableQuery()
    wanted = [
        row
        for row in rows
        if wish.state in ("", row.state)
        and (not wish.tag or wish.tag in map(tag_words, row.tags))
        and _holds(row, wish.search.casefold())
    ]
    if wish.sort:
        wanted.sort(key=SORTS[wish.sort], reverse=wish.falling)
    groupings = (*GROUPINGS, *sorted({name for row in rows for name, value in row.tags if value} - set(GROUPINGS)))
    wish = replace(wish, group=wish.group if wish.group in groupings else "")
    # Python's sort is stable: within a group the order stays.
    wanted.sort(key=lambda row: (not _group_of(row, wish.group), _group_of(row, wish.group).casefold()))
    size = ROWS_PER_PAGE if query is not None else max(1, len(wanted))
    pages = max(1, -(-len(wanted) // size))
    wish = replace(wish, page=min(wish.page, pages))
    counted = [(state, sum(row.state == state for row in rows)) for state in _ORDER]
    shown = tuple(wanted[(wish.page - 1) * size : wish.page * size])
    return HomeView(
        rows=shown,
        groups=_groups(shown, wanted, wish.group),
        groupings=groupings,
        query=wish,
        matching=len(wanted),
        pages=pages,
        all=len(rows),
        states=tuple((state, count) for state, count in counted if count),
        running=sum(row.state == "running" for row in rows),
        per_hour_usd=sum(row.money.per_hour_usd or 0.0 for row in rows),
        spent_usd=_spent(rows),
        needs_somebody=sum(row.state in ("failed", "waiting") for row in rows),
        unread=unread,
    )


def _spent(rows: Sequence[ProjectRow]) -> float | None:
    """Return what projects with a price have spent; None where none has one."""
    priced = [row.money.spent_usd for row in rows if row.money.spent_usd is not None]
    return sum(priced) if priced else None


GROUPINGS = ("name", "owner", "state")
"""Beside the names of tags."""


def tag_words(tag: tuple[str, str]) -> str:
    """Return a tag as pages print it.

    >>> tag_words(("team", "red")), tag_words(("baseline", ""))
    ('team: red', 'baseline')
    """
    name, value = tag
    return f"{name}: {value}" if value else name


def _group_of(row: ProjectRow, group: str) -> str:
    """Return the group in which a row stands; nothing where it has no such tag."""
    own = {"": "", "name": row.name, "owner": row.owner or "", "state": row.state}
    return own[group] if group in own else dict(row.tags).get(group, "")


def _groups(shown: Sequence[ProjectRow], wanted: Sequence[ProjectRow], group: str) -> tuple[RunGroup, ...]:
    groups = []
    for name in dict.fromkeys(_group_of(row, group) for row in shown):
        of_all = [row for row in wanted if _group_of(row, group) == name]
        groups.append(
            RunGroup(
                name=name,
                rows=tuple(row for row in shown if _group_of(row, group) == name),
                all=len(of_all),
                spent_usd=_spent(of_all),
            )
        )
    return tuple(groups)


def _holds(row: ProjectRow, text: str) -> bool:
    """Return True if every word of a search is in a project's name, place, owner or tags."""
    place = " ".join([row.name, row.label, row.owner or "", *map(tag_words, row.tags)]).casefold()
    return all(word in place for word in text.split())


def _row(snapshot: Snapshot) -> ProjectRow:
    state, eta = tone_of(snapshot.phase), eta_of(snapshot)
    return ProjectRow(
        key=snapshot.key,
        name=snapshot.name,
        label=snapshot.label,
        owner=snapshot.owner,
        tags=tuple(snapshot.tags.items()),
        phase=snapshot.phase,
        state=state,
        done=sum(stage.state == "done" for stage in snapshot.stages),
        stages=len(snapshot.stages),
        share=run_share(snapshot),
        money=money_of(snapshot, eta),
        eta_seconds=eta.run_seconds if state == "running" else None,
        last_at=float(snapshot.events[-1]["time"]) if snapshot.events else None,
        running=tuple(stage.name for stage in snapshot.stages if stage.state == "running"),
        problems=snapshot.problems,
    )


def build_home(context: Context) -> PageValues:
    """The first page."""
    if context.links.static:
        return PageValues(title="Projects", model=home_view([item.snapshot() for item in context.site.readers()]))
    snapshots, unread = context.site.snapshots()
    return PageValues(title="Projects", model=home_view(snapshots, TableQuery.of(context.asked), unread=unread))


HOME = WebPage(name="home", path="/", template="home.html", build=build_home)


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
                state=tone_of(reader.snapshot().phase),
                chosen=reader in chosen,
            )
            for reader in readers
        ),
        piece=result,
        remark=f"Only the first {MOST} of those chosen are compared." if len(set(run_keys)) > MOST else "",
    )
    return PageValues(title="Compare runs", model=model, charts={} if result is None else result.charts)


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


def _compared(site: ProjectSite, request: Request) -> PieceJob | None:
    chosen = chosen_of(site.readers(), request.query_params.getlist("run"))
    return question_of(chosen) if len(chosen) > 1 else None


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
        state=(stamp_of(project.root / PROJECT_FILE), project.ledger.attempts, last),
        template="sweeps_piece.html",
    )


def _once_if_any(project: Snapshot) -> Iterable[Params]:
    return ({},) if project.sweeps else ()


PAGE = WebPage(name="compare", path="/compare", template="compare.html", build=build)
SWEEPS = WebPage(
    name="sweeps", path="/p/{project}/sweeps", template="sweeps.html", build=build_sweeps, each=_once_if_any
)
ROUTES = (
    piece_route("/compare/piece", _compared, "Choose two runs that there are."),
    project_piece("/p/{project}/sweeps/piece", sweeps_of),
)
