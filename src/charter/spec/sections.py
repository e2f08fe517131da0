"""Small sections of `charter.yaml`: alerts, budget, costs, engines, metering, risk, tracking. No secret stands here."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from charter.errors import Problem
from charter.spec.launching import FORBID_EXTRA
from charter.spec.quantity import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SHARE_ABOVE_ZERO,
    SHARE_BELOW_ONE,
    Bytes,
    Count,
    Names,
    Reads,
    Seconds,
    Usd,
    check_ranges,
)
from charter.spec.suggest import did_you_mean
from charter.units import parse_seconds

REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:\S.*")


@dataclass(frozen=True, kw_only=True)
class Alerts:
    """Destinations of alerts beside the log of the run."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    webhook: str | None = None
    """Where the address is, never the address: `env:NAME` or `file:PATH`; every alert is POSTed there as JSON."""
    email: Names = ()
    """Addresses that are written to."""
    smtp: str | None = None
    """`smtp://HOST:PORT` or `smtps://HOST:PORT`; the password by `env:NAME` in `smtp_password`."""
    smtp_user: str | None = None
    smtp_password: str | None = None
    """Where the password is: `env:NAME` or `file:PATH`."""
    sender: str = "charter@localhost"


def check_alerts(alerts: Alerts) -> Iterator[Problem]:
    """Problems of the section: secrets that stand in the file, addresses that cannot be written to."""
    for name in ("webhook", "smtp_password"):
        value = getattr(alerts, name)
        if value is not None and not REFERENCE.fullmatch(value):
            message = "must say where the secret is, as env:NAME or file:PATH, not be it"
            yield Problem(message=message, path=f"alerts.{name}")
    for name, address in (*(("email", address) for address in alerts.email), ("sender", alerts.sender)):
        if "@" not in address.strip("@") or any(sign in address for sign in "\r\n,;<> "):
            yield Problem(message=f"{address!r} is no address that can be written to", path=f"alerts.{name}")
    if alerts.email and alerts.smtp is None:
        hint = "add  smtp: smtp://HOST:587"
        yield Problem(message="e-mail needs the server that sends it", path="alerts.smtp", hint=hint)
    if alerts.smtp is not None:
        yield from _check_server(alerts.smtp)
    if alerts.smtp_password is not None and alerts.smtp_user is None:
        yield Problem(message="a password needs its user", path="alerts.smtp_user")


def _check_server(address: str) -> Iterator[Problem]:
    try:
        parts = urlsplit(address)
        is_supported = parts.scheme in ("smtp", "smtps") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_supported = False
    if not is_supported:
        message = "must be smtp://HOST:PORT or smtps://HOST:PORT"
        yield Problem(message=message, path="alerts.smtp")
    elif parts.username or parts.password:
        hint = "give them as smtp_user, and smtp_password: env:NAME"
        yield Problem(message="holds a user or a password", path="alerts.smtp", hint=hint)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limit of spending, and the action when it is reached."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    limit: Usd
    """Of the whole project."""
    on_exceed: Literal["warn", "checkpoint_and_stop"] = "checkpoint_and_stop"
    on_forecast: Literal["warn", "hold", "checkpoint_and_stop"] = "warn"
    """What happens when the p10 of the forecast is above a limit: tell, start no further stage, or stop as if it were
    spent."""
    stages: Mapping[str, Usd] = field(default_factory=dict)
    """Limits of single stages."""
    owners: Mapping[str, Usd] = field(default_factory=dict)
    """Limits of owners, over all runs in the ledger: those of a team where `storage.ledger` is shared."""
    tags: Mapping[str, Usd] = field(default_factory=dict)
    """Limits of tags (`team=alignment`), over all runs in the ledger."""
    period: Literal["total", "month"] = "total"
    """What limits of owners and tags are for: all time, or each calendar month (UTC)."""


def check_budget(budget: Budget | None, stages: Collection[str]) -> Iterator[Problem]:
    """Problems of the section: limits that are not above 0, stages that there are not, tags that are none."""
    if budget is None:
        return
    yield from check_ranges(budget, "budget", [("limit", POSITIVE)])
    test, words = POSITIVE
    for part in ("stages", "owners", "tags"):
        for name, limit in getattr(budget, part).items():
            if not test(limit):
                yield Problem(message=f"{words}; found {limit}", path=f"budget.{part}.{name}")
    for name in budget.stages:
        if name not in stages:
            hint = did_you_mean(name, stages)
            yield Problem(message=f"no stage is called {name!r}", path=f"budget.stages.{name}", hint=hint)
    for name in budget.tags:
        key, equals, value = name.partition("=")
        if not (key and equals and value):
            message = f"{name!r} is no tag with its value; write it as in  team=alignment: $5,000"
            yield Problem(message=message, path=f"budget.tags.{name}")


