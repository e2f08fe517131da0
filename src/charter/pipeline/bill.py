"""A provider's bill read into the ledger of a run, with every difference explained."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from charter.ledger import Ledger
from charter.ledger.bill import BillFinding, compare_bill
from charter.ledger.bill_file import Bill, read_bill
from charter.ledger.store import ledger_place
from charter.pipeline.paths import run_dir
from charter.spec.project import Project


@dataclass(frozen=True, kw_only=True)
class BillImported:
    """What came of a bill."""

    bill: Bill
    findings: tuple[BillFinding, ...]
    stored: bool
    """False with `--dry-run`, and for a file that is in the ledger already."""

    @property
    def ledger_usd(self) -> Decimal:
        """What the ledger has for this run."""
        return sum((item.ledger_usd or Decimal(0) for item in self.findings), Decimal(0))

    @property
    def agrees(self) -> bool:
        """Whether every line and every attempt is equal to the second and the cent."""
        return all(item.kind == "equal" for item in self.findings)


def import_bill(
    project: Project, root: Path, path: Path, *, dry_run: bool = False, providers: Sequence[str] = ()
) -> BillImported:
    """Compare a bill with the attempts of a run, and keep both; what the ledger says of itself stays as it is.

    `providers` narrows the ledger down to attempts on these: a bill of one provider says nothing of another's.
    """
    bill = read_bill(path)
    place = ledger_place(run_dir(root.resolve()), project.storage.ledger)
    with Ledger.open(place, create=False, check_whole=True) as ledger:
        accounted = [
            item
            for item in ledger.accounted(run=project.name)
            if item.attempt.outcome != "running" and (not providers or item.attempt.infra in providers)
        ]
        findings = compare_bill(bill.lines, accounted)
        stored = not dry_run and ledger.record_bill(bill, findings, run=project.name, at=time.time())
    return BillImported(bill=bill, findings=findings, stored=stored)
