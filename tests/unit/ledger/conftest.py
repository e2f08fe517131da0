"""Assertions of the shared contracts are shown in full, as those of test modules are."""

import pytest

pytest.register_assert_rewrite(
    "ledger_contract", "sums_contract", "stored_contract", "call_contract", "take_back_contract"
)
