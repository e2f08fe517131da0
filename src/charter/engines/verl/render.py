"""A stage for verl: its YAML file, the command that starts it, and what a resume of it is worth."""

from charter.engines.common.mapping import FieldMapper
from charter.engines.common.ray_script import RAY_SCRIPT, ray_script
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.engines.verl.ppo import FILE as PPO_FILE
from charter.engines.verl.ppo import ppo_sheet
from charter.engines.verl.sft import FILE as SFT_FILE
from charter.engines.verl.sft import sft_sheet
from charter.engines.verl.trainer import METRICS
from charter.spec.stage import PpoStage, SftStage

SOURCE = "verl 0.9.1: trainer/ppo/v1/trainer_base.py, trainer/sft_trainer.py, utils/checkpoint"
PPO_RESUME = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizers, schedules, random states of every rank and the place in the prompts come back; "
        "vLLM draws anew, so the answers of a repeated rollout differ"
    ),
    source=SOURCE,
)
SFT_RESUME = Resume(
    guarantee="same_data_order",
    reason=(
        "weights, optimizer, schedule, random states of every rank and the place in the data come back; the file is "
        "one epoch, so no checkpoint before the last falls on an epoch's end, after which verl would skip one"
    ),
    source=f"{SOURCE}; verl issue 7401",
)
NOTES = (
    "checkpoints are whole once latest_checkpointed_iteration.txt names their step",
    "several nodes write one checkpoint: the work directory has to be on a file system that all of them share",
)
PPO_NOTES = (
    *NOTES,
    "the reward model has to be a sequence classifier with one score and a chat template, which vLLM serves",
    "needs vllm and TransferQueue beside verl",
)


def render(handover: Handover) -> RenderedRun:
    """The stage as verl's configuration; a `SpecError` holds every field that verl cannot express."""
    mapper = FieldMapper(handover)
    start = int(handover.paths.resume_from.rsplit("_", 1)[-1]) if handover.paths.resume_from else 0
    environment = {"VERL_FILE_LOGGER_PATH": f"{handover.paths.work}/{METRICS}/from_{start}.jsonl"}
    files = {f"{METRICS}/.keep": ""}
    notes: tuple[str, ...] = NOTES
    if isinstance(handover.stage, PpoStage):
        sheet = ppo_sheet(mapper, handover.stage)
        rows = mapper.finish()
        command: tuple[str, ...] = ("python", "-m", "verl.trainer.main_ppo", *_hydra(PPO_FILE))
        if handover.num_nodes > 1:
            files[RAY_SCRIPT] = ray_script(handover)
            command = ("bash", RAY_SCRIPT, *command)
        resume, notes = PPO_RESUME, PPO_NOTES
    else:
        assert isinstance(handover.stage, SftStage)
        sheet = sft_sheet(mapper, handover.stage)
        rows = mapper.finish()
        command = (*_torchrun(handover), "-m", "verl.trainer.sft_trainer", *_hydra(SFT_FILE))
        resume = SFT_RESUME
    files[sheet.file] = sheet.text()
    return RenderedRun(files=files, command=command, mapping=rows, resume=resume, environment=environment, notes=notes)


def _hydra(file: str) -> tuple[str, ...]:
    """Our file is added to verl's own search path, and Hydra writes nothing beside it."""
    name = file.removesuffix(".yaml")
    return ("--config-dir", ".", "--config-name", name, "hydra.run.dir=.", "hydra.output_subdir=null")


def _torchrun(handover: Handover) -> tuple[str, ...]:
    launcher = ("python", "-m", "torch.distributed.run", "--nproc-per-node", str(handover.per_node))
    if handover.num_nodes == 1:
        return (*launcher, "--standalone")
    several = ("--nnodes", str(handover.num_nodes), "--node-rank", "${NODE_RANK}")
    return (*launcher, *several, "--master-addr", "${MASTER_ADDR}", "--master-port", "${MASTER_PORT}")
