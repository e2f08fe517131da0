"""How layouts become launchers, Accelerate's file and DeepSpeed's, and what holds after a kill."""

import dataclasses
import json

import pytest
import yaml
from huggingface_case import handover, layout_of

from charter.engines import render
from charter.errors import SpecError
from charter.spec.layout import Layout, ZeroStage
from charter.spec.stage_base import StageResources

NONE, OPTIMIZER, GRADIENTS, PARAMETERS = ZeroStage
WHOLE = {"offload_optimizer": True, "offload_parameters": True}
SCRIPT = ("-m", "trl.scripts.sft", "--config", "sft.yaml")
ACCELERATE = ("python", "-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml")
MEET = ("--main_process_ip", "${MASTER_ADDR}", "--main_process_port", "${MASTER_PORT}")


def run_of(engine="trl", kind="sft", *, nodes=1, accelerator="H100", stage=None, **layout):
    asked = layout_of(kind, **layout)
    return render(handover(engine, kind, layout=asked, nodes=nodes, accelerator=accelerator, **(stage or {})))


def refused(engine="trl", kind="sft", *, nodes=1, accelerator="H100", stage=None, **layout):
    asked = handover(engine, kind, layout=layout_of(kind, **layout), nodes=nodes, accelerator=accelerator)
    asked = dataclasses.replace(asked, stage=dataclasses.replace(asked.stage, **(stage or {})))
    with pytest.raises(SpecError) as caught:
        render(asked)
    return {problem.path: problem.message for problem in caught.value.problems}


def accelerate_of(run):
    return yaml.safe_load(run.files["accelerate.yaml"])


def test_one_process_needs_no_launcher():
    run = run_of()
    assert run.command == ("python", *SCRIPT)
    assert set(run.files) == {"sft.yaml"}
    assert run.environment["TOKENIZERS_PARALLELISM"] == "false"


def test_processes_of_processors_are_started_by_torch():
    run = run_of(data=4, accelerator="cpu")
    assert run.command == (
        *("python", "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "4", "--standalone"),
        *SCRIPT,
    )
    several = run_of(data=8, accelerator="cpu", nodes=2).command
    assert several[3:7] == ("--nnodes", "2", "--nproc-per-node", "4")
    assert several[7:13] == (
        *("--node-rank", "${NODE_RANK}", "--master-addr", "${MASTER_ADDR}"),
        *("--master-port", "${MASTER_PORT}"),
    )


def test_copies_of_the_model():
    run = run_of(data=8, nodes=2)
    assert run.command == (*ACCELERATE, "--machine_rank", "${NODE_RANK}", *MEET, *SCRIPT)
    found = accelerate_of(run)
    assert (found["distributed_type"], found["num_processes"], found["num_machines"]) == ("MULTI_GPU", 8, 2)
    assert found["mixed_precision"] == "bf16"
    assert accelerate_of(run_of(data=8, stage={"dtype": "fp32"}))["mixed_precision"] == "no"
    assert run_of(data=8).command == (*ACCELERATE, *SCRIPT)
    for name, value in (("offload_optimizer", True), ("offload_parameters", True), ("replicas", 2), ("context", 2)):
        assert f"layout.{name}" in refused(data=8, **{name: value}), name


def test_fsdp2_saves_whole_weights():
    assert accelerate_of(run_of(data=8, zero=PARAMETERS, nodes=2)) == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": 2,
        "num_processes": 8,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_activation_checkpointing": False,
        },
    }
    assert accelerate_of(run_of(data=8, zero=PARAMETERS, **WHOLE))["fsdp_config"]["fsdp_offload_params"] is True


def test_fsdp2_moves_parameters_and_optimizer_together():
    for name in WHOLE:
        assert f"layout.{name}" in refused("accelerate", data=8, zero=PARAMETERS, **{name: True})


def test_hybrid_sharding_and_context_parallelism_belong_to_accelerate():
    found = accelerate_of(run_of("accelerate", data=8, zero=PARAMETERS, replicas=2))["parallelism_config"]
    assert found == {
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 4,
        "parallelism_config_tp_size": 1,
        "parallelism_config_cp_size": 1,
    }
    ring = run_of("accelerate", data=4, zero=PARAMETERS, context=2)
    assert accelerate_of(ring)["num_processes"] == 8
    assert accelerate_of(ring)["parallelism_config"]["parallelism_config_cp_size"] == 2
    assert yaml.safe_load(ring.files["sft.yaml"])["pad_to_multiple_of"] == 4
    for name in ("replicas", "context"):
        assert f"layout.{name}" in refused("trl", data=8, zero=PARAMETERS, **{name: 2})
    assert "layout.replicas" in refused("accelerate", data=8, zero=PARAMETERS, replicas=3)
    assert "SFTTrainer only" in refused("accelerate", "dpo", data=4, zero=PARAMETERS, context=2)["layout.context"]


def test_context_parallelism_needs_sdpa():
    eager = {"resources": StageResources(attention="eager")}
    found = refused("accelerate", data=4, zero=PARAMETERS, context=2, stage=eager)
    assert "sdpa" in found["layout.context"]


