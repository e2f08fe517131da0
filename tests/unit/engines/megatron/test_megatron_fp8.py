"""fp8 in Megatron-LM: options beside those of bf16, and sides of products that it does not have."""

import re
from dataclasses import replace

import pytest
from megatron_case import LAYOUT, LLAMA, PRETRAIN, QWEN3_MOE, SFT, SHARED_MOE, handover, recorded_schema, refusals

from charter.engines.megatron.mapping import render_megatron
from charter.errors import SpecError

EIGHT = replace(PRETRAIN, dtype="fp8")


def words(item):
    return list(render_megatron(item).command)


def refused(item):
    """Why fp8 is refused; empty where it is not."""
    try:
        render_megatron(item)
    except SpecError as error:
        return {problem.path: problem.message for problem in error.problems}.get("pipeline.stage.dtype", "")
    return ""


@pytest.mark.parametrize("stage", [PRETRAIN, SFT], ids=lambda item: item.kind)
def test_products_in_8_bits_are_asked_for_beside_bf16(stage):
    plain, eight = words(handover(stage)), words(handover(replace(stage, dtype="fp8")))
    at = eight.index("--bf16") + 1
    assert eight[at : at + 4] == ["--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"]
    assert eight[:at] + eight[at + 4 :] == plain, "the plan counts 8-bit copies beside 16-bit weights"


def test_the_mapping_says_where_fp8_went():
    made = render_megatron(handover(EIGHT))
    row = next(row for row in made.mapping if row.field == "stage.dtype")
    assert (row.how, row.to) == ("computed", ("--bf16", "--fp8-format", "--fp8-recipe"))
    assert "E4M3 forward" in row.note
    plain = render_megatron(handover(PRETRAIN))
    assert next(row for row in plain.mapping if row.field == "stage.dtype").to == ("--bf16",)


def test_notes_say_what_fp8_needs_and_how_scales_come_from_a_history():
    told = " ".join(render_megatron(handover(EIGHT)).notes)
    assert "TransformerEngine 2.2" in told
    found = re.search(r"--fp8-recipe delayed \S+ 1024 \S+ max", told)
    assert list(refusals(found.group().split(), recorded_schema())) == []
    assert "fp8" not in " ".join(render_megatron(handover(PRETRAIN)).notes)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({"hidden_size": 4104}, "; hidden_size (4104) is none"),
        ({"intermediate_size": 14_432}, "; intermediate_size / tensor (3608) is none"),
        ({"head_dim": 65}, "; heads x head_size / tensor (520), queries, keys and values / tensor (780) is none"),
        ({"head_dim": 66}, "; queries, keys and values / tensor (792) is none"),
    ],
)
def test_sides_that_products_in_8_bits_do_not_have_are_refused(model, named):
    shape = replace(LLAMA, **model)
    assert refused(handover(EIGHT, model=shape)).endswith(named)
    assert not refused(handover(PRETRAIN, model=shape))


@pytest.mark.parametrize(
    ("seq_len", "layout", "tokens"),
    [
        (8200, {"micro_batch": 1, "accumulation": 32}, 2050),
        (8200, {"micro_batch": 1, "accumulation": 32, "sequence_parallel": False}, 8200),
        (8200, {"sequence_parallel": False}, 16_400),
        (8256, {"context": 2, "data": 1, "accumulation": 32}, 2064),
        (8208, {"context": 2, "data": 1, "accumulation": 32}, 2052),
    ],
)
def test_tokens_of_a_micro_batch_are_such_a_side_too(seq_len, layout, tokens):
    found = refused(handover(replace(EIGHT, seq_len=seq_len), replace(LAYOUT, **layout)))
    assert found.endswith(f"; tokens of a micro-batch on an accelerator ({tokens}) is none" if tokens % 16 else "")
    assert bool(found) is bool(tokens % 16)


def test_sides_of_experts_count_too():
    layout = replace(LAYOUT, expert=2)
    odd = replace(SHARED_MOE.mixture, expert_intermediate_size=1400)
    found = refused(handover(EIGHT, layout, model=replace(SHARED_MOE, mixture=odd)))
    assert found.endswith("; expert_intermediate_size (1400), width of the shared experts / tensor (700) is none")
    assert not refused(handover(EIGHT, layout, model=QWEN3_MOE))
