"""All pages, in the order of the navigation."""

from starlette.routing import BaseRoute

from charter.dashboard.page import Page
from charter.dashboard.pages import accuracy, approve, compare, cost, data, home, plan, records, run, samples, stage

PAGES: tuple[Page, ...] = (
    home.PAGE,
    run.PAGE,
    run.ACTIONS,
    run.FILES,
    stage.PAGE,
    cost.PAGE,
    plan.PAGE,
    data.PAGE,
    samples.PAGE,
    approve.PAGE,
    records.PAGE,
    accuracy.PAGE,
    compare.SWEEPS,
    compare.PAGE,
)
POSTS: tuple[BaseRoute, ...] = (*plan.ROUTES, *data.ROUTES, *accuracy.ROUTES, *compare.ROUTES)
"""Addresses that answer forms: behind the guard, so with session, own origin and CSRF token. They change no file."""
