"""A stage as Megatron-LM's command line: every field is seen, what cannot be said is refused by name."""

import ast
from dataclasses import fields, replace

import pytest
from handover_case import other_values
from megatron_case import (
    ACCEPTED,
    LAYOUT,
    LLAMA,
    MISTRAL,
    PRETRAIN,
    QWEN2,
    QWEN3_MOE,
    SFT,
    SHARED_MOE,
    SMALL_LLAMA,
    handover,
    recorded_schema,
    refusals,
)

from charter.engines.megatron import MEGATRON
from charter.engines.megatron.capabilities import COMMIT
from charter.engines.megatron.mapping import render_megatron
from charter.errors import SpecError
from charter.spec.architecture import MixtureOfExperts
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage
from charter.spec.stage_base import Guard, StageResources

SCRIPT = "${MEGATRON_DIR}/pretrain_gpt.py"


def words_of(item):
    command = render_megatron(item).command
    return command[command.index(SCRIPT) + 1 :]


def options(item):
    found, option = {}, ""
    for word in words_of(item):
        if word.startswith("--"):
            found[option := word] = ""
        else:
            found[option] = f"{found[option]} {word}".strip()
    return found


def refused(item):
    with pytest.raises(SpecError) as found:
        render_megatron(item)
    return {problem.path.removeprefix("pipeline.stage."): problem.message for problem in found.value.problems}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_recorded_options_hold_what_is_rendered(name):
    assert list(refusals(words_of(ACCEPTED[name]), recorded_schema())) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tensor-parallel", "2"], "--tensor-parallel is not known"),
        (["--lr-decay-style", "square"], "none of constant, linear, cosine"),
        (["--train-iters", "ten"], "'ten' is no int"),
        (["--train-iters", "1.5"], "'1.5' is no int"),
        (["--lr", "quick"], "'quick' is no float"),
        (["--bf16", "true"], "--bf16 takes 0 values, not 1"),
        (["--lr"], "--lr takes 1 values, not 0"),
        (["--lr", "1", "2"], "--lr takes 1 values, not 2"),
        (["--cp-comm-type"], "--cp-comm-type takes + values, not 0"),
        (["2", "--bf16"], "'2' belongs to no option"),
    ],
)
def test_wrong_options_choices_and_types_are_found(words, said):
    assert any(said in found for found in refusals(words, recorded_schema()))


def test_the_record_is_of_the_version_that_is_named():
    assert recorded_schema().commit == COMMIT
    assert recorded_schema().version in MEGATRON.version
    assert len(recorded_schema().options) > 800


OTHER = {
    "schedule": ("constant", "linear"),
    "dtype": ("fp16", "fp32", "fp8"),
    "optimizer": ("adamw_8bit",),
    "guard": (Guard(),),
    "adapter": (Adapter(rank=4),),
    "data": (),
    "init": (),
}
LENGTHS = ("steps", "epochs")


@pytest.mark.parametrize("stage", [PRETRAIN, SFT], ids=lambda item: item.kind)
def test_no_field_of_the_file_is_dropped(stage):
    before = render_megatron(handover(stage))
    for item in fields(stage):
        row = next(row for row in before.mapping if row.field == f"stage.{item.name}")
        if row.how == "charter":
            continue
        for value in other_values(item.name, getattr(stage, item.name), OTHER):
            target = 1001 if item.name in LENGTHS else 1000
            try:
                after = render_megatron(handover(replace(stage, **{item.name: value}), target_steps=target))
            except SpecError:
                continue
            assert after.command != before.command, (item.name, value)


