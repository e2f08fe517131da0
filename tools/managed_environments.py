"""Make Python environments with the clients of managed services, for tests/engines; again it only looks.

python tools/managed_environments.py      prints the variables that name them
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CHARTER_KFP_PYTHON": ("kfp==2.17.0", "kfp-kubernetes==2.17.0"),
        "CHARTER_VERTEX_PYTHON": ("google-cloud-aiplatform==2.7.0",),
        "CHARTER_AZURE_ML_PYTHON": ("azure-ai-ml==1.35.2",),
    }
)
"""One each: they disagree about the packages that they share."""


def environment_python(variable: str, root: Path = ROOT) -> Path:
    """The Python of one of them, made if need be."""
    wanted = ENVIRONMENTS[variable]
    folder = root / f".venv-{variable.removeprefix('CHARTER_').removesuffix('_PYTHON').lower().replace('_', '-')}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists() or ready.read_text(encoding="utf-8") != "\n".join(wanted):
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "-q", *wanted],
        ):
            print("$", *command, file=sys.stderr, flush=True)
            subprocess.run(command, check=True, stdout=sys.stderr)
        ready.write_text("\n".join(wanted), encoding="utf-8")
    return python


if __name__ == "__main__":
    for name in ENVIRONMENTS:
        print(f"export {name}={environment_python(name)}")
