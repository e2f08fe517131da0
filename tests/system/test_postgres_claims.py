"""Runs that share a ledger on a server: what one may still spend on calls, no other may."""

import pytest

from charter.ledger import Ledger
from charter.ledger.sum_rows import CLAIM_SECONDS
from charter.ledger.sums import Claim

pytestmark = pytest.mark.smoke
NOW = 1_000.0


@pytest.fixture
def where(postgres):
    return postgres.new_database()


def claim(where, run, micro_usd, *, now=NOW, is_asking=True):
    """What a run sees of others when it puts its claim."""
    with Ledger.open(where) as ledger, ledger.claims(run=run, now=now) as claims:
        claims.put(Claim(run=run, owner="ann", micro_usd=micro_usd), is_asking=is_asking)
        return None if claims.of_others is None else [(it.run, it.owner, it.micro_usd) for it in claims.of_others]


def test_a_run_sees_the_claims_of_others_and_not_its_own(where):
    assert claim(where, "a", 500) == []
    assert claim(where, "b", 300) == [("a", "ann", 500)]
    assert claim(where, "a", 200) == [("b", "ann", 300)]
    assert claim(where, "b", 0, is_asking=False) == [("a", "ann", 200)]
    assert claim(where, "a", 200) == []


def test_a_claim_of_a_run_that_is_gone_ends(where):
    claim(where, "a", 500)
    assert claim(where, "b", 1, now=NOW + CLAIM_SECONDS - 1) == [("a", "ann", 500)]
    assert claim(where, "b", 1, now=NOW + CLAIM_SECONDS + 1) == []


def test_nobody_decides_while_another_run_does(where):
    with Ledger.open(where) as ledger, ledger.claims(run="a", now=NOW) as claims:
        claims.put(Claim(run="a", micro_usd=7), is_asking=True)
        assert claim(where, "b", 5) is None
    assert claim(where, "b", 5) == [("a", "", 7)]


def test_a_database_of_before_gets_the_table(where):
    with Ledger.open(where) as ledger:
        with ledger._database.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE spending_claims")
        assert claim(where, "a", 1) == []
