"""Which optional packages a project needs, and whether they are there."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from charter.pipeline.doctor.check import Check
from charter.spec.project import Project
from charter.spec.stage import is_hosted

PACKAGES = {
    "adapters": ("peft",),
    "data": ("pyarrow",),
    "store": ("s3fs",),
    "postgres": ("psycopg",),
    "ray": ("ray",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard",),
    "meter": ("pynvml", "prometheus_client"),
}
"""Extra of this package to the modules that it brings."""


def examine_extras(project: Project, root: Path, engine: str) -> tuple[Check, ...]:
    """One check for every extra that the project asks for."""
    checks = []
    for extra, why in sorted(set(needed_extras(project, root, engine))):
        lacking = [name for name in PACKAGES[extra] if find_spec(name) is None]
        checks.append(
            Check(
                group="packages",
                name=f"extra {extra}",
                ok=not lacking,
                found=f"{why}; {f'{lacking[0]} is not installed' if lacking else 'installed'}",
                advice=f'pip install "charter-plan[{extra}]"',
            )
        )
    return tuple(checks)


def needed_extras(project: Project, root: Path, engine: str) -> Iterator[tuple[str, str]]:
    """Extras that a project needs on an engine, each with the reason."""
    if engine == "ray":
        yield "ray", "runs on Ray"
    if (project.storage.artifacts or "").startswith("s3://"):
        yield "store", "storage.artifacts is a bucket"
    if (project.storage.ledger or "").startswith("postgresql"):
        yield "postgres", "storage.ledger is a PostgreSQL server"
    if any(getattr(stage, "adapter", None) and not is_hosted(stage) for stage in project.pipeline.values()):
        yield "adapters", "a stage trains an adapter"
    if any(item.format in ("parquet", "hf") or item.path.endswith(".parquet") for item in project.data.values()):
        yield "data", "a data set is Parquet or Arrow"
    if project.metering.prometheus_port is not None:
        yield "meter", "metering.prometheus_port is set"
    for entry in project.tracking:
        name = entry if isinstance(entry, str) else getattr(entry, "kind", "")
        if name in PACKAGES:
            yield name, f"tracking: {name}"
