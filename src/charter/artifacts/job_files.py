"""The files by which a job's agents and the supervisor know of one another: `jobs/NUMBER/` in the stage directory.

They are the same on every scheduler, and need nothing of it but a shared directory:

    submission.json         what was submitted, under which name and number; written before and after
    node-RESTART-PLACE.json one start on one node (or of one shard): who, since when, how it ended
    failed-RESTART.json     the first failure of a start; the other nodes end theirs on it
    control.json            what the supervisor asks of the agents: stop, kill, dump
    shards.json             which shards the tasks of an array make, where not all of them
    log.txt                 what the agents print
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from charter.artifacts import durable
from charter.errors import DataError, StageError
from charter.units import seconds_between

JOBS = "jobs"
StoppedBy = Literal["", "signal", "time_limit", "supervisor", "peer", "parent", "checks", "killed"]


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """One start on one node, as its agent says; a hint, which nothing durable depends on."""

    place: int
    """Number of the node, or of the task of an array."""
    restart: int
    host: str
    host_id: str
    """Host name and boot: two nodes with the same one are on one machine."""
    node: str = ""
    """The scheduler's name of the node, by which later jobs leave it out."""
    beats: int = 0
    """Signs of life: of several nodes, one whose count stands still while another's grows is lost."""
    address: str = ""
    """How other nodes reach it."""
    port: int = 0
    """A free port of it, for processes that want to be told one."""
    engine_job: str = ""
    """The scheduler's own number, as its environment says."""
    pid: int = 0
    """Of the agent."""
    first_pid: int = 0
    """Of its first stage process."""
    first_rank: int = 0
    processes: int = 1
    started_at: float = 0.0
    """Unix seconds by the node's clock."""
    ended_at: float | None = None
    exit_code: int | None = None
    """Minus the number of a signal."""
    failed_rank: int = 0
    stopped_by: StoppedBy = ""
    """Why its processes were ended, where they did not end by themselves."""
    note: str = ""

    @property
    def node_name(self) -> str:
        """Return the scheduler's name of its node, or its host, which may be several nodes of a scheduler."""
        return self.node or self.host

    @property
    def seconds(self) -> float | None:
        """Return its duration; None while it lasts."""
        return seconds_between(self.started_at, self.ended_at)


@dataclass(frozen=True, kw_only=True)
class Control:
    """Requests of the supervisor to a job's agents."""

    stop: bool = False
    """At the next safe point."""
    kill: bool = False
    dumps: int = 0
    """How often it has asked for stacks."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failure of one start."""

    exit_code: int
    rank: int
    host: str


class JobFiles:
    """The files of one submission."""

    def __init__(self, stage_dir: Path, number: int) -> None:
        self.directory = stage_dir / JOBS / f"{number:04d}"
        self.number = number

    @property
    def log(self) -> Path:
        """Return the path of the agents' log, which the scheduler writes."""
        return self.directory / "log.txt"

    @property
    def submission(self) -> Path:
        """Return the path of the submission's record."""
        return self.directory / "submission.json"

    @property
    def control(self) -> Path:
        """Return the path of the requests to the agents."""
        return self.directory / "control.json"

    def node(self, restart: int, place: int) -> Path:
        """The record of one start on one node."""
        return self.directory / f"node-{restart}-{place}.json"

    def failed(self, restart: int) -> Path:
        """The first failure of one start."""
        return self.directory / f"failed-{restart}.json"

    def claim(self, record: NodeRecord) -> NodeRecord:
        """Write the record of a start under the first restart, from its own on, that no other start of it has taken.

        A scheduler may not say how often it has started a job, or say the same twice.
        """
        restart = record.restart
        while True:
            claimed = NodeRecord(**{**asdict(record), "restart": restart})
            text = durable.json_text(asdict(claimed)).encode()
            if durable.write_new(self.node(restart, record.place), text):
                return claimed
            restart += 1

    def tell(self, record: NodeRecord) -> None:
        """Write how a start stands now."""
        durable.write_hint(self.node(record.restart, record.place), asdict(record))

    def read_node(self, restart: int, place: int) -> NodeRecord | None:
        """Read the record of a start on a node; None where there is none yet."""
        return _node(self.node(restart, place))

    def nodes(self) -> Iterator[NodeRecord]:
        """All starts on all nodes, in the order of restarts and places."""
        records = [record for path in self.directory.glob("node-*.json") if (record := _node(path)) is not None]
        yield from sorted(records, key=lambda record: (record.restart, record.place))

    def nodes_again(self, records: Mapping[int, NodeRecord]) -> Iterator[NodeRecord]:
        """The latest start in every place; what has ended is not read again."""
        ended = {record.place: record.restart for record in records.values() if record.ended_at is not None}
        latest: dict[int, int] = {}
        for path in self.directory.glob("node-*.json"):
            restart, place = map(int, path.stem.removeprefix("node-").split("-"))
            latest[place] = max(restart, latest.get(place, 0))
        for place, restart in latest.items():
            if ended.get(place) != restart and (latest_record := self.read_node(restart, place)) is not None:
                yield latest_record

    def fail(self, restart: int, failure: Failure) -> None:
        """Say that a start has failed; the first to say so counts."""
        durable.write_new(self.failed(restart), durable.json_text(asdict(failure)).encode())

    def failure(self, restart: int) -> Failure | None:
        """The first failure of a start."""
        content = _read(self.failed(restart))
        return Failure(**content) if content else None

    def ask(self, control: Control) -> None:
        """Ask something of the agents."""
        durable.make_dir(self.directory)
        durable.write_hint(self.control, asdict(control))

    def asked(self) -> Control:
        """Read the supervisor's requests."""
        content = _read(self.control)
        return Control(**content) if content else Control()

    def write_shards(self, shards: tuple[int, ...], *, of: int) -> None:
        """Say which shards the tasks of this array make: task i makes `shards[i]`."""
        durable.write_json(self.directory / "shards.json", {"shards": list(shards), "of": of})

    def shards(self) -> tuple[tuple[int, ...], int]:
        """Return the shards that its tasks make, and the number of all shards."""
        content = durable.read_json(self.directory / "shards.json")
        return tuple(content["shards"]), int(content["of"])


