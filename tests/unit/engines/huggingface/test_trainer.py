"""What TRL's trainers are told of rows, steps, rates, precision and adapters."""

import json
from math import exp

import pytest
import yaml
from huggingface_case import BATCH, PATHS, handover, layout_of

from charter.engines import render
from charter.engines.common.request import HandoverPaths
from charter.errors import SpecError
from charter.spec.layout import Adapter, Recompute, ZeroStage
from charter.spec.stage_base import Guard, StageResources


def sigmoid(x):
    return 1 / (1 + exp(-x))


def settings_of(kind, engine="trl", **changes):
    run = render(handover(engine, kind, **changes))
    name = {"pretrain": "sft", "preference_model": "reward"}.get(kind, kind)
    return yaml.safe_load(run.files[f"{name}.yaml"])


def refused(kind, engine="trl", **changes):
    """Path -> message and hint of everything that is refused."""
    with pytest.raises(SpecError) as caught:
        render(handover(engine, kind, **changes))
    return {problem.path: f"{problem.message} | {problem.hint}" for problem in caught.value.problems}


def row_of(field, kind, **changes):
    return next(row for row in render(handover("trl", kind, **changes)).mapping if row.field == field)


def test_the_file_says_how_long_how_often_and_where():
    found = settings_of("sft", checkpoint_every=7, seed=11, learning_rate=3e-5, weight_decay=0.1, beta1=0.8, beta2=0.9)
    assert found["model_name_or_path"] == "models/init"
    assert found["datasets"] == [{"path": "json", "data_files": "data/data.jsonl", "split": "train"}]
    assert (found["max_steps"], found["save_steps"], found["logging_steps"]) == (20, 7, 1)
    assert found["save_total_limit"] == 3
    assert (found["seed"], found["data_seed"]) == (11, 11)
    assert (found["learning_rate"], found["weight_decay"]) == (3e-5, 0.1)
    assert (found["adam_beta1"], found["adam_beta2"], found["adam_epsilon"]) == (0.8, 0.9, 1e-8)
    assert found["eval_strategy"] == "no"
    assert found["report_to"] == "none"
    assert found["output_dir"] == "output"
    assert found["save_only_model"] is False
    assert found["logging_nan_inf_filter"] is False
    assert (found["average_tokens_across_devices"], found["ddp_find_unused_parameters"]) == (True, False)
    assert (found["push_to_hub"], found["trust_remote_code"], found["disable_tqdm"]) == (False, False, True)


def test_rows_are_read_in_the_order_of_the_file():
    for kind in ("sft", "preference_model", "dpo"):
        found = settings_of(kind)
        assert found["train_sampling_strategy"] == "sequential", kind
        assert found["enable_jit_checkpoint"] is True, kind
        assert found["dataloader_drop_last"] is False, kind
    for kind in ("grpo", "rloo"):
        assert settings_of(kind)["shuffle_dataset"] is False, kind
        assert settings_of(kind)["enable_jit_checkpoint"] is False, kind


def test_a_run_goes_on_only_where_it_is_told_to():
    assert "resume_from_checkpoint" not in settings_of("sft")
    paths = HandoverPaths(work="w", models=PATHS.models, data=PATHS.data, resume_from="w/output/checkpoint-5")
    assert settings_of("sft", paths=paths)["resume_from_checkpoint"] == "w/output/checkpoint-5"
    assert render(handover("trl", "sft", paths=paths)).environment["HF_DATASETS_CACHE"] == "w/datasets"


def test_a_pair_is_two_sequences_of_the_layout():
    pairs = settings_of("dpo", layout=layout_of("dpo", data=4, micro_rows=2))
    assert (pairs["per_device_train_batch_size"], pairs["gradient_accumulation_steps"]) == (2, 4)
    rows = settings_of("sft", layout=layout_of("sft", data=4, micro_rows=4))
    assert (rows["per_device_train_batch_size"], rows["gradient_accumulation_steps"]) == (4, 2)
    odd = layout_of("dpo", micro_rows=1)
    found = refused("dpo", layout=type(odd)(**{**vars(odd), "micro_batch": 3}))
    assert "TRL never parts a pair" in found["layout.micro_batch"]


