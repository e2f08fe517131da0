"""Factored estimates are the direct ones, row by row."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.physics.columns import Layouts, array
from charter.physics.constants import TrainingConstants, TrainingMemoryConstants
from charter.physics.devices import DeviceColumns
from charter.physics.matrix_products import ProductColumns
from charter.physics.memory import factored_memory, least_state_bytes, training_memory_table
from charter.physics.memory_profiles import MemoryJob
from charter.physics.memory_shape import MemoryShape
from charter.physics.micro_batch import NOTHING_DONE, GroupLinks, StepInputs, least_step_seconds, step_work
from charter.physics.stacks import PROFILES, StackColumns, StepJob
from charter.physics.step_seconds import step_seconds, step_values
from charter.physics.step_time import distinct, factored_values, rows_of
from charter.spec.layout import Layout, Recompute, ZeroStage

MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
LLAMA = models.get("Llama-3.1-8B").architecture
DEVICES = tuple(accelerators.get(name) for name in ("H100", "A100-80GB", "TPU-v5p"))
degrees = st.sampled_from([1, 2, 4])
layouts = st.builds(
    Layout,
    data=st.sampled_from([1, 4, 16]),
    tensor=degrees,
    pipeline=degrees,
    context=degrees,
    expert=degrees,
    sequence_parallel=st.booleans(),
    zero=st.sampled_from(ZeroStage),
    micro_batch=degrees,
    accumulation=st.sampled_from([1, 3, 8]),
    recompute=st.sampled_from(Recompute),
    interleave=degrees,
    offload_optimizer=st.booleans(),
    offload_parameters=st.booleans(),
)
tables = st.lists(layouts, min_size=1, max_size=12)
QUICK = settings(max_examples=25, deadline=None)


def inputs(table: list[Layout], architecture, *, stack: str, bits: float, on: list[int]) -> StepInputs:
    device = rows_of(DeviceColumns.stack([DeviceColumns.of(one) for one in DEVICES]), np.array(on))
    at = Layouts.of(table)
    return StepInputs(
        model=ProductColumns.of(architecture),
        device=device,
        job=StepJob(layouts=at, seq=1000 + 24 * at.micro_batch, bits=array(bits)),
        stack=StackColumns.of(PROFILES[stack]),
        work=NOTHING_DONE,
        constants=TrainingConstants(),
    )


@QUICK
@given(
    table=tables,
    architecture=st.sampled_from([LLAMA, MIXTRAL]),
    stack=st.sampled_from(["native", "megatron-2022", "megatron-core"]),
    bits=st.sampled_from([16.0, 8.0]),
    shift=st.integers(0, 2),
)
def test_factored_seconds_are_the_direct_ones(table, architecture, stack, bits, shift):
    on = [(number + shift) % len(DEVICES) for number in range(len(table))]
    given_ = inputs(table, architecture, stack=stack, bits=bits, on=on)
    direct = step_values(replace(given_, work=step_work(given_.model, given_.device, given_.job, given_.stack)))
    made = factored_values(given_, beside=[array(on)])
    assert set(made) == set(direct)
    for name, values in direct.items():
        assert np.broadcast_to(made[name], (len(table),)) == pytest.approx(
            np.broadcast_to(values, (len(table),)), rel=1e-12, abs=0
        ), name


@QUICK
@given(table=tables, architecture=st.sampled_from([LLAMA, MIXTRAL]), stack=st.sampled_from(["native", "maxtext"]))
def test_the_bound_of_a_step_is_never_above_it(table, architecture, stack):
    given_ = inputs(table, architecture, stack=stack, bits=16.0, on=[0] * len(table))
    whole = replace(given_, work=step_work(given_.model, given_.device, given_.job, given_.stack))
    assert np.all(least_step_seconds(given_) <= step_seconds(whole))
    assert np.all(least_step_seconds(given_) > 0)


@QUICK
@given(table=tables, architecture=st.sampled_from([LLAMA, MIXTRAL]), unfused=st.booleans())
def test_factored_memory_is_the_direct_one_and_above_its_bound(table, architecture, unfused):
    job = MemoryJob(architecture=architecture, seq_len=1024, fused_attention=not unfused)
    shape, at, constants = MemoryShape.of(job), Layouts.of(table), TrainingMemoryConstants()
    direct = np.broadcast_to(training_memory_table(shape, at, constants).total, (len(table),))
    peaks = factored_memory(shape, at, constants, lambda table, _: {"peak": table.total})["peak"]
    assert peaks == pytest.approx(direct, rel=1e-12)
    assert np.all(least_state_bytes(shape, at, constants) <= direct)


def test_groups_on_other_links_change_their_own_traffic_only():
    table = [Layout(data=4, tensor=4, pipeline=2, accumulation=4)]
    given_ = inputs(table, LLAMA, stack="megatron-2022", bits=16.0, on=[0])
    slow = replace(given_.device, domain=array([1.0]), node=array([1.0]))
    fast = replace(given_.device, domain=array([1e9]), node=array([1e9]))
    before = factored_values(given_)
    for kind, name, links in (
        ("tensor", "tensor parallel", slow),
        ("data", "gradient reduction", fast),
        ("pipeline", "pipeline sends", fast),
    ):
        after = factored_values(replace(given_, links=GroupLinks(**{kind: links})))
        changed = {term for term in before if not np.allclose(before[term], after[term], rtol=1e-12)}
        assert name in changed
        others = {"tensor parallel", "gradient reduction", "pipeline sends"} - {name}
        assert not changed & others


def test_distinct_rows_stand_for_all():
    columns = [array([1, 1, 2, 2, 1]), array([0, 5, 0, 0, 5])]
    rows, which = distinct(columns)
    assert len(rows) == 3
    for column in columns:
        assert column[rows][which].tolist() == column.tolist()
