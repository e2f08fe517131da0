"""A project on disk, and a browser's client of a dashboard that shows it."""

import os

import pytest
from dashboard_case import lively
from starlette.testclient import TestClient

from charter.dashboard.app import build_app
from charter.dashboard.reading import key_of
from charter.dashboard.site import Settings

TOKEN = "correct-horse-battery-staple-0123456789"
PORT = 8765
HOME = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def case(tmp_path):
    """A run in the middle, whose running stage is this process."""
    return lively(tmp_path / "work" / "demo", pid=os.getpid())


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "work").mkdir(exist_ok=True)
    return Settings(roots=(tmp_path / "work",), token=TOKEN, port=PORT)


@pytest.fixture
def stranger(settings):
    """A client that has not signed in."""
    with TestClient(build_app(settings, PORT), base_url=HOME, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(stranger):
    """A client with a session."""
    assert stranger.get("/", params={"token": TOKEN}).status_code == 200
    return stranger


@pytest.fixture
def at(case):
    """The address of a page of the project: `at("cost")`."""
    key = key_of(case.root.resolve())
    return lambda path="": f"/p/{key}/{path}".rstrip("/")