def test_batches_that_do_not_come_out_even_are_refused():
    layout = layout_of("sft", data=4)
    found = refused("sft", layout=layout, global_batch=BATCH + 4)
    assert "is not the 36 sequences of global_batch 36" in found["layout.accumulation"]
    assert "9 sequences" in found["layout.accumulation"]
    layout = type(layout)(**{**vars(layout), "accumulation": layout.accumulation + 1})
    assert "global_batch 32" in refused("sft", layout=layout)["layout.accumulation"]


@pytest.mark.parametrize(
    ("asked", "kind", "options"),
    [
        ({"schedule": "constant"}, "constant_with_warmup", None),
        ({"schedule": "cosine"}, "cosine_with_min_lr", {"min_lr_rate": 0.1}),
        ({"schedule": "cosine", "min_learning_rate_ratio": 0.0}, "cosine_with_min_lr", {"min_lr_rate": 0.0}),
        ({"schedule": "linear"}, "polynomial", {"lr_end": 1e-4, "power": 1.0}),
    ],
)
def test_schedules(asked, kind, options):
    found = settings_of("sft", learning_rate=1e-3, warmup_steps=5, **asked)
    assert found["lr_scheduler_type"] == kind
    assert found.get("lr_scheduler_kwargs") == options
    assert found["warmup_steps"] == 5


def test_a_line_that_does_not_fall_is_refused():
    found = refused("sft", schedule="linear", min_learning_rate_ratio=1.0)
    assert "schedule: constant" in found["pipeline.stage.min_learning_rate_ratio"]


def test_a_warm_up_that_starts_at_nothing_is_said():
    assert "first update has rate 0" in row_of("stage.warmup_steps", "sft").note


@pytest.mark.parametrize(
    ("dtype", "flags"), [("fp32", (False, False)), ("bf16", (True, False)), ("fp16", (False, True))]
)
def test_weights_stay_in_fp32(dtype, flags):
    found = settings_of("sft", dtype=dtype)
    assert (found["bf16"], found["fp16"]) == flags
    assert found["dtype"] == "float32"


def test_processors_have_no_fp16():
    assert "processors" in refused("sft", dtype="fp16", accelerator="cpu")["pipeline.stage.dtype"]
    assert settings_of("sft", accelerator="cpu")["use_cpu"] is True
    assert settings_of("sft")["use_cpu"] is False


def test_an_adapter_is_beside_all_linear_layers():
    found = settings_of("sft", adapter=Adapter(rank=8, alpha=16))
    assert (found["use_peft"], found["lora_r"], found["lora_alpha"], found["lora_dropout"]) == (True, 8, 16, 0.0)
    assert found["lora_target_modules"] == ["all-linear"]
    assert (found["lora_task_type"], found["lora_modules_to_save"]) == ("CAUSAL_LM", None)
    assert (found["load_in_4bit"], found["load_in_8bit"], found["dtype"]) == (False, False, "float32")
    reward = settings_of("preference_model", adapter=Adapter(rank=8))
    assert (reward["lora_task_type"], reward["lora_modules_to_save"]) == ("SEQ_CLS", ["score"])
    assert settings_of("sft")["use_peft"] is False


@pytest.mark.parametrize(
    ("kind", "said", "unsaid"),
    [
        ("sft", (), ("reference", "head")),
        ("preference_model", ("the head is trained whole, as here",), ("reference",)),
        ("dpo", ("the reference is the model without its adapter, which is where it began, as here",), ("head",)),
        ("grpo", ("the reference is the model without its adapter",), ("head",)),
    ],
)
def test_what_is_trained_beside_an_adapter_and_what_it_is_compared_with_is_said(kind, said, unsaid):
    note = row_of("stage.adapter", kind, adapter=Adapter(rank=4)).note
    assert all(words in note for words in ("beside all linear layers but the output, as here", *said))
    assert not any(word in note for word in unsaid)


