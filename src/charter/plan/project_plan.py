"""Plan a project as it lies on disk: read the facts, probe the machine if it matters, call `make_plan`."""

from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

from charter.catalog.price_book import PriceBook, read_offers, read_price_book
from charter.physics.fitted import load
from charter.plan.inputs import read_inputs
from charter.plan.knowledge import Knowledge
from charter.plan.machine import Machine, probe_machine
from charter.plan.make import make_plan
from charter.plan.offers import may_run_here
from charter.plan.plan import Plan, stale_prices
from charter.spec.project import Project

CALIBRATION_FILE = "calibration.json"
PRICES_FILE = "prices.csv"


def plan_project(
    project: Project,
    directory: Path,
    *,
    machine: Machine | None = None,
    knowledge: Knowledge | None = None,
    prices: PriceBook | None = None,
    today: date | None = None,
    alternatives: int = 0,
    start: datetime | None = None,
) -> Plan:
    """The plan of `project`, whose files lie in `directory`; `machine` replaces the probe of this one.

    A `calibration.json` in the directory (`charter validate calibrate -C`) is used unless `knowledge` is given, a
    `prices.csv` (`charter catalog prices import`) on top of the bundled price book unless `prices` is. With `today`,
    contracts that do not hold are left out and old prices are among the assumptions. `alternatives` and `start`: see
    `make_plan`.
    """
    inputs = read_inputs(project, directory)
    if machine is None and may_run_here(project):
        machine = probe_machine()
    if knowledge is None and (directory / CALIBRATION_FILE).is_file():
        knowledge = Knowledge.of(load(directory / CALIBRATION_FILE))
    book = prices or price_book(directory, today)
    plan = make_plan(
        project,
        architectures=inputs.architectures,
        data_facts=inputs.facts,
        machine=machine,
        knowledge=knowledge,
        prices=book,
        alternatives=alternatives,
        start=start,
    )
    plan = replace(plan, assumptions=(*plan.assumptions, *inputs.assumptions))
    if today is None:
        return plan
    return replace(plan, assumptions=(*plan.assumptions, *stale_prices(plan, book, today)))


def price_book(directory: Path, today: date | None) -> PriceBook:
    """Return the prices of a project: the bundled ones with those of its own file, contracts that have ended left out.

    Without `today` all of them count.
    """
    file = directory / PRICES_FILE
    if today is not None or not file.is_file():
        return read_price_book(file, today=today or date.max)
    return PriceBook.bundled().with_rows(read_offers(file.read_text(encoding="utf-8"), file.name), source=file.name)