def numbers(stage_dir: Path) -> list[int]:
    """The numbers of all submissions of a stage, oldest first."""
    place = stage_dir / JOBS
    return sorted(int(path.name) for path in place.iterdir() if path.name.isdecimal()) if place.is_dir() else []


def _node(path: Path) -> NodeRecord | None:
    content = _read(path)
    try:
        return NodeRecord(**content) if content else None
    except TypeError:
        return None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        content = durable.read_json(path)
    except DataError:
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One job of a stage, as it was handed to a scheduler."""

    scheduler: str
    name: str
    token: str
    number: int
    settings: str
    """Hash of all that the scheduler was asked for: a job that is found running is kept only where it is the same."""
    attempt: int
    nodes: int
    spares: int
    processes: int
    """Of the whole stage."""
    accelerator: str
    count: int
    """Billed units: accelerators of all nodes (of one task, of an array), or nodes where there are none."""
    market: str
    shards: tuple[int, ...] = ()
    """Of an array: which shards its tasks make."""
    exclude_nodes: tuple[str, ...] = ()
    """Nodes that were left out when it was submitted."""
    submitted_at: float = 0.0
    job_id: str | None = None
    """The scheduler's number; None until it has said it."""
    ended: bool = False
    reason: str = ""
    """The scheduler's last word on it."""


_SCHEDULER_KEY = "engine"
"""In the file: files of a run keep the names of their fields, and a job may be in a queue while Charter is updated."""


def write_submission(files: JobFiles, submission: Submission) -> None:
    """Remember a submission durably."""
    content = asdict(submission)
    content[_SCHEDULER_KEY] = content.pop("scheduler")
    durable.make_dir(files.directory)
    durable.write_json(files.submission, content)


def read_submission(files: JobFiles) -> Submission | None:
    """Read the record of a submission; None where there is none that can be read."""
    try:
        content = durable.read_json(files.submission)
        fields = {**content, "scheduler": content[_SCHEDULER_KEY], "shards": tuple(content["shards"])}
        fields["exclude_nodes"] = tuple(content.get("exclude_nodes", ()))
        del fields[_SCHEDULER_KEY]
        return Submission(**fields)
    except (DataError, TypeError, KeyError):
        return None


SERVERS = "CHARTER_SERVERS"
"""Variable of a stage whose job has pools: their directory."""
SERVERS_DIR = "servers"
KEY_FILE = "key"
WAIT_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class ServerNow:
    """One replica, as its keeper last wrote it."""

    model: str
    replica: int
    url: str
    state: str
    """`starting`, `ready`, or `failed` for good."""
    starts: int = 0
    why: str = ""
    """Why it is not ready."""
    pid: int = 0
    host: str = ""
    meeting: str = ""
    """Where the parts of a replica over several nodes meet."""
    at: float = 0.0


def server_file(directory: Path, model: str, replica: int) -> Path:
    """Return the file of one replica."""
    return directory / f"{model}-{replica}.json"


def read_servers(directory: Path, model: str, replicas: int) -> list[ServerNow]:
    """Return the replicas of a model that have said where they listen, in their order."""
    servers = []
    for number in range(replicas):
        try:
            servers.append(ServerNow(**durable.read_json(server_file(directory, model, number))))
        except (DataError, TypeError):
            continue
    return servers


def await_servers(
    directory: Path, model: str, replicas: int, *, alive: Callable[[], None], should_stop: Callable[[], bool]
) -> list[ServerNow]:
    """Return all replicas of a model once each has an address and one of them answers; fewer where a stop is wanted.

    Raises StageError when all of them have failed for good.
    """
    while True:
        servers = read_servers(directory, model, replicas)
        if len(servers) == replicas:
            if all(server.state == "failed" for server in servers):
                why = "; ".join(dict.fromkeys(server.why for server in servers))
                raise StageError(f"no server of {model!r} has come up: {why}")
            if any(server.state == "ready" for server in servers):
                return servers
        if should_stop():
            return servers
        alive()
        time.sleep(WAIT_SECONDS)