@pytest.mark.parametrize(
    ("changes", "option", "value"),
    [
        ({}, "--tensor-model-parallel-size", "4"),
        ({}, "--sequence-parallel", ""),
        ({}, "--pipeline-model-parallel-size", "2"),
        ({"interleave": 4}, "--num-virtual-stages-per-pipeline-rank", "4"),
        ({"context": 2, "data": 1, "accumulation": 32}, "--context-parallel-size", "2"),
        ({}, "--use-distributed-optimizer", ""),
        ({}, "--overlap-param-gather", ""),
        ({}, "--recompute-granularity", "selective"),
        ({"recompute": Recompute.FULL}, "--recompute-method", "uniform"),
        ({"recompute": Recompute.FULL}, "--recompute-num-layers", "1"),
        ({"offload_optimizer": True}, "--use-precision-aware-optimizer", ""),
        ({"micro_batch": 4, "accumulation": 8}, "--micro-batch-size", "4"),
    ],
)
def test_layouts_become_its_options(changes, option, value):
    assert options(handover(PRETRAIN, replace(LAYOUT, **changes)))[option] == value


def test_what_a_layout_does_not_ask_for_is_left_out():
    plain = options(handover(PRETRAIN, Layout(data=16, micro_batch=4)))
    for option in ("--use-distributed-optimizer", "--overlap-param-gather", "--sequence-parallel"):
        assert option not in plain
    assert "--recompute-granularity" not in plain
    assert "--num-virtual-stages-per-pipeline-rank" not in plain
    assert "--optimizer-cpu-offload" not in plain


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"zero": ZeroStage.GRADIENTS}, "layout.zero"),
        ({"zero": ZeroStage.PARAMETERS}, "layout.zero"),
        ({"zero": ZeroStage.NONE, "offload_optimizer": True}, "layout.offload_optimizer"),
        ({"offload_parameters": True}, "layout.offload_parameters"),
        ({"replicas": 2}, "layout.replicas"),
        ({"interleave": 3}, "layout.interleave"),
        ({"interleave": 2, "accumulation": 1, "micro_batch": 32}, "layout.interleave"),
        ({"pipeline": 1, "data": 4, "interleave": 2, "accumulation": 8}, "layout.interleave"),
        ({"pipeline": 3}, "layout.pipeline"),
        ({"accumulation": 15}, "layout.accumulation"),
        ({"data": 4}, "layout.data"),
        ({"expert": 2}, "layout.expert"),
        ({"tensor": 1, "data": 8, "accumulation": 4}, "layout.sequence_parallel"),
    ],
)
def test_layouts_that_it_does_not_execute_are_refused(changes, named):
    assert named in refused(handover(PRETRAIN, replace(LAYOUT, **changes)))


def test_rows_are_cut_into_twice_as_many_parts_as_share_them():
    layout = replace(LAYOUT, context=2, data=1, accumulation=32)
    assert "layout.context" in refused(handover(replace(PRETRAIN, seq_len=8190), layout))
    assert options(handover(replace(PRETRAIN, seq_len=8192), layout))["--seq-length"] == "8192"


def test_experts_beside_tensor_parallelism_need_sequence_parallelism():
    layout = replace(LAYOUT, expert=2, sequence_parallel=False)
    assert "layout.expert" in refused(handover(PRETRAIN, layout, model=SHARED_MOE))


def test_the_shape_of_a_model_is_told_option_by_option():
    llama = options(handover(PRETRAIN))
    assert (llama["--num-query-groups"], llama["--ffn-hidden-size"], llama["--kv-channels"]) == ("8", "14336", "128")
    assert (llama["--rotary-base"], llama["--rope-scaling-factor"]) == ("500000", "8.0")
    assert {"--untie-embeddings-and-output-weights", "--swiglu", "--disable-bias-linear"} <= set(llama)
    assert not {"--add-qkv-bias", "--qk-layernorm", "--num-experts"} & set(llama)
    small = options(handover(PRETRAIN, model=SMALL_LLAMA))
    assert "--untie-embeddings-and-output-weights" not in small
    assert (small["--rope-scaling-factor"], small["--kv-channels"]) == ("32.0", "64")
    assert "--add-qkv-bias" in options(handover(PRETRAIN, model=QWEN2))
    mistral = options(handover(PRETRAIN, model=MISTRAL))
    assert not {"--group-query-attention", "--use-rope-scaling"} & set(mistral)
    assert options(handover(replace(PRETRAIN, seq_len=262_144)))["--max-position-embeddings"] == "262144"


