"""Routed experts that are spread already are not divided by the whole group again."""

import pytest

from charter.catalog import models
from charter.physics.columns import Layouts
from charter.physics.memory import training_memory
from charter.physics.memory_shape import frozen_parameters, rank_parameters
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage

MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture


@pytest.mark.parametrize("bits", [16, 4])
def test_the_frozen_base_of_experts_takes_the_same_bytes_however_it_is_sharded(bits):
    def base(expert: int) -> float:
        layout = Layout(data=8, expert=expert, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)
        terms = training_memory(MIXTRAL, layout, seq_len=2048, adapter=Adapter(rank=16, base_bits=bits)).terms
        return next(term.value for term in terms if term.name == "frozen base")

    assert base(8) == pytest.approx(base(1)) == pytest.approx(base(4))


def test_a_frozen_role_keeps_all_its_parameters_over_the_group():
    for expert in (1, 2, 8):
        layout = Layout(data=8, expert=expert, zero=ZeroStage.PARAMETERS)
        whole = rank_parameters(MIXTRAL, Layout()).total
        assert 8 * float(frozen_parameters(MIXTRAL, Layouts.of(layout))) == pytest.approx(whole)
