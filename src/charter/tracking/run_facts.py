"""Facts of a run and its stages for trackers, beside numbers, read from the run's files."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.job import JOB_FILE
from charter.artifacts.record import OUTPUTS, RECORD_FILE
from charter.artifacts.whole_dir import wrong_name
from charter.errors import DataError
from charter.spec.sweep import POINT_TAG, SWEEP_TAG
from charter.tracking.base import Input, RunFacts
from charter.tracking.journal import card_path, facts_path

PLAN_FILE = "plan.json"
SIDECARS = ("planned.json", "timings.json")
SMALL_OUTPUTS = ("results.json",)
FACTS_SCHEMA = "charter.tracking/1"
LONGEST_GROUP_NAME = 100
"""Characters; W&B takes 128 of a group, of which the rest tells equal names apart."""


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A run that is followed: who it is and whom to tell; no secret is in it."""

    key: str
    """Made once for a run directory."""
    name: str
    root: str
    trackers: Mapping[str, Mapping[str, Any]]
    """Name of a tracker -> its settings and `drain_seconds`."""
    owner: str | None = None
    tags: Mapping[str, str] | None = None
    notes: Mapping[str, str] | None = None
    meter_every_seconds: float = 0.0
    """How often this machine is metered by the follower; 0 where others do it, or nobody."""
    prometheus_port: int | None = None
    power_usage_effectiveness: float = 1.0


def write_followed(run_dir: Path, followed: Followed) -> None:
    """Write down who is followed."""
    durable.make_dir(facts_path(run_dir).parent)
    durable.write_json(facts_path(run_dir), {"schema": FACTS_SCHEMA, **asdict(followed)})


def read_followed(run_dir: Path) -> Followed | None:
    """Read the followed run of a directory; None where nobody ever was followed."""
    if not facts_path(run_dir).exists():
        return None
    content = durable.read_json(facts_path(run_dir))
    try:
        return Followed(**{key: value for key, value in content.items() if key != "schema"})
    except TypeError as error:
        raise DataError(f"{facts_path(run_dir)} is not of this version of Charter: {error}") from None


def run_facts(followed: Followed, *, started_at: float | None) -> RunFacts:
    """Return the facts of the pipeline for trackers."""
    tags = {"charter.run": followed.name, "charter.level": "pipeline", **_prefixed(followed.tags or {})}
    if followed.owner:
        tags["charter.owner"] = followed.owner
    return RunFacts(key=followed.key, name=followed.name, tags=tags, started_at=started_at)


@dataclass(frozen=True, kw_only=True)
class SweptPoint:
    """A point of a sweep, as the event of a run's start names it."""

    sweep: str
    label: str
    values: Mapping[str, str]
    repetition: int

    @property
    def key(self) -> str:
        """Return its key in a run directory: other values or another seed are another point."""
        return f"point-{digest([self.sweep, dict(self.values), self.repetition])}"

    @property
    def tags(self) -> dict[str, str]:
        """Return sweep, label and values as tags."""
        return {SWEEP_TAG: self.sweep, POINT_TAG: self.label, **self.values}


def point_of(entry: Any) -> SweptPoint | None:
    """Return the point that an event names; None where it names none."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("values"), Mapping):
        return None
    return SweptPoint(
        sweep=str(entry.get("sweep")),
        label=str(entry.get("label")),
        values=dict(flat(entry["values"])),
        repetition=int(entry.get("repetition") or 0),
    )


def sweep_key(name: str) -> str:
    """Return the key of a sweep in a run directory."""
    return f"sweep-{digest(name)}"


def sweep_group(followed: Followed, name: str) -> str:
    """Return what the runs of a sweep are grouped under: its name, and what tells it from another project's."""
    return f"{name[:LONGEST_GROUP_NAME]}-{digest([followed.key, name])[:8]}"


def sweep_facts(followed: Followed, name: str, *, started_at: float | None) -> RunFacts:
    """Return the facts of a sweep for trackers."""
    run = run_facts(followed, started_at=started_at)
    tags = {**run.tags, "charter.level": "sweep", SWEEP_TAG: name}
    group = sweep_group(followed, name)
    return replace(run, key=f"{followed.key}-{sweep_key(name)}", name=name, tags=tags, group=group)


