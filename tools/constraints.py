"""Print constraints.txt: what Charter needs, directly or not, at the versions that are installed."""

import re
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
HEAD = """\
# The versions that CI uses, and that `make demo` and `make test` install. pyproject.toml says what Charter
# accepts; this file says what was tested. Regenerate after a deliberate upgrade: `make constraints`.
# tools/setup.sh decides which build of torch is installed (CPU, or the default one).
"""


def normal(name: str) -> str:
    """A package's name as indexes compare it (PEP 503).

    >>> normal("Typing_Extensions")
    'typing-extensions'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> list[Requirement]:
    """The requirements in pyproject.toml: the core, every extra, and the build backend."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = pyproject["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    return [Requirement(line) for line in (*project["dependencies"], *extras, *pyproject["build-system"]["requires"])]


def closure() -> dict[str, Distribution]:
    """The installed packages that the declared ones reach."""
    installed = {normal(package.name): package for package in distributions()}
    reached: dict[str, Distribution] = {}
    waiting = declared()
    while waiting:
        wanted = waiting.pop()
        name = normal(wanted.name)
        if name in reached or name not in installed:
            continue
        reached[name] = installed[name]
        for line in installed[name].requires or ():
            needed = Requirement(line)
            extras = ("", *wanted.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return reached


def main() -> None:
    """Print the file; an extra that is not installed here (verifiers) keeps the pins that the file has."""
    installed = {normal(package.name) for package in distributions()}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    before = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {name: version for name, version in before.items() if normal(name) not in installed}
    # `+cpu` names a build, not a version: any build of the version will do.
    pins |= {name: package.version.split("+")[0] for name, package in closure().items()}
    print(HEAD, end="")
    for name, version in sorted(pins.items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()