def test_positions_of_the_first_llama_3_are_not_stretched():
    assert "--use-rope-scaling" not in options(handover(PRETRAIN, model=replace(LLAMA, max_position_embeddings=8192)))


def test_experts_are_told_with_the_layers_that_have_them():
    plain = options(handover(PRETRAIN, model=QWEN3_MOE))
    assert (plain["--num-experts"], plain["--moe-router-topk"], plain["--moe-ffn-hidden-size"]) == ("128", "8", "768")
    assert "--moe-layer-freq" not in plain
    assert "--qk-layernorm" in plain
    shared = options(handover(PRETRAIN, model=SHARED_MOE))
    assert shared["--moe-shared-expert-intermediate-size"] == "2816"
    assert "--moe-shared-expert-gate" in shared
    assert shared["--moe-layer-freq"] == "[0]*2+[1]*30"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gpt2"}, "models of type gpt2"),
        ({"rope_theta": 10_000.5}, "whole number"),
        ({"gated_mlp": False}, "MLP without a gate"),
        ({"output_bias": True}, "attention output"),
        ({"mlp_bias": True}, "biases of the MLP"),
        ({"norm_parameters_per_feature": 2}, "norms with a bias"),
        ({"norms_per_layer": 4}, "norms per layer"),
        ({"qk_norm": True, "qk_norm_across_heads": True}, "norms across the heads"),
        ({"learned_positions": 1024}, "learned positions"),
        ({"sliding_window": 512, "sliding_window_layers": 8}, "sliding windows"),
        ({"attention_chunk": 512, "chunked_layers": 8}, "chunked"),
        ({"num_attention_layers": 16}, "layers without attention"),
        ({"num_mlp_layers": 16}, "layers without an MLP"),
        ({"embedding_size": 512}, "another width"),
        ({"embedding_norm": True}, "norm on the embedding"),
        ({"final_norm": False}, "final norm"),
        ({"head_bias": True}, "output projection"),
        ({"attention_sinks": True}, "sinks"),
        ({"attention_gate": True}, "gated attention"),
    ],
)
def test_models_that_it_would_change_are_refused(changes, said):
    assert said in refused(handover(PRETRAIN, model=replace(LLAMA, **changes)))["init"]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_moe_layers": 8},
        {"router_bias": True},
        {"expert_bias": True},
        {"expert_hidden_size": 1024},
        {"dense_residual": True},
    ],
)
def test_experts_that_it_would_change_are_refused(changes):
    mixture = MixtureOfExperts(num_experts=8, experts_per_token=2, expert_intermediate_size=512, **changes)
    assert "init" in refused(handover(PRETRAIN, model=replace(QWEN3_MOE, mixture=mixture)))


def test_the_schedule_ends_where_the_file_says():
    found = options(handover(PRETRAIN))
    assert (found["--lr-decay-style"], found["--lr-decay-iters"], found["--lr-warmup-iters"]) == (
        "cosine",
        "1000",
        "50",
    )
    assert float(found["--min-lr"]) == pytest.approx(1e-6)
    assert "--min-lr" not in options(handover(replace(PRETRAIN, schedule="constant")))
    assert "warmup_steps" in refused(handover(replace(PRETRAIN, warmup_steps=1000)))


def test_precision_is_an_option_or_none():
    assert "--bf16" in options(handover(PRETRAIN))
    plain = options(handover(replace(PRETRAIN, dtype="fp32")))
    assert not {"--bf16", "--fp16"} & set(plain)


