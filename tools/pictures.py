"""Draw the pictures of the README: `pictures.py DEMO_DIR`, where DEMO_DIR holds a finished `make demo`.

The pictures are what the terminal shows, as SVG; nothing is retouched.
"""

import sys
import tempfile
from pathlib import Path

from rich.console import Console

from charter.plan.project_plan import plan_project
from charter.report.plan_table import plan_table
from charter.report.results import print_summary
from charter.spec.load import load_project
from charter.templates.shipped import find_template, write_template

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"


def main(demo: Path) -> None:
    """Write `docs/images/demo.svg` and `plan.svg`."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=118, file=nowhere, force_terminal=True)
        print_summary(demo, console)
        console.save_svg(str(IMAGES / "demo.svg"), title="make demo")
        console = Console(record=True, width=126, file=nowhere, force_terminal=True)
        with tempfile.TemporaryDirectory() as directory:
            write_template(find_template("cai-8b"), Path(directory))
            plan = plan_project(load_project(Path(directory)), Path(directory))
        console.print(plan_table(plan))
        console.save_svg(str(IMAGES / "plan.svg"), title="charter plan --template cai-8b")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