@dataclass(frozen=True, kw_only=True)
class HumanLabels:
    """Preference pairs that people label."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    pairs: Count
    usd_per_pair: Usd = 0.67
    """Default from Lee et al. 2023 (arXiv:2309.00267), from memory: verify; quotes differ by ten times."""


@dataclass(frozen=True, kw_only=True)
class Staff:
    """People, for as long as the project runs."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    fte: float
    """Full-time equivalents."""
    usd_per_month: Usd
    """Of one, with everything; there is no default."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Checkpoints to keep, for how long, and in which class of object storage."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    keep_last: Count | None = None
    """Full checkpoints that exist together; `storage.keep_last` unless given."""
    weights_every: int = 0
    """Keep the weights alone of every so many checkpoints; 0: only the final weights stay."""
    days: float = 30.0
    """Days that weights and records stay after their stage. Judgement."""
    tier: Literal["standard", "infrequent", "archive"] = "standard"
    """Class of storage for what stays: its minimum duration is billed, reading it back is not counted."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs beside accelerators; zero by default, so that every amount here was asked for."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    rework: float = 0.0
    """Accelerator time of reruns, sweeps and abandoned runs over planned time: 0.3 is usual, 0 to 1 (judgement)."""
    idle_share: float = 0.0
    """Share of the time paid for in which nothing runs: 0.05 to 0.25 is usual (judgement)."""
    managed_service: Literal["sagemaker", "vertex", "azure_ml"] | None = None
    """Its premium is added to stages on its own cloud."""
    provider: Literal["planned", "open"] = "planned"
    """`open`: the price range spans every bundled on-demand offer of the accelerator, not the planned one alone."""
    disk_gb_per_node: float = 0.0
    """Network disk attached to each rented node, beside the disks that come with it."""
    download_results: bool = False
    """Weights and records leave the cloud once, at internet prices."""
    fixed_usd_per_month: Mapping[str, Usd] = field(default_factory=dict)
    """Head node, tracking server, NAT, addresses: name -> usd per month, for as long as the project runs."""
    human_labels: HumanLabels | None = None
    """Preference labels that are bought."""
    staff: Staff | None = None
    """People; left out unless given."""
    retention: Retention = field(default_factory=Retention)
    """What is kept, and for how long."""
    contingency: float = 0.0
    """Share of everything else, added on top."""


def check_costs(costs: Costs) -> Iterator[Problem]:
    """Problems of the section: shares and negative amounts."""
    not_negative = ("rework", "disk_gb_per_node", "contingency")
    yield from check_ranges(costs, "costs", [(name, NOT_NEGATIVE) for name in not_negative])
    yield from check_ranges(costs, "costs", [("idle_share", SHARE_BELOW_ONE)])
    retention = [("keep_last", AT_LEAST_ONE), ("weights_every", NOT_NEGATIVE), ("days", NOT_NEGATIVE)]
    yield from check_ranges(costs.retention, "costs.retention", retention)
    if costs.staff is not None:
        yield from check_ranges(costs.staff, "costs.staff", [("fte", NOT_NEGATIVE)])


@dataclass(frozen=True, kw_only=True)
class EngineEnvironment:
    """One engine as it is installed on the machines of a run; never part of what is computed."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    python: str | None = None
    """Interpreter of the environment that holds it; the one that runs Charter unless given."""
    directory: str | None = None
    """Checkout whose scripts are run, of engines that are not a package (Megatron-LM, NeMo RL)."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its processes get."""


LEAST_EVERY_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Metering:
    """Sampling of processors, memory, disks, network and accelerators on every node of a run."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    every: Seconds = 10.0
    """Time between two samples; 0 samples nothing."""
    prometheus_port: Count | None = None
    """Serve the last sample of this machine at `http://127.0.0.1:PORT/metrics` while a run lasts."""
    power_usage_effectiveness: float = 1.0
    """What the data centre draws over what the machines draw; multiplies the energy that is reported."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Answers of the models in training to the same prompts at every checkpoint, for people to read.

    They change no bit of what is trained, and no hash covers them. A stage whose model is compiled draws none.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    count: Count = 20
    """Prompts; 0 draws none."""
    prompts: str | None = None
    """Data set of the prompts; unset, the first that an evaluation, PPO, a label or a critique stage reads."""
    max_new_tokens: Count = 64
    """Most tokens of an answer."""
    share: float = 0.01
    """Most of a stage's time that its answers may take; a short stage answers fewer prompts."""


def why_no_samples(*, is_compiled: bool) -> str:
    """Return the reason why a model in training answers no prompts; empty where it does.

    A model that is compiled for training would be compiled again.

    >>> why_no_samples(is_compiled=True)
    'its model is compiled'
    """
    return "its model is compiled" if is_compiled else ""


@dataclass(frozen=True, kw_only=True)
class IdlePolicy:
    """Conditions under which an allocation counts as idle, and the action then."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    window: Seconds = 1800.0
    """No progress for so long, and accelerators below `utilisation`, or no process at all, is idle."""
    utilisation: float = 0.05
    """Share of the time in which an accelerator did anything (SM activity), over all of an attempt's accelerators."""
    action: Literal["warn", "release"] = "warn"
    """`release`: the stage is asked to stop at a checkpoint and its machines are given back."""


