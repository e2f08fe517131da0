"""Objects for Kubernetes of the jobs in `kubernetes_jobs`; run as a script, it writes them anew.

PYTHONPATH=tests/cases .venv/bin/python tests/golden/kubernetes_manifests.py
"""

import sys
from pathlib import Path

from kubernetes_jobs import CASES

from charter.launch.kubernetes.scheduler import render

TEXTS = Path(__file__).parent / "launch" / "kubernetes"


def main() -> int:
    """Write every golden text."""
    TEXTS.mkdir(parents=True, exist_ok=True)
    for name, (job, settings) in CASES.items():
        (TEXTS / f"{name}.yaml").write_text(render(job, settings), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
