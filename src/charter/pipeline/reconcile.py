"""Makes the bill of a run equal to a provider's log: reads all calls of the run, compares, corrects."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from charter.artifacts.lease import Lease
from charter.errors import UsageError
from charter.ledger import CallBooks, Ledger
from charter.ledger.call import Call, CallSums
from charter.ledger.call_books import CALLS_FILE
from charter.ledger.provider_log import BilledRow, Price
from charter.ledger.reconcile import Reconciled, reconcile
from charter.ledger.store import ledger_place
from charter.ledger.usage import ApiUsage, usage_sums
from charter.pipeline.paths import run_dir, stages_dir
from charter.spec.project import Project, Serving


@dataclass(frozen=True, kw_only=True)
class BillReconciled:
    """A run's calls to some servers, compared with the log of who runs them."""

    endpoints: tuple[str, ...]
    before: CallSums
    after: CallSums
    found: Reconciled


def reconcile_run(
    project: Project, root: Path, rows: Sequence[BilledRow], *, source: str, endpoints: Sequence[str], dry_run: bool
) -> BillReconciled:
    """Compare the calls to `endpoints` (all that were called when empty) with a log that should have all of them.

    Nobody may be calling meanwhile, so the run's lock is held.
    """
    where = run_dir(root.resolve())
    with Lease(where, lock_name="run.lock", what="the project"), ExitStack() as stack:
        places: list[str | Path] = [*_files(root)] if project.storage.ledger is None else [project.storage.ledger]
        books = [stack.enter_context(CallBooks.open(place)) for place in places]
        run = project.name if project.storage.ledger else None
        before = _usage(books, run)
        chosen = _chosen(before, endpoints)
        by_call: dict[str, tuple[CallBooks, int]] = {}
        ids = {row.request_id for row in rows}
        found = reconcile(
            _calls(books, run, chosen, by_call), rows, price=_prices(project), at=time.time(), source=source
        )
        if not ids & by_call.keys():
            raise UsageError(
                f"none of the {len(rows)} requests in {source} is a call of this run to {', '.join(chosen)}\n"
                "  give the log of the provider that was called, with the request ids that Charter sent (X-Request-Id)"
            )
        if found.unpriced:
            raise UsageError(
                f"{found.unpriced} requests in {source} have tokens but no cost, and charter.yaml has no price for "
                "their server\n  give serving.NAME.usd_per_million_input_tokens and _output_tokens, or a log with costs"
            )
        if not dry_run:
            _correct(found, by_call)
            with Ledger.open(ledger_place(where, project.storage.ledger)) as ledger:
                ledger.record_usage(_usage(books, run))
        return BillReconciled(
            endpoints=chosen, before=_sums(before, chosen), after=_sums(_usage(books, run), chosen), found=found
        )


def _files(root: Path) -> Iterator[Path]:
    yield from sorted(stages_dir(root.resolve()).glob(f"*/{CALLS_FILE}"))


def _usage(books: Iterable[CallBooks], run: str | None) -> tuple[ApiUsage, ...]:
    return tuple(item for book in books for item in book.usage(run=run))


def _sums(usage: Iterable[ApiUsage], endpoints: Sequence[str]) -> CallSums:
    return usage_sums(item for item in usage if item.route.endpoint in endpoints)


def _chosen(usage: Sequence[ApiUsage], endpoints: Sequence[str]) -> tuple[str, ...]:
    called = sorted({item.route.endpoint for item in usage})
    if not called:
        raise UsageError("this run has called no server, so there is nothing to reconcile")
    if unknown := [name for name in endpoints if name not in called]:
        raise UsageError(f"this run has not called {unknown[0]}; it has called {', '.join(called)}")
    if not endpoints and len(called) > 1:
        raise UsageError(
            f"this run has called {len(called)} servers: {', '.join(called)}\n"
            "  say with --endpoint (repeatable) whose log it is: what a log lacks counts as not billed"
        )
    return tuple(endpoints) or tuple(called)


def _calls(
    books: Sequence[CallBooks], run: str | None, endpoints: Sequence[str], by_call: dict[str, tuple[CallBooks, int]]
) -> Iterator[Call]:
    for book in books:
        for scope, call in book.calls(run=run):
            if call.endpoint in endpoints:
                by_call[call.call_id] = (book, scope)
                yield call


def _correct(found: Reconciled, by_call: dict[str, tuple[CallBooks, int]]) -> None:
    for book in {id(item[0]): item[0] for item in by_call.values()}.values():
        mine = [
            (by_call[call.call_id][1], call, settlement)
            for call, settlement in found.corrections
            if by_call[call.call_id][0] is book
        ]
        if mine:
            book.correct(mine)


def _prices(project: Project) -> Price:
    """Prices of the project's servers, by address."""
    servings = {
        address.rstrip("/"): serving
        for serving in project.serving.values()
        for address in (serving.endpoint, *serving.also_endpoints)
        if address is not None
    }

    def price(endpoint: str, prompt: int, cached: int, completion: int) -> Decimal | None:
        serving = servings.get(endpoint.rstrip("/"))
        return None if serving is None else _micro_usd(serving, prompt, cached, completion)

    return price


def _micro_usd(serving: Serving, prompt: int, cached: int, completion: int) -> Decimal | None:
    """Tokens by kind times their prices; x USD per million tokens is x micro-USD per token."""
    fresh, out = serving.usd_per_million_input_tokens, serving.usd_per_million_output_tokens
    if fresh is None or out is None:
        return None
    again = serving.cached_input_usd_per_million_tokens
    kinds = ((prompt - cached, fresh), (cached, fresh if again is None else again), (completion, out))
    return sum((count * Decimal(str(price)) for count, price in kinds), Decimal(0))