def check_idle(idle: IdlePolicy) -> Iterator[Problem]:
    """Values of `idle:` outside their range: with 5 for 5 % every allocation would be idle, and might be released."""
    yield from check_ranges(idle, "idle", [("window", POSITIVE), ("utilisation", SHARE_BELOW_ONE)])


def check_metering(metering: Metering) -> Iterator[Problem]:
    """Values of `metering:` outside their range."""
    if metering.every < 0 or 0 < metering.every < LEAST_EVERY_SECONDS:
        message = f"must be 0 (off) or at least {LEAST_EVERY_SECONDS:g} s; found {metering.every:g}"
        yield Problem(message=message, path="metering.every")
    if metering.prometheus_port is not None and not 0 <= metering.prometheus_port < 65536:
        message = f"must be from 0 (any free one) to 65535; found {metering.prometheus_port}"
        yield Problem(message=message, path="metering.prometheus_port")
    if not 1.0 <= metering.power_usage_effectiveness <= 10.0:
        message = f"must be from 1 to 10; found {metering.power_usage_effectiveness:g}"
        yield Problem(message=message, path="metering.power_usage_effectiveness")


DETECTIONS = ("slurm", "ray", "kubernetes", "nccl", "watchdog", "agents")


def _detection(value: object) -> object:
    if isinstance(value, str) and value in DETECTIONS:
        return value
    try:
        return parse_seconds(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither {', '.join(DETECTIONS)} nor a time like 30m") from None


DetectionDelay = Annotated[
    Literal["slurm", "ray", "kubernetes", "nccl", "watchdog", "agents"] | float,
    Reads(_detection, {"anyOf": [{"enum": list(DETECTIONS)}, {"type": "number"}, {"type": "string"}]}),
]
"""Who notices a failure, or how long that takes: `slurm`, `30m`."""


@dataclass(frozen=True, kw_only=True)
class RiskSettings:
    """Failure rate of machines, the delay until a failure is noticed, and the restart of the job."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    failures_per_node_day: float | None = None
    """Unexpected interruptions per node and day; the fleet of the Llama 3 or the RSC-1 paper unless given."""
    software_failures_per_day: float | None = None
    """Crashes of code, memory and servers per day of a job, whatever its size; 1 (the Llama 3 run) unless given."""
    detection: DetectionDelay | None = None
    """Who notices a failure (`slurm`, `ray`, `kubernetes`, `nccl`, `watchdog`, `agents`), or the delay; by place and
    nodes unless given."""
    restart: Seconds | None = None
    """Rescheduling, loading and warm-up after a failure."""
    save_bandwidth: Bytes | None = None
    """Bytes per second that a node writes to checkpoint storage."""
    async_saves: bool = False
    """Only the copy to host memory blocks; the write goes on beside training."""
    notice: Seconds = 0.0
    """Warning before a preemption that is used to save once more (AWS gives 2m); 0: not used."""
    spot_mean_up: Seconds | None = None
    """Mean time that a spot pool keeps all machines of a job."""
    spot_availability: float | None = None
    """Share of time in which the pool has them."""
    spares: Literal["auto"] | int = "auto"
    """Own spare nodes: `auto` says how many pay and counts no wait for repairs; a number plans that wait."""
    repair_days: float = 3.0
    """Days until a failed node of one's own is back. Judgement."""
    out_of_memory: float = 0.1
    """Probability that the chosen layout does not fit, up to which it may be chosen: 0.5 takes estimates of memory as
    they are, less leaves room for their error."""


MOST_RISK = 0.5


def check_risk(risk: RiskSettings) -> Iterator[Problem]:
    """Values of `risk:` outside their range."""
    ranges = [
        ("failures_per_node_day", NOT_NEGATIVE),
        ("software_failures_per_day", NOT_NEGATIVE),
        ("restart", NOT_NEGATIVE),
        ("save_bandwidth", POSITIVE),
        ("notice", NOT_NEGATIVE),
        ("spot_mean_up", POSITIVE),
        ("spot_availability", SHARE_ABOVE_ZERO),
        ("repair_days", POSITIVE),
        ("out_of_memory", SHARE_ABOVE_ZERO),
    ]
    yield from check_ranges(risk, "risk", ranges)
    if isinstance(risk.spares, int) and not 0 <= risk.spares <= 100_000:
        yield Problem(message=f"must be auto or from 0 to 100,000; found {risk.spares}", path="risk.spares")
    if risk.out_of_memory > MOST_RISK:
        message = f"must be at most {MOST_RISK:g}, a layout that fits as often as not; found {risk.out_of_memory:g}"
        yield Problem(message=message, path="risk.out_of_memory")


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
