import json

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import UsageError

run = CliRunner().invoke


def ok(*args):
    result = run(app, ["cost", "buy-or-rent", *args])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def test_the_table_says_from_which_use_to_buy():
    printed = ok("H100", "--rent", "3.99", "--rent", "1.70", "--utilisation", "0.6")
    assert "$2.12 per available hour" in printed
    rows = {line.split()[1]: line.split() for line in printed.splitlines() if line.startswith("given")}
    assert rows["3.99"][2] == "53%"
    assert rows["3.99"][-1] == "buy"
    assert rows["1.70"][2:] == ["never", "never", "rent"]


def test_without_a_rent_the_bundled_offers_are_compared():
    found = json.loads(ok("B200", "--json"))
    assert found["accelerator"] == "B200-SXM-180GB"
    rents = {round(row["rent_usd_per_hour"], 2): row for row in found["rents"]}
    # Reference figures for B200: 62 % at 4.89, 45 % at 6.69, 21 % at 14.24.
    for rent, share in ((4.89, 0.62), (6.69, 0.45), (14.24, 0.21)):
        assert rents[rent]["break_even_utilisation"] == pytest.approx(share, abs=0.0055)


def test_infinite_months_are_null_in_json():
    row = json.loads(ok("H100", "--rent", "1.7", "--json"))["rents"][0]
    assert row["crossover_months"] is None
    assert row["owning_is_cheaper"] is False


def test_own_quotes_stand_in_for_an_accelerator_without_a_table():
    assert "buy" in ok("MI300X", "--rent", "9", "--server-usd", "250000", "--power-kw", "9")
    result = run(app, ["cost", "buy-or-rent", "MI300X", "--rent", "3"])
    assert isinstance(result.exception, UsageError)
    assert "--server-usd" in str(result.exception)
