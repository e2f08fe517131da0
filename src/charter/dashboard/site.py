"""All projects that this dashboard shows, and its settings."""

import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from charter.dashboard.reading import ProjectReader, find_projects
from charter.dashboard.snapshot import Snapshot, Stamp, stamp_of
from charter.dashboard.view.run_parts import TOKENS, Curve, PhaseShare, Steady, curves_of, phases_of, steady_of
from charter.dashboard.work.pool import Workers
from charter.errors import MissingExtraError, UsageError, how_to_install
from charter.inference.serve.protocol import is_loopback
from charter.metering.row import METER_GLOB, MeterRow, row_of
from charter.tracking.base import TIME, metric_point

SHORTEST_TOKEN = 32
"""Characters of a token of one's own: as many as 128 bits in hexadecimal."""
OPERATOR, VIEWER = "operator", "viewer"
"""Who has the token may look and, where the dashboard has buttons, act; who has the viewer's token may look."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One dashboard."""

    roots: tuple[Path, ...]
    """Directories that hold projects, at any depth that discovery looks into."""
    token: str = field(repr=False)
    """Whoever has it may look, and act where `acts`."""
    viewer_token: str | None = field(default=None, repr=False)
    """Whoever has it may look."""
    acts: bool = False
    """Whether pages have buttons that approve, stop and start."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 lets the system choose a free one."""
    certificate: Path | None = None
    key: Path | None = None
    names: tuple[str, ...] = ()
    """Further names that browsers may call this server by, beside its address."""

    def token_of(self, role: str) -> str:
        """Return the token that lets a role in."""
        return self.viewer_token if role == VIEWER and self.viewer_token else self.token

    @property
    def tls(self) -> bool:
        """Return True if it speaks HTTPS."""
        return self.certificate is not None

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return "https" if self.tls else "http"


def check_settings(settings: Settings) -> None:
    """UsageError unless what is asked for is safe: away from loopback only with TLS; a token that cannot be guessed."""
    if (settings.certificate is None) != (settings.key is None):
        raise UsageError("--tls-certificate and --tls-key belong together; give both, or neither")
    for option, path in (("--tls-certificate", settings.certificate), ("--tls-key", settings.key)):
        if path is not None and not path.is_file():
            raise UsageError(f"{option} {path}: there is no such file; give a PEM file")
    if not is_loopback(settings.host) and not settings.tls:
        raise UsageError(
            f"--host {settings.host} can be reached from other machines, and without TLS anyone on the way reads the "
            "token and the pages\n"
            "  give --tls-certificate FILE --tls-key FILE, or stay on 127.0.0.1 and go through a tunnel: "
            "ssh -L 8765:127.0.0.1:8765 THIS_MACHINE"
        )
    if len(settings.token) < SHORTEST_TOKEN or not settings.token.isascii() or not settings.token.isprintable():
        raise UsageError(
            f"the token has {len(settings.token)} characters; at least {SHORTEST_TOKEN} printable ASCII ones are "
            'needed: python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    if settings.viewer_token is not None:
        check_settings(replace(settings, token=settings.viewer_token, viewer_token=None))
        if settings.viewer_token == settings.token:
            raise UsageError("--viewer-token is the same as --token; give another, or leave it out")
    if not 0 <= settings.port <= 65535:
        raise UsageError(f"--port {settings.port} is not a port; give 0 (a free one) to 65535")


def token_from(reference: str | None) -> str:
    """A fresh random token, or the one that `env:NAME` or `file:PATH` holds; never one from the command line itself."""
    if reference is None:
        return secrets.token_urlsafe(32)
    kind, _, where = reference.partition(":")
    if kind == "env" and where:
        token = os.environ.get(where)
        if token is None:
            raise UsageError(f"--token {reference}: the variable {where} is not set")
        return token.strip()
    if kind == "file" and where:
        try:
            return Path(where).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token {reference}: {error}") from None
    raise UsageError(
        "--token takes the place where the token is, never the token: env:NAME or file:PATH; "
        "without it a random one is made for this session"
    )


# -------- Files that grow by lines, read from where the last look ended: a page never reads a whole one again.


CHUNK_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 256
"""Enough of the end of what was read, with its times, to tell whether it still stands there."""


@dataclass
class Growing:
    """Reading position of one file: how far it was read, and as which file."""

    inode: int = 0
    offset: int = 0
    rest: bytes = b""
    """A last line without its end: it may still be being written."""
    tail: bytes = b""
    """The last bytes that were read, which end at `offset`."""


class LineFile:
    """Gives the lines that were added since the last call; starts anew when the file was cut or replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known = Growing()

    def new_lines(self, restart: Callable[[], None]) -> list[bytes]:
        """Whole lines that have been added; calls `restart` first when earlier ones no longer hold."""
        try:
            with self.path.open("rb") as file:
                return self._read(file, restart)
        except FileNotFoundError:
            if self._known.offset:
                self._known = Growing()
                restart()
            return []

    def _read(self, file: Any, restart: Callable[[], None]) -> list[bytes]:
        inode = os.fstat(file.fileno()).st_ino
        if inode != self._known.inode or not self._is_as_left(file):
            if self._known.offset:
                restart()
            self._known = Growing(inode=inode)
        file.seek(self._known.offset)
        lines: list[bytes] = []
        while chunk := file.read(CHUNK_BYTES):
            self._known.offset += len(chunk)
            self._known.tail = (self._known.tail + chunk)[-TAIL_BYTES:]
            parts = (self._known.rest + chunk).split(b"\n")
            self._known.rest = parts.pop()
            lines += parts
        return lines

    def _is_as_left(self, file: Any) -> bool:
        """Return True if the last bytes read still stand there: a file that was cut may have grown again since."""
        tail = self._known.tail
        file.seek(self._known.offset - len(tail))
        return bool(file.read(len(tail)) == tail)


Steps = dict[int, dict[str, float]]
FIRST_BYTES = 1024 * 1024
"""Most of a file that a page reads before it is shown; of a longer one it shows a sample, and the rest is read beside
it."""
SAMPLED_PIECES = 64
LATER_SECONDS = 0.5
"""The rest is read so long after a page has asked: the page itself comes first."""


def sampled_lines(path: Path) -> Iterator[bytes]:
    """Complete lines of pieces that lie evenly over a file, from its beginning to its end: `FIRST_BYTES` in all."""
    piece = FIRST_BYTES // SAMPLED_PIECES
    with suppress(FileNotFoundError), path.open("rb") as file:
        last = max(0, file.seek(0, os.SEEK_END) - piece)
        for number in range(SAMPLED_PIECES):
            file.seek(last * number // (SAMPLED_PIECES - 1))
            lines = file.read(piece).split(b"\n")
            yield from lines[1 if number else 0 : -1]


def steps_in(lines: Iterable[bytes]) -> Steps:
    """Return the finite numbers of every step; of one that is there twice, the later."""
    points = (point for line in lines if (point := metric_point(line)) is not None)
    return {point.step: {**point.values, **({} if point.time is None else {TIME: point.time})} for point in points}


def ordered(steps: Steps) -> Steps:
    """Return the steps in their order."""
    return steps if list(steps) == sorted(steps) else dict(sorted(steps.items()))


@dataclass(frozen=True, kw_only=True)
class LoggedSteps:
    """The metrics of a file by step, in the order of steps."""

    steps: Steps
    is_sample: bool
    """Whether these are a sample, while all of them are being read."""


@dataclass
class _Kept:
    file: LineFile
    lock: threading.Lock = field(default_factory=threading.Lock)
    steps: Steps = field(default_factory=dict)
    is_read: bool = False
    is_being_read: bool = False

    def read(self) -> Steps:
        """Take in what is new."""
        with self.lock:
            fresh = steps_in(self.file.new_lines(self.steps.clear))
            if fresh:
                self.steps.update(fresh)
                self.steps = ordered(self.steps)
            self.is_read = True
            return dict(self.steps)


class MetricFiles:
    """The metrics of stages, kept in memory as far as they were read; the least used are forgotten."""

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: OrderedDict[Path, _Kept] = OrderedDict()
        self._lock = threading.Lock()
        self.completed = 0
        """Files that were read to their end beside a page: what it showed of them has changed, though no file has."""

    def logged(self, path: Path, *, wait: bool = False) -> LoggedSteps:
        """The finite numbers of every step; at first a sample of a long file, unless all of it shall be waited for."""
        with self._lock:
            cached = self._kept.pop(path, None) or _Kept(file=LineFile(path))
            self._kept[path] = cached
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            stamp = stamp_of(path)
            sampled = not wait and not cached.is_read and stamp is not None and stamp[1] > FIRST_BYTES
            if sampled and not cached.is_being_read:
                cached.is_being_read = True
                later = threading.Timer(LATER_SECONDS, self._complete, (cached,))
                later.daemon = True
                later.start()
        if not sampled:
            return LoggedSteps(steps=cached.read(), is_sample=False)
        steps = ordered(steps_in(sampled_lines(path)))
        for values in steps.values():
            values.pop(TOKENS, None)  # counts since the line before, which is not in a sample
        return LoggedSteps(steps=steps, is_sample=True)

    def _complete(self, cached: _Kept) -> None:
        try:
            cached.read()
        finally:
            cached.is_being_read = False
            with self._lock:
                self.completed += 1


# -------- All projects that this dashboard shows.


@dataclass(frozen=True, kw_only=True)
class DrawnMetrics:
    """Metrics of a stage as its page shows them."""

    curves: tuple[Curve, ...]
    steady: Steady = ()
    """The metrics that never changed; none of a sample, which does not know."""
    phases: tuple[PhaseShare, ...] = ()
    """Of the last lines; none of a sample, which does not have all of them."""
    is_sample: bool = False


class Curves:
    """Curves of a stage's page, from its metrics."""

    def __init__(self, metrics: MetricFiles, most: int = 64) -> None:
        self._metrics = metrics
        self._most = most
        self._kept: OrderedDict[Path, tuple[Stamp | None, DrawnMetrics]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, path: Path, *, wait: bool = False) -> DrawnMetrics:
        """The metrics in a file, drawn; at first from a sample of a long one, unless all of it shall be waited for."""
        with self._lock:
            stamp = stamp_of(path)
            cached = self._kept.get(path)
            if cached is not None and cached[0] == stamp:
                self._kept.move_to_end(path)
                return cached[1]
            logged = self._metrics.logged(path, wait=wait)
            if logged.is_sample:
                return DrawnMetrics(curves=curves_of(logged.steps), is_sample=True)
            drawn = DrawnMetrics(
                curves=curves_of(logged.steps), steady=steady_of(logged.steps), phases=phases_of(logged.steps)
            )
            self._kept[path] = (stamp, drawn)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return drawn


MOST_ROWS = 20_000
"""Samples of one node that are kept: two days at one each 10 s."""


@dataclass
class _Node:
    file: LineFile
    rows: list[MeterRow] = field(default_factory=list)


class MeterFiles:
    """The samples of stages, kept as far as they were read; the least used stages are forgotten."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: OrderedDict[Path, dict[Path, _Node]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, stage_dir: Path) -> tuple[MeterRow, ...]:
        """The samples of all nodes of a stage in the order of time; of a long run the last."""
        with self._lock:
            nodes = self._kept.pop(stage_dir, None) or {}
            self._kept[stage_dir] = nodes
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            for path in stage_dir.glob(METER_GLOB):
                node = nodes.setdefault(path, _Node(file=LineFile(path)))
                for line in node.file.new_lines(node.rows.clear):
                    if (row := row_of(line)) is not None:
                        node.rows.append(row)
                del node.rows[:-MOST_ROWS]
            return tuple(sorted((row for node in nodes.values() for row in node.rows), key=lambda row: row.time))


DISCOVERY_SECONDS = 10.0
FIRST_SECONDS = 0.1
"""A page of all projects waits so long for those that were never read; the others come as they are read beside it."""


class ProjectSite:
    """Finds projects again from time to time, and keeps one reader for each."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = MetricFiles()
        self.curves = Curves(self.metrics)
        self.meters = MeterFiles()
        self.work = Workers()
        self._readers: dict[str, ProjectReader] = {}
        self._found_at = float("-inf")
        self._lock = threading.Lock()
        self._catching_up = threading.Lock()

    def readers(self) -> tuple[ProjectReader, ...]:
        """The readers of all projects, in the order of their labels."""
        with self._lock:
            if time.monotonic() - self._found_at > DISCOVERY_SECONDS:
                projects = find_projects(self.settings.roots)
                self._readers = {item.key: self._readers.get(item.key) or ProjectReader(item) for item in projects}
                self._found_at = time.monotonic()
            return tuple(self._readers.values())

    def reader(self, key: str) -> ProjectReader | None:
        """The reader of one project; a key is looked up, never made into a path."""
        return next((reader for reader in self.readers() if reader.found.key == key), None)

    def snapshots(self) -> tuple[list[Snapshot], int]:
        """Return all projects that were read, and how many were not yet: these are read now, beside the request."""
        until = time.monotonic() + FIRST_SECONDS
        ready: list[Snapshot] = []
        unread: list[ProjectReader] = []
        for reader in self.readers():
            if reader.is_read or time.monotonic() < until:
                ready.append(reader.snapshot())
            else:
                unread.append(reader)
        if unread and self._catching_up.acquire(blocking=False):
            threading.Thread(target=self._catch_up, args=(unread,), daemon=True).start()
        return ready, len(unread)

    def _catch_up(self, unread: Sequence[ProjectReader]) -> None:
        try:
            for reader in unread:
                reader.snapshot()
        finally:
            self._catching_up.release()

    def version(self, reader: ProjectReader | None) -> str:
        """Return a value that changes whenever a project has changed, or any of them, or more of one was read."""
        if reader is not None:
            return f"{reader.snapshot().version}.{self.metrics.completed}"
        return "/".join(item.snapshot().version if item.is_read else "unread" for item in self.readers())


def missing_extra(error: ImportError) -> MissingExtraError:
    """Return the error that names the extra to install; raise the given error where a module of ours is missing."""
    if (error.name or "charter").partition(".")[0] == "charter":
        raise error
    return MissingExtraError(f"the dashboard needs {error.name}, which is not installed: {how_to_install('ui')}")
