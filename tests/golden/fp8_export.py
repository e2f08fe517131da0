"""The export of a 70B stage in fp8 to Megatron-LM; run as a script, it writes the golden files anew.

.venv/bin/python tests/golden/fp8_export.py
"""

import sys
from collections.abc import Mapping
from pathlib import Path

from charter.engines.project import load_project
from charter.report.handover import export_handover

FILES = Path(__file__).parent / "handover_fp8"
RECIPE = Path(__file__).parents[2] / "recipes" / "70b-on-64xh100"
STAGE, ENGINE = "helpful", "megatron"
NOT_GOLDEN = ("plan.json", "README.md")
"""Files of an export that follow prices and estimates."""


def export() -> Mapping[str, str]:
    """Name -> text of what follows only the renderer and the layout."""
    project = load_project(RECIPE, overrides=[f"pipeline.{STAGE}.dtype=fp8"])
    files = export_handover(project, RECIPE, STAGE, ENGINE).files
    return {name: text for name, text in files.items() if name not in NOT_GOLDEN}


def main() -> int:
    """Write every golden file."""
    FILES.mkdir(exist_ok=True)
    for name, text in export().items():
        (FILES / name).write_text(text, encoding="utf-8")
        print(f"wrote {FILES / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
