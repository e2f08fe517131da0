"""All charges of a run as rows of a FOCUS dataset: attempts, calls, storage, fees, with what bills say of them."""

from decimal import Decimal
from pathlib import Path

from charter.ledger import Ledger
from charter.ledger.focus import Account, Row, rows_of_attempts, rows_of_other, rows_of_usage
from charter.ledger.store import has_ledger, ledger_place
from charter.ledger.stored import OtherCharge, charges_by_month
from charter.report.read import read_run
from charter.run.call_costs import billed_to
from charter.run.paths import run_dir
from charter.spec.project import Project


def focus_dataset(project: Project | None, root: Path) -> list[Row]:
    """The rows in the order of the ledger. Raises UsageError where there is no run, DataError where one is damaged.

    Without a project (its file is gone, or no longer loads) the run's own files say what they can.
    """
    run = read_run(root, with_metrics=False, check_calls=True)
    account = Account(identifier=run.project)
    place = ledger_place(run_dir(root), project.storage.ledger if project else None)
    billed: dict[int, tuple[str, Decimal]] = {}
    other: tuple[OtherCharge, ...] = ()
    if has_ledger(place):
        with Ledger.open(place, create=False) as ledger:
            billed, other = ledger.billed(run=run.project), ledger.other_charges(run=run.project)
            other += tuple(charges_by_month(ledger.stored(run=run.project)))
    return [
        *rows_of_attempts(run.accounted, account, billed=billed),
        *rows_of_usage(billed_to(project, run.usage) if project else run.usage, account),
        *rows_of_other(other, account),
    ]
