"""One stage, and one hosted model, as a service is asked for them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from charter.errors import UsageError
from charter.spec.project import Project


@dataclass(frozen=True, kw_only=True)
class ServiceInstance:
    """One instance of a service."""

    instance_type: str
    """Empty where the service chooses it."""
    accelerator: str = ""
    """Catalog name; empty for none."""
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class RenderedTask:
    """One stage on one machine."""

    stage: str
    name: str
    """Of letters, digits and hyphens; the project's and the stage's."""
    after: tuple[str, ...]
    """Stages that must be done before."""
    image: str
    """With Charter in it; empty where another section of the file than that of managed services says it."""
    machine: ServiceInstance
    environment: Mapping[str, str]
    tags: Mapping[str, str]
    longest_seconds: int
    use_spot: bool
    words: tuple[str, ...] = ()
    """What else the command line of the run says: overrides, `--anyway`."""

    def command(self, *where: str) -> tuple[str, ...]:
        """Run or resume the stage in the project that `where` says; what it reads is done already, and skipped."""
        return ("charter", "run", *where, "--only", self.stage, "--yes", *self.words)


@dataclass(frozen=True, kw_only=True)
class HostedModel:
    """One model behind one endpoint, served in OpenAI's protocol."""

    name: str
    served_as: str
    """Its name in requests."""
    source: str
    """A Hugging Face name, or the stage's where `weights` says where they lie."""
    weights: str | None
    """Address of exported weights; None for a public model."""
    image: str
    machine: ServiceInstance
    tags: Mapping[str, str]


def needed(project: Project, name: str, service: str) -> str:
    """Return a setting without which a managed service cannot be asked."""
    value: str | None = getattr(project.launch.managed, name)
    if not value:
        raise UsageError(f"{service} needs launch.managed.{name}\n  say it in charter.yaml")
    return value


def checked_address(where: str, prefix: str, refusal: str, example: str) -> str:
    """Return an address that begins as the service wants it; any other is refused, with what to say instead."""
    if not where.startswith(prefix):
        raise UsageError(f"{refusal}, not from {where!r}\n  launch.managed.{example}")
    return where


def json_text(body: Any) -> str:
    """Return a request as the text of its file."""
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"
