"""Experiment trackers that a run is told to: the list `tracking:` of `charter.yaml`. No secret stands here."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from charter.errors import Problem
from charter.spec.quantity import Seconds

FORBID_EXTRA: dict[str, str] = {"extra": "forbid"}
REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*")
TrackerName = Literal["jsonl", "mlflow", "wandb", "tensorboard"]


@dataclass(frozen=True, kw_only=True)
class MlflowSettings:
    """An MLflow tracking server or database."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    uri: str | None = None
    """`http://HOST:PORT`, `sqlite:///FILE`, `postgresql+psycopg://USER@HOST/DATABASE`, or where such an address is:
    `env:NAME`, `file:PATH`. Unless given that of MLFLOW_TRACKING_URI, else a SQLite file in the run's directory."""
    experiment: str | None = None
    """The project's name unless given."""
    username: str | None = None
    password: str | None = None
    """Where the password is: `env:NAME` or `file:PATH`."""
    token: str | None = None
    """Where the bearer token is: `env:NAME` or `file:PATH`."""
    weights: bool = False
    """Upload weights too; otherwise the record with their hashes says which they are."""


@dataclass(frozen=True, kw_only=True)
class WandbSettings:
    """Weights & Biases, on its own or on a private server."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    project: str | None = None
    """The project's name unless given."""
    entity: str | None = None
    mode: Literal["online", "offline"] = "online"
    """`offline`: files under `run/tracking/wandb`, for `wandb sync`."""
    api_key: str | None = None
    """Where the key is: `env:NAME` or `file:PATH`; WANDB_API_KEY or a login unless given."""
    base_url: str | None = None
    """A private server."""
    weights: bool = False
    """Upload weights too."""


@dataclass(frozen=True, kw_only=True)
class TensorboardSettings:
    """Event files for TensorBoard."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    directory: str | None = None
    """From the project's directory; `run/tensorboard` unless given."""


TrackerSettings = MlflowSettings | WandbSettings | TensorboardSettings


@dataclass(frozen=True, kw_only=True)
class TrackerEntry:
    """One tracker with its settings; exactly one of the three is given."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    mlflow: MlflowSettings | None = None
    wandb: WandbSettings | None = None
    tensorboard: TensorboardSettings | None = None
    drain: Seconds = 30.0
    """How long the end of a run waits for what is not delivered yet; a tracker that does not answer is not waited for.
    `charter status track sync` and the next run deliver the rest."""


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """A tracker that a project names, with all its settings."""

    name: str
    settings: TrackerSettings
    drain_seconds: float = field(default=30.0)


PLAIN: Mapping[str, type[TrackerSettings]] = {
    "mlflow": MlflowSettings,
    "wandb": WandbSettings,
    "tensorboard": TensorboardSettings,
}


def trackers_of(tracking: Sequence[TrackerName | TrackerEntry]) -> tuple[Tracked, ...]:
    """The trackers that a list names, beside the files that every stage writes anyway.

    >>> [tracked.name for tracked in trackers_of(("jsonl", "mlflow"))]
    ['mlflow']
    """
    return tuple(tracked for item in tracking for tracked in _tracked(item))


def check_tracking(tracking: Sequence[TrackerName | TrackerEntry]) -> Iterator[Problem]:
    """Entries that say two things or nothing, trackers named twice, secrets that stand in the file."""
    names: set[str] = set()
    for index, item in enumerate(tracking):
        path = f"tracking[{index}]"
        problems = _tracked(item)
        if not isinstance(item, str) and len(problems) != 1:
            hint = "for example  - mlflow: {uri: http://127.0.0.1:5000}"
            yield Problem(message=f"names {len(problems)} trackers; every entry is one", path=path, hint=hint)
        if not isinstance(item, str) and item.drain < 0:
            yield Problem(message=f"must be 0 or more; found {item.drain:g}", path=f"{path}.drain")
        for tracked in problems:
            if tracked.name in names:
                yield Problem(message=f"{tracked.name} is named twice", path=path)
            names.add(tracked.name)
            yield from _check_secrets(tracked.settings, f"{path}.{tracked.name}")


def _tracked(item: TrackerName | TrackerEntry) -> tuple[Tracked, ...]:
    if isinstance(item, str):
        return (Tracked(name=item, settings=PLAIN[item]()),) if item in PLAIN else ()
    destinations = [(name, getattr(item, name)) for name in PLAIN]
    return tuple(
        Tracked(name=name, settings=settings, drain_seconds=item.drain) for name, settings in destinations if settings
    )


def _check_secrets(settings: TrackerSettings, path: str) -> Iterator[Problem]:
    """A secret is a reference; an address holds none. What is wrong is not shown."""
    names = {item.name for item in fields(settings)}
    for name in sorted({"api_key", "password", "token"} & names):
        value = getattr(settings, name)
        if value is not None and not REFERENCE.fullmatch(value):
            message = "is not env:NAME or file:PATH; a secret itself is never written into a project (and not shown)"
            yield Problem(message=message, path=f"{path}.{name}", hint=f"write  {name}: env:NAME")
    for name in sorted({"uri", "base_url"} & names):
        address = getattr(settings, name)
        if address is None or (name == "uri" and REFERENCE.fullmatch(address)):
            continue
        if "://" not in address:
            hint = "write it like http://HOST:PORT or sqlite:///FILE"
            yield Problem(message="is not an address", path=f"{path}.{name}", hint=hint)
        elif holds_password(address):
            hint = f"put the whole address elsewhere and write  {name}: env:NAME" if name == "uri" else "use api_key"
            yield Problem(
                message="an address must not hold a password (not shown here)", path=f"{path}.{name}", hint=hint
            )


def holds_password(address: str) -> bool:
    """Return True if an address has a password before its host, or one among its options.

    >>> holds_password("http://ann:secret@host:5000"), holds_password("http://ann@host:5000")
    (True, False)
    """
    host = address.partition("://")[2].partition("/")[0]
    return ":" in host.rpartition("@")[0] or "password=" in address.lower()