def test_a_quantised_base_is_whole_and_computes_in_the_stage_dtype():
    found = settings_of("sft", adapter=Adapter(rank=8, base_bits=4))
    assert (found["load_in_4bit"], found["load_in_8bit"], found["dtype"]) == (True, False, "bfloat16")
    assert (found["bnb_4bit_quant_type"], found["use_bnb_nested_quant"]) == ("nf4", False)
    assert settings_of("sft", adapter=Adapter(rank=8, base_bits=8))["load_in_8bit"] is True
    sharded = {"layout": layout_of("sft", data=4, zero=ZeroStage.PARAMETERS)}
    assert "not sharded" in refused("sft", adapter=Adapter(rank=8, base_bits=4), **sharded)["pipeline.stage.adapter"]
    assert settings_of("sft", adapter=Adapter(rank=8), **sharded)["use_peft"] is True
    assert "8 and 4 bits" in refused("sft", adapter=Adapter(rank=8, base_bits=2))["pipeline.stage.adapter"]


def test_adam_in_8_bits_needs_whole_parameters():
    assert settings_of("sft")["optim"] == "adamw_torch_fused"
    assert settings_of("sft", optimizer="adamw_8bit")["optim"] == "adamw_bnb_8bit"
    for zero in (ZeroStage.OPTIMIZER, ZeroStage.PARAMETERS):
        found = refused("sft", optimizer="adamw_8bit", layout=layout_of("sft", data=4, zero=zero))
        assert "whole parameters" in found["pipeline.stage.optimizer"]


def test_what_resources_say_of_attention_and_compilation():
    resources = StageResources(attention="eager", compile=True)
    found = settings_of("sft", resources=resources)
    assert (found["attn_implementation"], found["torch_compile"]) == ("eager", True)
    plain = settings_of("sft")
    assert (plain["attn_implementation"], plain["torch_compile"]) == ("sdpa", False)


def test_recomputation_is_never_left_to_trl():
    assert settings_of("sft")["activation_checkpointing"] is False
    full = layout_of("sft", recompute=Recompute.FULL)
    assert settings_of("sft", layout=full)["activation_checkpointing"] is True
    selective = layout_of("sft", recompute=Recompute.SELECTIVE)
    assert "full or none" in refused("sft", layout=selective)["layout.recompute"]


def test_packing_needs_flash_attention_and_trls_own_order():
    flash = StageResources(attention="flash_attention_2")
    found = settings_of("sft", packing=True, resources=flash)
    assert (found["packing"], found["packing_strategy"]) == (True, "bfd")
    assert found["train_sampling_strategy"] == "random"
    assert settings_of("sft")["packing"] is False
    assert "flash_attention_2" in refused("sft", packing=True)["pipeline.stage.packing"]
    ring = layout_of("sft", data=2, context=2, zero=ZeroStage.PARAMETERS)
    found = refused("sft", "accelerate", packing=True, resources=flash, layout=ring)
    assert "context parallelism" in found["pipeline.stage.packing"]


def test_rows_of_tokens_are_taken_as_they_are():
    for kind, engine in (("sft", "trl"), ("pretrain", "accelerate")):
        found = settings_of(kind, engine, seq_len=256)
        assert found["max_length"] == 256
        assert (found["assistant_only_loss"], found["completion_only_loss"]) == (False, False)
        assert (found["loss_type"], found["router_aux_loss_coef"]) == ("nll", 0.0)


def test_preference_models():
    found = settings_of("preference_model", center_weight=0.01, seq_len=128)
    assert (found["center_rewards_coefficient"], found["max_length"], found["disable_dropout"]) == (0.01, 128, True)
    refusals = refused(
        "preference_model", pooling="mean", head_learning_rate_ratio=2.0, label_smoothing=0.1, dropout=0.1
    )
    assert set(refusals) == {
        "pipeline.stage.pooling",
        "pipeline.stage.head_learning_rate_ratio",
        "pipeline.stage.label_smoothing",
        "pipeline.stage.dropout",
    }
    assert "soft" in refusals["pipeline.stage.label_smoothing"]