def point_facts(followed: Followed, point: SweptPoint, *, started_at: float | None) -> RunFacts:
    """Return the facts of a point for trackers: its values, and which repetition of them it is."""
    run = run_facts(followed, started_at=started_at)
    return replace(
        run,
        key=f"{followed.key}-{point.key}",
        name=point.label,
        parameters={**point.values, "repetition": str(point.repetition)},
        tags={**run.tags, "charter.level": "point", **point.tags},
        group=sweep_group(followed, point.sweep),
    )


def stage_facts(
    followed: Followed, stage_dir: Path, *, started_at: float | None, point: SweptPoint | None = None
) -> RunFacts | None:
    """Return the facts of a stage, and of the point that ran it first; None while its job is not written."""
    try:
        job = durable.read_json(stage_dir / JOB_FILE)
    except DataError:
        return None
    spec: Mapping[str, Any] = job["spec"]
    counted: Mapping[str, Any] = (job.get("identity") or {}).get("spec") or spec
    parameters = {**dict(flat(counted)), "seed": str(job["seed"])}
    tags = {
        "charter.run": followed.name,
        "charter.level": "stage",
        "charter.stage": job["stage"],
        "charter.kind": job["kind"],
        "charter.fingerprint": job["fingerprint"],
        **{f"charter.frozen.{name}": str(value) for name, value in job["frozen"].items()},
        **{f"charter.setting.{name}": text for name, text in flat(spec) if name not in (*parameters, "kind")},
        **_prefixed(followed.tags or {}),
        **(point.tags if point else {}),
    }
    if followed.owner:
        tags["charter.owner"] = followed.owner
    return RunFacts(
        key=f"{followed.key}-{stage_dir.name}",
        name=job["stage"],
        parameters=parameters,
        tags=tags,
        inputs=tuple(_inputs(job)),
        note=(followed.notes or {}).get(job["stage"], ""),
        started_at=started_at,
        group=sweep_group(followed, point.sweep) if point else "",
    )


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names and texts; what is not given is left out.

    >>> list(flat({"steps": 3, "adapter": {"rank": 8, "dropout": None}}))
    [('steps', '3'), ('adapter.rank', '8')]
    """
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{prefix}{name}.")
        elif item is not None and item not in ([], ()):
            yield f"{prefix}{name}", item if isinstance(item, str) else json.dumps(item)


def attachments(run_dir: Path, stage_dir: Path, *, weights: bool) -> Iterator[tuple[str, Path]]:
    """Files that belong to a finished stage's run: record, card, what was planned, results; weights only when asked.

    Without the weights, the record says by hash which they are.
    """
    record = stage_dir / RECORD_FILE
    if not record.exists():
        return
    yield RECORD_FILE, record
    card = card_path(run_dir, stage_dir.name)
    if card.exists():
        yield "README.md", card
    for name in SIDECARS:
        if (stage_dir / name).exists():
            yield name, stage_dir / name
    outputs = durable.read_json(record).get("outputs", {})
    for name in sorted(outputs):
        # The names come from a file: one that leads outside is not followed.
        wanted = weights or Path(name).name in SMALL_OUTPUTS
        if wanted and wrong_name(name) is None and (stage_dir / OUTPUTS / name).is_file():
            yield f"{OUTPUTS}/{name}", stage_dir / OUTPUTS / name


def plan_of(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """The plan of the run, where there is one."""
    if (run_dir / PLAN_FILE).exists():
        yield PLAN_FILE, run_dir / PLAN_FILE


def digest(value: object) -> str:
    """A short name of plain values: another one when they change."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def _inputs(job: Mapping[str, Any]) -> Iterator[Input]:
    for role, items in job["inputs"].items():
        for item in items:
            yield Input(
                name=item["name"],
                role=role,
                source=item["source"],
                fingerprint=item["fingerprint"],
                path=item.get("path"),
            )


def _prefixed(tags: Mapping[str, str]) -> dict[str, str]:
    """The project's own tags, as they are."""
    return {str(name): str(value) for name, value in tags.items()}
