from types import SimpleNamespace

import pytest

from charter.plan.option import loses_to


def option(seconds, usd):
    return SimpleNamespace(seconds=SimpleNamespace(p50=seconds), usd=usd and SimpleNamespace(p50=usd))


@pytest.mark.parametrize(
    ("usd", "told"),
    [(120, "dearer: "), (99, "slower for nearly the same money: "), (35, "slower: "), (None, "slower: ")],
)
def test_a_cheaper_option_is_not_told_to_cost_nearly_the_same(usd, told):
    assert loses_to(option(7200, usd), option(3600, 100)).startswith(told)
