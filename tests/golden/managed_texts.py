"""Texts for managed services and pipelines of the project in `managed_case`; run as a script, it writes them anew.

PYTHONPATH=tests/cases .venv/bin/python tests/golden/managed_texts.py
"""

import sys
import tempfile
from pathlib import Path

from managed_case import project_on

from charter.launch.rendered import TARGETS, printed, texts_for

TEXTS = Path(__file__).parent / "launch" / "managed"


def main() -> int:
    """Write every golden text."""
    TEXTS.mkdir(parents=True, exist_ok=True)
    for service in TARGETS.keys() - {"skypilot"}:
        with tempfile.TemporaryDirectory() as directory:
            text = printed(texts_for(project_on(service, Path(directory)), service))
        (TEXTS / f"{service}.txt").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
