"""Megatron-LM as an engine: pretrain_gpt.py of a checkout, and what has to be made for it once."""

from charter.engines.common.arguments import Arguments
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.engines.megatron.layout import layout_arguments
from charter.engines.megatron.model import impossible, model_arguments
from charter.engines.megatron.precision import TRANSFORMER_ENGINE
from charter.engines.megatron.prepare import prepare_files
from charter.engines.megatron.training import trained, training_arguments
from charter.spec.stage import FP8

BRIDGE = "0.3.1"
"""Megatron Bridge, which converts weights there and back."""
SCRIPT = "${MEGATRON_DIR}/pretrain_gpt.py"


def render_megatron(handover: Handover) -> RenderedRun:
    """The stage as a command line; a `SpecError` holds every field that Megatron-LM cannot express."""
    given, stage, model = Arguments(handover), trained(handover), handover.architectures["init"]
    note = "converted by Megatron Bridge; its shape is told option by option"
    given.fields.to("stage.init", "--pretrained-checkpoint", how="computed", note=note)
    for reason in impossible(model):
        given.fields.refuse("stage.init", reason, "another engine")
    layout_arguments(given, model, batch=stage.global_batch, seq_len=stage.seq_len)
    model_arguments(given, model, stage.seq_len)
    training_arguments(given)
    words, mapping = given.finish()
    return RenderedRun(
        files=prepare_files(handover),
        command=(*_start(handover), SCRIPT, *words),
        mapping=mapping,
        resume=RESUME,
        environment=_environment(handover),
        notes=_notes(handover),
    )


def _start(handover: Handover) -> tuple[str, ...]:
    nodes = (
        ("--standalone",)
        if handover.num_nodes == 1
        else ("--node-rank", "${NODE_RANK}", "--master-addr", "${MASTER_ADDR}", "--master-port", "${MASTER_PORT}")
    )
    sizes = ("--nnodes", str(handover.num_nodes), "--nproc-per-node", str(handover.per_node))
    return ("python", "-m", "torch.distributed.run", *sizes, *nodes)


def _environment(handover: Handover) -> dict[str, str]:
    """Up to Hopper its checks ask for one queue of work where tensors or sequences are divided (validate_args)."""
    layout = handover.layout
    variables = {"HF_DATASETS_CACHE": f"{handover.paths.work}/datasets"}
    return variables | ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if layout.tensor > 1 or layout.context > 1 else {})


def _notes(handover: Handover) -> tuple[str, ...]:
    notes = [
        "MEGATRON_DIR is a checkout at the version above; PYTHONPATH has to hold it",
        f"run prepare.sh once, on one node, before the first start; it needs megatron-bridge {BRIDGE}",
        "checkpoints are never removed by Megatron-LM; a start goes on from the newest in --load",
    ]
    if handover.stage.kind == "sft":
        notes.append(
            "its own chat templates count every token (sft_tokenizer.py, format default), so that contents of messages "
            "hold the template's text already and the format is identity: system and user messages are masked"
        )
    if trained(handover).dtype == FP8:
        notes.append(
            f"fp8 needs TransformerEngine {TRANSFORMER_ENGINE} or newer on Ada, Hopper or Blackwell; for scales "
            "from a history instead: --fp8-recipe delayed --fp8-amax-history-len 1024 --fp8-amax-compute-algo max"
        )
    if handover.architectures["init"].rope_theta == 500_000.0:
        notes.append("positions of Llama 3.1 and later are stretched (--use-rope-scaling); compare with config.json")
    return tuple(notes)


RESUME = Resume(
    guarantee="same_data_order",
    reason="weights, optimizer, schedule, random states of every rank and the number of samples read come back; the "
    "same numbers need --deterministic-mode and the same layout as well",
    source="Megatron-LM d98e8a6: megatron/training/checkpointing.py get_rng_state, save_checkpoint; data_samplers.py; "
    "not measured, since it does not run without a GPU",
)