def test_dpo():
    found = settings_of("dpo", beta=0.3)
    assert (found["beta"], found["loss_type"], found["disable_dropout"]) == (0.3, ["sigmoid"], True)
    assert found["precompute_ref_log_probs"] is False
    assert "robust" in refused("dpo", label_smoothing=0.1)["pipeline.stage.label_smoothing"]
    assert "by the length" in refused("dpo", loss="ipo")["pipeline.stage.loss"]
    assert "no script" in refused("dpo", loss="orpo")["pipeline.stage.loss"]


def test_kto_is_a_trainer_of_its_own():
    run = render(handover("trl", "kto", layout=layout_of("kto", data=4)))
    assert run.command[-2:] == ("--config", "kto.yaml")
    found = settings_of("kto", layout=layout_of("kto", data=4), beta=0.3)
    assert (found["beta"], found["loss_type"], found["disable_dropout"]) == (0.3, "kto", True)
    assert (found["desirable_weight"], found["undesirable_weight"]) == (1.0, 1.0)
    assert found["train_sampling_strategy"] == "sequential"
    assert (found["per_device_train_batch_size"], found["gradient_accumulation_steps"]) == (2 * BATCH // 4, 1)
    zero = render(handover("deepspeed", "kto", layout=layout_of("kto", data=4, zero=ZeroStage.OPTIMIZER)))
    assert json.loads(zero.files["deepspeed.json"])["train_batch_size"] == 2 * BATCH


@pytest.mark.parametrize("share", [0.125, 0.25])
def test_wrong_labels_of_kto_are_a_smaller_weight(share):
    """p (1 - s(x)) + (1 - p) s(x), whose slope is (2 p - 1) times that of 1 - s(x)."""
    found = settings_of("kto", label_smoothing=share)
    ours = [(1 - share) * (1 - sigmoid(x)) + share * sigmoid(x) for x in (-1.0, 2.0)]
    theirs = [found["desirable_weight"] * (1 - sigmoid(x)) for x in (-1.0, 2.0)]
    assert [one - other for one, other in zip(ours, theirs, strict=True)] == pytest.approx([share, share])
    assert found["undesirable_weight"] == found["desirable_weight"]


def test_a_reference_point_of_a_part_of_the_batch_is_refused():
    found = refused("kto", layout=layout_of("dpo", data=4))
    assert "anew from every micro-batch" in found["layout.accumulation"]
    assert "micro_batch: 16" in found["layout.accumulation"]


def test_a_guard_is_refused():
    assert "not finite" in refused("sft", guard=Guard())["pipeline.stage.guard"]


def test_everything_is_refused_at_once():
    layout = layout_of("sft", data=2, tensor=2, recompute=Recompute.SELECTIVE)
    found = refused("sft", layout=layout, dropout=0.5, guard=Guard(), packing=True)
    assert {"layout.tensor", "layout.recompute"} < set(found)
    assert {"pipeline.stage.dropout", "pipeline.stage.guard", "pipeline.stage.packing"} < set(found)


def test_a_kind_that_no_script_trains_is_refused():
    assert "pretrain" in refused("pretrain")["pipeline.stage.engine"]
    assert "ppo" in refused("grpo", "deepspeed")["pipeline.stage.engine"]


def test_notes_say_what_lies_in_the_output():
    assert any("adapter alone" in note for note in render(handover("trl", "sft", adapter=Adapter(rank=4))).notes)
    assert any("at random" in note for note in render(handover("trl", "preference_model")).notes)
    assert any("CUDA_VISIBLE_DEVICES" in note for note in render(handover("trl", "sft")).notes)
    zero = render(handover("deepspeed", "sft", layout=layout_of("sft", data=2, zero=ZeroStage.OPTIMIZER)))
    assert not any("CUDA_VISIBLE_DEVICES" in note for note in zero.notes)
    assert "bf16" in json.loads(zero.files["deepspeed.json"])
    assert "16-bit" in next(row for row in zero.mapping if row.field == "stage.dtype").note


def test_who_cuts_long_rows_is_said():
    assert "its prompt" in row_of("stage.seq_len", "dpo").note
    assert "Charter" in row_of("stage.seq_len", "sft").note
    assert "leaves longer ones out" in row_of("stage.max_prompt_tokens", "grpo").note