@pytest.mark.parametrize("zero", [NONE, OPTIMIZER, GRADIENTS, PARAMETERS])
def test_deepspeed(zero):
    run = run_of("deepspeed", data=8, zero=zero, nodes=2, stage={"gradient_clip": 0.5})
    found, file = accelerate_of(run), json.loads(run.files["deepspeed.json"])
    assert found["distributed_type"] == "DEEPSPEED"
    assert "mixed_precision" not in found
    assert found["deepspeed_config"] == {
        "deepspeed_config_file": "deepspeed.json",
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": zero == 3,
    }
    gathers = {"stage3_gather_16bit_weights_on_model_save": True} if zero == 3 else {}
    assert file["zero_optimization"] == {
        "stage": zero,
        "overlap_comm": True,
        "contiguous_gradients": True,
        **gathers,
        "offload_optimizer": {"device": "none"},
        "offload_param": {"device": "none"},
    }
    assert file["zero_allow_untested_optimizer"] is False
    assert file["gradient_clipping"] == 0.5
    assert (file["train_batch_size"], file["train_micro_batch_size_per_gpu"]) == (32, 2)
    assert file["bf16"] == {"enabled": True}
    assert file["fp16"] == {"enabled": False}


def test_deepspeed_offloads_the_optimizer_alone_or_all():
    alone = json.loads(run_of("deepspeed", data=8, zero=PARAMETERS, offload_optimizer=True).files["deepspeed.json"])
    assert alone["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert alone["zero_optimization"]["offload_param"] == {"device": "none"}
    both = json.loads(run_of("deepspeed", data=8, zero=PARAMETERS, **WHOLE).files["deepspeed.json"])
    assert both["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert "layout.offload_parameters" in refused("deepspeed", data=8, zero=GRADIENTS, **WHOLE)
    assert "layout.offload_optimizer" in refused("deepspeed", data=8, offload_optimizer=True)


def test_the_loss_scale_is_charters():
    run = run_of("deepspeed", data=8, zero=GRADIENTS, stage={"dtype": "fp16"})
    found = json.loads(run.files["deepspeed.json"])["fp16"]
    assert (found["enabled"], found["initial_scale_power"], found["loss_scale_window"]) == (True, 16, 2000)
    assert (found["loss_scale"], found["hysteresis"], found["min_loss_scale"]) == (0, 1, 1)


def test_trl_takes_deepspeed_where_fsdp2_cannot():
    assert "deepspeed.json" in run_of(data=8, zero=OPTIMIZER).files
    assert "deepspeed.json" in run_of(data=8, zero=PARAMETERS, offload_optimizer=True).files
    assert "deepspeed.json" not in run_of(data=8, zero=PARAMETERS).files
    assert "deepspeed.json" not in run_of(data=8, zero=PARAMETERS, **WHOLE).files


def test_accelerate_has_no_zero_of_deepspeeds():
    for zero in (OPTIMIZER, GRADIENTS):
        assert "layout.zero" in refused("accelerate", data=8, zero=zero)


@pytest.mark.parametrize("name", ["tensor", "pipeline", "expert", "interleave"])
def test_models_are_whole(name):
    assert f"layout.{name}" in refused(data=4, **{name: 2})


def test_sequences_are_whole():
    assert "layout.sequence_parallel" in refused(data=4, sequence_parallel=True)


def test_sharding_needs_accelerators():
    for engine, zero in (("trl", PARAMETERS), ("deepspeed", NONE)):
        assert "processors" in refused(engine, data=4, zero=zero, accelerator="cpu")["pipeline.stage.engine"]


def test_nodes_have_the_accelerators_of_the_layout():
    asked = handover("trl", "sft", layout=layout_of("sft", data=8))
    asked = dataclasses.replace(asked, per_node=4)
    with pytest.raises(SpecError) as caught:
        render(asked)
    assert "the nodes have 4" in str(caught.value)


def test_what_holds_after_a_kill():
    for kind in ("sft", "preference_model", "dpo", "grpo", "rloo"):
        found = run_of(kind=kind, accelerator="cpu", stage={"dtype": "fp32"}).resume
        assert (found.guarantee, "measured" in found.source) == ("bit_exact", True), kind
    for how in (
        {"accelerator": "cpu"},
        {"stage": {"dtype": "fp32"}},
        {"accelerator": "cpu", "data": 4, "stage": {"dtype": "fp32"}},
        {"data": 8},
        {"data": 8, "zero": PARAMETERS},
        {"data": 8, "zero": GRADIENTS},
    ):
        assert run_of(**how).resume.guarantee == "same_data_order", how
    flash = {"packing": True, "resources": StageResources(attention="flash_attention_2"), "dtype": "fp32"}
    assert run_of(accelerator="cpu", stage=flash).resume.guarantee == "same_data_order"
    vllm = run_of(kind="grpo", stage={"generator": "vllm"}).resume
    assert (vllm.guarantee, "vLLM" in vllm.reason) == ("best_effort", True)
    assert "rollouts" in run_of(kind="grpo").resume.reason


def test_a_default_layout_is_one_process():
    layout = Layout(micro_batch=32)
    assert render(handover("trl", "sft", layout=layout)).command == ("python", *SCRIPT)
