"""Draw the pictures of the README: `pictures.py DEMO_DIR`, where DEMO_DIR holds a finished `make demo`.

The pictures are what the terminal shows, as SVG; nothing is retouched.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from charter.engines.project import load_project
from charter.plan.project_plan import plan_project
from charter.report.plan_table import plan_table
from charter.report.results import print_summary
from charter.templates.shipped import find_template, write_template

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"


def main(demo: Path) -> None:
    """Write `docs/images/demo.svg` and `plan.svg`."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with console(118) as shown:
        print_summary(demo, shown)
        shown.save_svg(str(IMAGES / "demo.svg"), title="make demo")
    draw_plan(IMAGES / "plan.svg")


def draw_plan(picture: Path) -> None:
    """The plan of the cai-8b template, as of today."""
    today = datetime.now(tz=UTC).date()
    with tempfile.TemporaryDirectory() as directory, console(140) as shown:
        write_template(find_template("cai-8b"), Path(directory))
        plan = plan_project(load_project(Path(directory)), Path(directory), today=today)
        shown.print(plan_table(plan, today=today))
        shown.save_svg(str(picture), title="charter plan --template cai-8b")


@contextmanager
def console(width: int) -> Iterator[Console]:
    """A terminal that records and shows nothing."""
    with open("/dev/null", "w") as nowhere:
        yield Console(record=True, width=width, file=nowhere, force_terminal=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
