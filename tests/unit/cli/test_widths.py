"""Tables on narrow terminals: folded, never cut."""

import pytest
from typer.testing import CliRunner

from charter.cli.main import app

SAID = [
    ("catalog", "gpus", "list"),
    ("catalog", "prices", "list", "H100"),
    ("plan", "simulate", "--gpus", "1024", "--work", "10d", "--runs", "50"),
    ("plan", "scale", "plan", "--budget", "1M", "--mfu", "40%"),
    ("cost", "buy-or-rent", "H100"),
]


@pytest.mark.parametrize("columns", [80, 100, 140])
@pytest.mark.parametrize("arguments", SAID, ids=lambda arguments: arguments[0])
def test_nothing_is_cut_and_no_line_is_longer_than_the_terminal(arguments, columns):
    shown = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, arguments, catch_exceptions=False).stdout
    assert shown
    assert "…" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns
