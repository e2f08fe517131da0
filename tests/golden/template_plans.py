"""Plans of the shipped templates on one fixed machine; run as a script, it writes them anew.

    .venv/bin/python tests/golden/template_plans.py

Look at the difference before committing it: a golden plan changes only when an estimate, a price or a template does.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from charter.engines.project import load_project
from charter.plan.machine import Machine
from charter.plan.project_plan import plan_project
from charter.templates.shipped import TEMPLATES, find_template, write_template

PLANS = Path(__file__).parent / "plans"
NAMES = tuple(template.name for template in TEMPLATES)
MACHINE = Machine(
    name="fixed machine of the golden plans",
    cores=2,
    memory_bytes=24e9,
    flops_per_second=190e9,
    memory_bytes_per_second=38e9,
    bf16_speedup=3.0,
)


def plan_of(name: str, directory: Path) -> dict[str, Any]:
    """The plan of a template that is written into `directory`."""
    write_template(find_template(name), directory, force=False)
    return plan_project(load_project(directory), directory, machine=MACHINE).to_json()


def main() -> int:
    """Write every golden plan."""
    PLANS.mkdir(exist_ok=True)
    for name in NAMES:
        with tempfile.TemporaryDirectory() as temporary:
            plan = plan_of(name, Path(temporary) / name)
        (PLANS / f"{name}.json").write_text(json.dumps(plan, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"wrote {PLANS / name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
