"""Assertions of the shared contracts are shown in full, as those of test modules are."""

import pytest

pytest.register_assert_rewrite("ledger_contract", "call_contract")
