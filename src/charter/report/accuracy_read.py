"""Reading what estimate against actual is made from: the run, the paces in use, the paces that its steps show."""

from pathlib import Path

from charter.engines.project import load_project
from charter.errors import CharterError
from charter.physics.fitted import Pace, load
from charter.plan.project_plan import CALIBRATION_FILE
from charter.report.estimate_actual import Accuracy, accuracy
from charter.report.overview import overview
from charter.report.read import read_run
from charter.run.planned import measured_paces


def read_accuracy(root: Path) -> Accuracy:
    """The run in a project directory beside its plan; UsageError where there is neither."""
    run = read_run(root)
    return accuracy(run, overview(run), used=_used(root), shown=_shown(root))


def _used(root: Path) -> tuple[Pace, ...]:
    """The paces of the project's own calibration, which its next plan uses."""
    path = root / CALIBRATION_FILE
    return load(path).paces if path.is_file() else ()


def _shown(root: Path) -> tuple[Pace, ...]:
    """Return the calibration that this run would store; nothing where the project can no longer be planned."""
    try:
        return measured_paces(load_project(root), root)
    except CharterError:
        return ()
