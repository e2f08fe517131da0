"""Engines of other projects as they are installed: their interpreters, and the versions that bits depend on."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from charter.artifacts.job import Job
from charter.engines import handover_engine
from charter.engines.common.adapter import EngineAdapter
from charter.errors import MissingExtraError
from charter.spec.project import Project
from charter.spec.sections import EngineEnvironment
from charter.spec.stage_base import Engine, Stage

ENGINE = "engine"
"""Frozen value of a stage that another engine computes: its name."""
HOSTED_DEGREES: Mapping[str, int] = MappingProxyType({"pipeline": 1, "expert": 1, "interleave": 1})
"""What the native engine has no more than one of, with the value of a stage that does not say it."""
PEFT = "peft"
"""Computes only where there is an adapter."""
ABSENT = "absent"
_ASK_SECONDS = 60.0
_ASK = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = "absent"
print(json.dumps(found))
"""


def engines_at(engines: Mapping[Engine, EngineEnvironment], root: Path) -> dict[Engine, EngineEnvironment]:
    """The same, with paths that were written relative to the project's directory made absolute."""
    return {
        name: replace(item, python=_absolute(item.python, root), directory=_absolute(item.directory, root))
        for name, item in engines.items()
    }


def interpreter_of(engines: Mapping[Any, EngineEnvironment], name: Engine) -> str:
    """The interpreter that an engine is started with."""
    environment = engines.get(name)
    return environment.python if environment is not None and environment.python else sys.executable


def adapter_of(job: Job) -> EngineAdapter:
    """Return the adapter of the engine that computes a job; only that engine's is imported."""
    engine = handover_engine(job.spec.engine)
    assert engine.code is not None
    return engine.code().adapter(job, interpreter_of(job.engines, engine.name))


def stage_versions(engines: Mapping[Engine, EngineEnvironment], stage: Stage) -> Mapping[str, str]:
    """The versions of what computes a stage, as its engine's interpreter has them; `absent` for what it lacks."""
    engine = handover_engine(stage.engine)
    adapters = (PEFT,) if engine.has_peft and getattr(stage, "adapter", None) is not None else ()
    python, beside = interpreter_of(engines, engine.name), (*engine.beside, *adapters)
    if not engine.checkout:
        return versions_at(python, (engine.package, *beside))
    return {engine.package: commit_of(checkout_of(engines, engine.name)), **versions_at(python, beside)}


def checkout_of(engines: Mapping[Any, EngineEnvironment], name: Engine) -> str:
    """The checkout of an engine whose scripts are run from one; empty where the file names none."""
    environment = engines.get(name)
    return (environment.directory or "") if environment is not None else ""


@functools.cache
def commit_of(directory: str) -> str:
    """Return the commit of a checkout, `unknown` of a directory without one, `absent` where there is no directory."""
    if not directory or not os.path.isdir(directory):
        return ABSENT
    try:
        command = ["git", "-C", directory, "rev-parse", "HEAD"]
        answer = subprocess.run(command, capture_output=True, timeout=_ASK_SECONDS, check=True, text=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


@functools.cache
def versions_at(python: str, packages: tuple[str, ...]) -> Mapping[str, str]:
    """The installed versions of some packages, as an interpreter has them."""
    try:
        answer = subprocess.run(
            [python, "-I", "-c", _ASK, *packages], capture_output=True, timeout=_ASK_SECONDS, check=True
        )
        return MappingProxyType(json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise MissingExtraError(
            f"{python} cannot be asked for {packages[0]}: {error}\n  give the interpreter of the environment that "
            "holds it: `engines: {NAME: {python: PATH}}` in charter.yaml"
        ) from None


def hosted_values(project: Project, stage: Stage) -> dict[str, str | int]:
    """Return the values that another engine's bits depend on beside its processes."""
    values = {name: getattr(stage.resources, name, None) for name in HOSTED_DEGREES}
    degrees = {
        name: int(value) for name, value in values.items() if value is not None and value != HOSTED_DEGREES[name]
    }
    return {ENGINE: stage.engine, **degrees, **stage_versions(project.engines, stage)}


def _absolute(written: str | None, root: Path) -> str | None:
    """A path below `root`; not resolved, since the interpreter of an environment is a link out of it.

    >>> _absolute(".venv/bin/python", Path("/project")), _absolute(None, Path("/project"))
    ('/project/.venv/bin/python', None)
    """
    return None if written is None else os.path.normpath(root / Path(written).expanduser())