def test_conversations_count_where_answers_stand():
    found = options(handover(SFT))
    assert found["--sft-tokenizer-prompt-format"] == "identity", "the format default counts every token"
    assert {"--sft", "--calculate-per-token-loss", "--no-create-attention-mask-in-dataloader"} <= set(found)
    assert (found["--dataloader-type"], found["--data-path"]) == ("single", "/data/data.jsonl")
    assert "--sft" not in options(handover(PRETRAIN))
    assert "packing" in refused(handover(replace(SFT, packing=True)))


def test_attention_is_the_one_of_the_file():
    assert options(handover(PRETRAIN))["--attention-backend"] == "auto"
    for asked, backend in (("flash_attention_2", "flash"), ("eager", "unfused"), ("sdpa", "fused")):
        stage = replace(PRETRAIN, resources=StageResources(attention=asked))
        assert options(handover(stage))["--attention-backend"] == backend
    for resources in (StageResources(compile=True), StageResources(attention="flex_attention")):
        assert "resources" in refused(handover(replace(PRETRAIN, resources=resources)))


def test_it_goes_on_from_its_own_checkpoint_or_starts_from_the_weights():
    found = options(handover(PRETRAIN))
    assert found["--save"] == found["--load"] == "/stage/checkpoints"
    assert found["--pretrained-checkpoint"] == "/stage/start"
    assert {"--exit-on-missing-checkpoint", "--exit-signal-handler"} <= set(found)
    assert "--no-load-rng" not in found


def test_what_is_made_once_is_a_script_that_can_be_read():
    texts = render_megatron(handover(PRETRAIN)).files
    assert "--input /data/data.jsonl" in texts["prepare.sh"]
    assert "--output-prefix /stage/megatron_data/train" in texts["prepare.sh"]
    assert options(handover(PRETRAIN))["--data-path"] == "/stage/megatron_data/train_text_document"
    ast.parse(texts["prepare.py"])
    tuned = render_megatron(handover(SFT)).files
    assert "preprocess_data" not in tuned["prepare.sh"]
    assert "unk_token" in tuned["prepare.py"]
    assert "unk_token" not in texts["prepare.py"]


def test_every_node_starts_its_processes():
    two, one = render_megatron(ACCEPTED["pretrain"]).command, render_megatron(ACCEPTED["pretrain, one node"]).command
    assert two[two.index("--node-rank") + 1] == "${NODE_RANK}"
    assert "--standalone" in one
    assert "--node-rank" not in one


def test_divided_tensors_ask_for_one_queue_of_work():
    assert render_megatron(handover(PRETRAIN)).environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    plain = render_megatron(handover(PRETRAIN, Layout(data=16, micro_batch=4))).environment
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in plain


def test_what_no_field_says_is_said_all_the_same():
    found = options(handover(PRETRAIN))
    assert found["--split"] == "100,0,0", "all texts train"
    assert (found["--attention-dropout"], found["--hidden-dropout"]) == ("0.0", "0.0"), "its defaults are 0.1"
    assert found["--eval-iters"] == "0", "there is nothing to validate on"
    assert found["--adam-eps"] == "1e-08"
    assert found["--log-interval"] == "1", "a line for every step"
    assert {"--overlap-grad-reduce", "--overlap-param-gather"} <= set(found)
    assert found["--norm-epsilon"] == "1e-05"
    assert options(handover(PRETRAIN, model=replace(LLAMA, norm_eps=1e-6)))["--norm-epsilon"] == "1e-06"


def test_experts_are_whole_on_their_accelerator_and_nothing_balances_them():
    found = options(handover(PRETRAIN, replace(LAYOUT, expert=2), model=SHARED_MOE))
    assert found["--expert-tensor-parallel-size"] == "1"
    assert found["--moe-router-load-balancing-type"] == "none"
    assert found["--moe-token-dispatcher-type"] == "alltoall"


def test_texts_end_and_padding_is_no_token_of_a_text():
    assert "--append-eod" in render_megatron(handover(PRETRAIN)).files["prepare.sh"]
    assert "tokenizer.pad_token == tokenizer.eos_token" in render_megatron(handover(SFT)).files["prepare.py"]
