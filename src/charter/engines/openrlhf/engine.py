"""OpenRLHF as an engine: its programs' command lines; it reads no configuration file."""

import json

from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.engines.openrlhf.ppo import MODULE, ppo_arguments
from charter.engines.openrlhf.supervised import MODULES, supervised_arguments

ARGUMENTS_FILE = "openrlhf.json"
"""What the command line says, for people and for Charter: OpenRLHF does not read it."""
RAY_ADDRESS = "http://127.0.0.1:8265"
"""Of Ray's job server on its head node, as OpenRLHF's README gives it."""


def render_openrlhf(handover: Handover) -> RenderedRun:
    """The stage as a command line; a `SpecError` holds every field that OpenRLHF cannot express."""
    is_ppo = handover.stage.kind == "ppo"
    given = ppo_arguments(handover) if is_ppo else supervised_arguments(handover)
    words, mapping = given.finish()
    module = f"openrlhf.cli.{MODULE if is_ppo else MODULES[handover.stage.kind]}"
    shown = {option: list(values) for option, values in given.given.items()}
    return RenderedRun(
        files={ARGUMENTS_FILE: json.dumps({"module": module, "options": shown}, indent=2) + "\n"},
        command=(*_start(handover, module, is_ppo=is_ppo), *words),
        mapping=mapping,
        resume=_resume(is_ppo=is_ppo),
        environment={"HF_DATASETS_CACHE": f"{handover.paths.work}/datasets"},
        notes=_notes(handover, is_ppo=is_ppo),
    )


def _start(handover: Handover, module: str, *, is_ppo: bool) -> tuple[str, ...]:
    """Of PPO one process drives Ray; of the others every accelerator has one (environment: RANK, LOCAL_RANK)."""
    if is_ppo and handover.num_nodes == 1:
        return ("python", "-m", module)
    if is_ppo:
        return ("ray", "job", "submit", "--address", RAY_ADDRESS, "--working-dir", ".", "--", "python", "-m", module)
    nodes = (
        ("--standalone",)
        if handover.num_nodes == 1
        else ("--node-rank", "${NODE_RANK}", "--master-addr", "${MASTER_ADDR}", "--master-port", "${MASTER_PORT}")
    )
    sizes = ("--nnodes", str(handover.num_nodes), "--nproc-per-node", str(handover.per_node))
    return ("python", "-m", "torch.distributed.run", *sizes, *nodes, "-m", module)


def _resume(*, is_ppo: bool) -> Resume:
    if is_ppo:
        return Resume(
            guarantee="best_effort",
            reason="policy, value model, both optimizers and schedules, prompts and episode come back; no random state "
            "does, vLLM samples anew, and policy and value model are saved as two separate steps",
            source="OpenRLHF 0.11.2: trainer/ppo_trainer.py fit() and save_logs_and_checkpoints(); no file of the "
            "package saves a random state",
        )
    return Resume(
        guarantee="same_data_order",
        reason="weights, optimizer, schedule and the number of rows read come back, and rows follow from seed and "
        "epoch; no random state does, and CUDA kernels are not repeated bit for bit",
        source="OpenRLHF 0.11.2: utils/distributed_sampler.py, trainer/sft_trainer.py, rm_trainer.py, dpo_trainer.py; "
        "not measured, since it does not run without a GPU",
    )


def _notes(handover: Handover, *, is_ppo: bool) -> tuple[str, ...]:
    notes = [
        "packing and ring attention need flash-attn; ring attention needs ring_flash_attn as well",
        "weights are loaded in the precision of --ds.param_dtype; DeepSpeed's optimizer keeps them in fp32",
        "OpenRLHF leaves out rows whose prompt fills --data.max_len less 2 tokens; Charter must not write them",
        "a warm-up starts at a rate of 0, ours at one part of it: one step later",
    ]
    if is_ppo and handover.num_nodes > 1:
        notes.append("start Ray on all nodes first; one node alone runs the command")
    if is_ppo:
        notes.append("prompts are shuffled by PyTorch's default seed: the controller sets none (ppo_trainer.py)")
    return tuple(notes)
